"""The simulated model: it knows how long an iteration takes and when each answer ends."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from simulator.cost_model import CostModel
from simulator.engine.decode_group import DecodeGroup
from simulator.engine.plan import IterationShape, Plan
from simulator.engine.request import Request


class SimulatedExecutor:
    """Plays the model for one replica. It alone holds the true output lengths.

    Stops are kept in a heap keyed by the decode clock at which a request's last token appears, which
    follows from its ``origin``. A request that was preempted or left out meanwhile has a new origin, so
    an entry is checked against it when it reaches the top.
    """

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self._output_tokens: dict[Request, int] = {}
        self._stops: list[tuple[int, int, Request]] = []

    def expect(self, request: Request, output_tokens: int) -> None:
        """Fix how many tokens the model will generate for a request, at most its declared limit."""
        self._output_tokens[request] = min(output_tokens, request.output_limit)

    def forget(self, request: Request) -> None:
        """Drop a request that never ran or was cancelled."""
        self._output_tokens.pop(request, None)

    def ends_ns(self, plan: Plan, shape: IterationShape, start_ns: int, most: int) -> list[int]:
        """When each of the next runs of this plan ends: up to ``most``, the horizon and the first stop."""
        if shape.prefills or not shape.decodes:
            return [start_ns + self.cost.iteration_ns(shape)]
        runs = min(plan.horizon, most)
        if runs > 1:
            runs = min(runs, self._steps_to_stop(plan.decodes))
        rows, context, now = shape.decodes, shape.context_tokens, start_ns
        base_ns, slope_ns, until = self.cost.decode_line(rows, context)
        ends = []
        for _ in range(runs):
            if context > until:
                base_ns, slope_ns, until = self.cost.decode_line(rows, context)
            now += int(base_ns + slope_ns * context) or 1
            ends.append(now)
            context += rows
        return ends

    def finish(self, plan: Plan) -> Sequence[Request]:
        """Who produced its last token in this run of the plan; asked before it is committed."""
        group = plan.decodes
        clock = group.steps + (not plan.paused)
        stopped = self._due_stops(group, clock)
        for request, _, _, completes in plan.prefills:
            if not completes:
                continue
            remaining = self._output_tokens[request] - request.generated_tokens - 1
            if remaining:
                heappush(self._stops, (clock + remaining, request.id, request))
            else:
                stopped.append(request)
        for request in stopped:
            del self._output_tokens[request]
        return stopped

    def _steps_to_stop(self, group: DecodeGroup) -> int:
        """Iterations until the next member stops, or a lower bound."""
        stops = self._stops
        while stops and not self._current(stops[0], group):
            self._discard_top(group)
        return stops[0][0] - group.steps if stops else 1 << 60

    def _due_stops(self, group: DecodeGroup, clock: int) -> list[Request]:
        stops = self._stops
        stopped: list[Request] = []
        while stops and stops[0][0] <= clock:
            if not self._current(stops[0], group):
                self._discard_top(group)
                continue
            request = heappop(stops)[2]
            if not stopped or stopped[-1] is not request:
                stopped.append(request)
        return stopped

    def _current(self, entry: tuple[int, int, Request], group: DecodeGroup) -> bool:
        clock, _, request = entry
        return (
            request in group.members
            and request in self._output_tokens
            and clock == request.origin + self._output_tokens[request]
        )

    def _discard_top(self, group: DecodeGroup) -> None:
        """Drop a stale entry; for a request that was left out for a while, note the later stop instead."""
        clock, _, request = heappop(self._stops)
        if request in group.members and request in self._output_tokens:
            due = request.origin + self._output_tokens[request]
            if due > clock:
                heappush(self._stops, (due, request.id, request))
