"""A bench for stories in which time matters: requests arrive, and plans are asked for, at a time."""

from __future__ import annotations

from simulator.engine.request import Request
from simulator.engine.scheduler import Patient, Scheduler
from tests.simulator.engine.stories import Bench


class TimedBench(Bench):
    """As `Bench`, with a clock that the story moves by ``at``. Requests are short: four tokens and two."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        assert isinstance(scheduler, Patient)
        self.patient = scheduler
        self.now_ns = 0
        self.expired: dict[str, str] = {}

    def at(self, now_ns: int) -> TimedBench:
        """Let time pass."""
        assert now_ns >= self.now_ns
        self.now_ns = now_ns
        return self

    def arrive(
        self, names: str, *, prompt: int = 4, output: int = 2, priority: int = 0, timeout_ns: int = 0
    ) -> None:
        """One request per letter, now."""
        for name in names:
            request = Request(len(self.names), self.now_ns, prompt, output, None, priority, timeout_ns)
            self.scheduler.add(request)
            self.names[request], self.left[request] = name, output

    def step(self) -> str:
        """An iteration now; ``wait 7`` where the scheduler wants to be asked again at 7."""
        self.patient.tell(self.now_ns)
        line = super().step()
        self.expired.update(
            (self.names[request], reason) for request, reason in self.patient.take_expired()
        )
        return f"wait {self.patient.wake_at_ns}" if line == "idle" and self.patient.wake_at_ns else line

    def batch(self) -> str:
        """The rows that a batch starts with now, run to its end at once; or what ``step`` says."""
        line = self.step()
        if self.plan is None:
            return line
        assert self.plan.prefills, "a batch was under way"
        rows = "".join(self.names[chunk.request] for chunk in self.plan.prefills)
        while self.scheduler.used_blocks:
            super().step()
        return rows
