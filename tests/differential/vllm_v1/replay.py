"""Runs our engine on a workload and writes down its decisions in the form of `record.py`."""

from __future__ import annotations

from typing import Any

from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import Plan
from simulator.engine.request import Content, Request
from simulator.engine.vllm_v1 import VllmV1
from tests.differential.vllm_v1.workloads import Workload

Step = list[Any]  # step, rows of [request, computed, tokens], preempted, free blocks, finished


def replay(workload: Workload) -> list[Step]:
    """Every step from the first arrival to the last answer."""
    return _Run(workload).record()


class _Run:
    def __init__(self, workload: Workload) -> None:
        settings = dict(workload["engine"])
        caching = settings.pop("prefix_caching")
        self.kv = KVCache(workload["blocks"], workload["block_size"], prefix_caching=caching)
        self.engine = VllmV1(self.kv, **settings)
        self.asked = workload["requests"]
        self.span = workload["tokens_per_id"]
        self.waiting = list(range(len(self.asked)))
        self.alive: dict[int, Request] = {}

    def record(self) -> list[Step]:
        steps: list[Step] = []
        step = 0
        while self.waiting or self.alive:
            if not self.alive:
                step = max(step, self.asked[self.waiting[0]]["step"])
            self._arrive(step)
            self._abort(step)
            if self.alive:
                steps.append([step, *self._iterate()])
            step += 1
        assert self.kv.free_blocks == self.kv.blocks, "blocks are still held at the end"
        return steps

    def _arrive(self, step: int) -> None:
        while self.waiting and self.asked[self.waiting[0]]["step"] <= step:
            number = self.waiting.pop(0)
            self.alive[number] = request = self._request(number)
            self.engine.add(request)

    def _abort(self, step: int) -> None:
        for number in [n for n in self.alive if self.asked[n]["abort_step"] == step]:
            self.engine.cancel(self.alive.pop(number))

    def _iterate(self) -> Step:
        plan = self.engine.plan()
        assert plan is not None, "requests are there, but there is no plan"
        rows = self._rows(plan)
        preempted = [request.id for request in plan.preempted]
        free = self.kv.free_blocks
        stopped = self._stopped(plan)
        answered = self.engine.commit(plan, stopped)
        self.kv.check(self.alive.values())
        for request in stopped:
            del self.alive[request.id]
        return [rows, preempted, free, [request.id for request in answered]]

    def _rows(self, plan: Plan) -> list[list[int]]:
        group = plan.decodes
        rows = {request: [request.id, group.steps + offset, 1] for request, offset in group.members.items()}
        rows |= {chunk.request: [chunk.request.id, chunk.start, chunk.tokens] for chunk in plan.prefills}
        return [rows[request] for request in sorted(rows, key=_seat)]

    def _stopped(self, plan: Plan) -> list[Request]:
        completed = [chunk.request for chunk in plan.prefills if chunk.completes]
        generated = {request: request.generated_tokens for request in completed}
        generated |= {request: plan.decodes.generated(request) for request in plan.decodes.members}
        return [r for r, tokens in generated.items() if tokens + 1 == self.asked[r.id]["output"]]

    def _request(self, number: int) -> Request:
        asked = self.asked[number]
        content = _content(number, asked, self.span)
        return Request(
            number, asked["step"], asked["prompt"], asked["limit"], content, priority=asked["priority"]
        )


def _content(number: int, asked: dict[str, Any], span: int) -> Content | None:
    """The prompt's names: those of its opening while that is shared, then its own."""
    prompt, shared = asked["prompt"], asked["shared"]
    if not shared:
        return None
    ends = [min((i + 1) * span, prompt) for i in range(-(-prompt // span))]
    opening, own = 1_000 * (1 + asked["opening"]), 1_000_000 * (1 + number)
    return Content(tuple(i + (opening if end <= shared else own) for i, end in enumerate(ends)), span)


def _seat(request: Request) -> int:
    return request.seat
