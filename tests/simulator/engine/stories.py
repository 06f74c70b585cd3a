"""A bench for stories about schedulers: requests by name, iterations as one readable line each."""

from __future__ import annotations

from simulator.engine.plan import Plan
from simulator.engine.request import Content, Request
from simulator.engine.scheduler import Scheduler


class Bench:
    """Drives a scheduler one iteration at a time; the story says how long each answer turns out."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.names: dict[Request, str] = {}
        self.left: dict[Request, int] = {}
        self.completed: list[str] = []
        self.plan: Plan | None = None

    def add(
        self,
        name: str,
        prompt: int,
        output: int,
        *,
        limit: int | None = None,
        priority: int = 0,
        content: Content | None = None,
    ) -> Request:
        number = len(self.names)
        request = Request(number, number, prompt, limit or output, content, priority)
        self.scheduler.add(request)
        self.names[request], self.left[request] = name, output
        return request

    def step(self) -> str:
        """One iteration: ``a:0+8 b | -c ~d`` computes 8 tokens of a's prompt and one for b; c was evicted,
        d left out; ``>e <f``: e was swapped out, f back in. A chunk that completes its request's known
        tokens ends with ``!``."""
        plan = self.plan = self.scheduler.plan()
        if plan is None:
            return "idle"
        line = self._line(plan)
        yields = [c.request for c in plan.prefills if c.completes]
        if not plan.paused:
            yields += [r for r in plan.decodes.members if r in self.left]
        for request in yields:
            self.left[request] -= 1
        stopped = [request for request in yields if not self.left[request]]
        for request in stopped:
            del self.left[request]
        self.completed += [self.names[request] for request in self.scheduler.commit(plan, stopped)]
        return line

    def steps(self, count: int) -> list[str]:
        return [self.step() for _ in range(count)]

    def _line(self, plan: Plan) -> str:
        work = [
            f"{self.names[r]}:{start}+{tokens}{'!' if done else ''}"
            for r, start, tokens, done in plan.prefills
        ]
        if not plan.paused:
            work += [self.names[request] for request in plan.decodes.members]
        aside = [f"-{self.names[r]}" for r in plan.preempted] + [f"~{self.names[r]}" for r in plan.stalled]
        aside += [f">{self.names[r]}" for r, _ in plan.swapped_out]
        aside += [f"<{self.names[r]}" for r, _ in plan.swapped_in]
        return " ".join([*work, "|", *aside] if aside else work)
