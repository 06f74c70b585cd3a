"""The simulated model: it knows how long an iteration takes and when each answer ends."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate

from simulator.beams import chosen_parents
from simulator.cost_model import CostModel
from simulator.engine.decode_group import DecodeGroup
from simulator.engine.plan import IterationShape, Plan
from simulator.engine.request import Request
from simulator.engine.sequence_group import together


class SimulatedExecutor:
    """Plays the model for one replica. It alone holds the true output lengths.

    Stops are kept in a heap keyed by the decode clock at which a request's last token appears, which
    follows from its ``origin``. A request that was preempted or left out meanwhile has a new origin, so
    an entry is checked against it when it reaches the top.
    """

    def __init__(self, cost: CostModel, block_copy_ns: float = 0.0, block_split_ns: float = 0.0) -> None:
        self.cost = cost
        self.block_copy_ns = block_copy_ns  # one KV block between the GPU and the host
        self.block_split_ns = block_split_ns  # one KV block within the GPU's memory
        self._output_tokens: dict[Request, int] = {}
        self._stops: list[tuple[int, int, Request]] = []
        self._searches: dict[Request, None] = {}  # beam searches under way

    def expect(self, request: Request, output_tokens: int) -> None:
        """Fix how many tokens the model will generate for a request, at most its declared limit.

        Where several sequences answer it, all of them are taken to be of that length.
        """
        output_tokens = min(output_tokens, request.output_limit)
        for sequence in (request,) if request.group is None else request.group.sequences:
            self._output_tokens[sequence] = output_tokens

    def forget(self, request: Request) -> None:
        """Drop a request that never ran or was cancelled."""
        for sequence in (request,) if request.group is None else request.group.sequences:
            self._output_tokens.pop(sequence, None)
        self._searches.pop(request, None)

    def runs(self, plan: Plan, shape: IterationShape) -> int:
        """How often a plan without prompts will run if nobody comes: to its horizon and the first stop."""
        if not shape.decodes or plan.horizon == 1:
            return 1
        return min(plan.horizon, self._steps_to_stop(plan.decodes))

    def copy_ns(self, plan: Plan) -> int:
        """How long KV blocks are moved and copied before a plan's first run."""
        return int(self.block_copy_ns * plan.copied_blocks + self.block_split_ns * len(plan.copies))

    def ends_ns(self, shape: IterationShape, run: int, start_ns: int, count: int) -> list[int]:
        """When runs ``[run, run + count)`` of a plan end, the first of them starting at ``start_ns``.

        ``shape`` is that of the plan's very first run. Durations are truncated to ns one by one, then
        summed, so that leaping and stepping tell the same time.
        """
        if count == 1 and not run:
            return [start_ns + self.cost.iteration_ns(shape)]
        rows = shape.decodes
        first = shape.context_tokens + run * rows
        base_ns, slope_ns, until = self.cost.decode_line(rows, first)
        last = first + (count - 1) * rows
        if last <= until and base_ns + slope_ns * first >= 1:
            durations = [int(base_ns + slope_ns * context) for context in range(first, last + 1, rows)]
        else:
            contexts = range(first, last + 1, rows)
            durations = [self.cost.iteration_ns(shape._replace(context_tokens=c)) for c in contexts]
        durations[0] += start_ns
        return list(accumulate(durations))

    def finish(self, plan: Plan) -> Sequence[Request]:
        """Who produced its last token in this run of the plan; asked before it is committed."""
        group = plan.decodes
        clock = group.steps + (not plan.paused)
        if plan.stalled or plan.swapped_in:
            self._note_later_stops(plan, clock)
        stopped = self._due_stops(group, clock) if self._stops and self._stops[0][0] <= clock else []
        for request, _, _, completes in plan.prefills:
            if not completes:
                continue
            remaining = self._output_tokens[request] - request.generated_tokens - 1
            if request.group is not None:
                stopped += self._begin_sequences(request, clock, remaining)
            elif remaining:
                heappush(self._stops, (clock + remaining, request.id, request))
            else:
                stopped.append(request)
        for request in stopped:
            del self._output_tokens[request]
        if self._searches:
            self._choose_beams(plan)
        return stopped

    def _begin_sequences(self, request: Request, clock: int, remaining: int) -> Sequence[Request]:
        """A prompt is computed that several sequences may go on from; those that have stopped already."""
        sequences = together(request)
        if not remaining:
            return sequences
        for sequence in sequences:
            heappush(self._stops, (clock + remaining, sequence.id, sequence))
        if request.decoding.beam_search:
            self._searches[request] = None
        return ()

    def _choose_beams(self, plan: Plan) -> None:
        """Every search that took part in the iteration goes on with some of its beams."""
        decodes = plan.decodes
        for request in [request for request in self._searches if request not in self._output_tokens]:
            del self._searches[request]
        for request in () if plan.paused else self._searches:
            if request.group is not None and request in decodes.members:
                tokens = decodes.generated(request) + 1
                request.group.parents = chosen_parents(request.id, tokens, request.decoding.sequences)

    def _note_later_stops(self, plan: Plan, clock: int) -> None:
        """Entries of requests that are not in the group may have been dropped: those come back in time."""
        for request in plan.stalled:
            remaining = self._output_tokens[request] - request.generated_tokens
            heappush(self._stops, (clock + remaining, request.id, request))
        for request in [sequence for copy in plan.swapped_in for sequence in together(copy.request)]:
            if request in plan.decodes.members:
                due = request.origin + self._output_tokens[request]
                heappush(self._stops, (due, request.id, request))

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
