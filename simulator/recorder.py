"""Writes down what happened, the same way for a simulated and a live run."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.engine.plan import IterationShape, Plan
from simulator.engine.request import Request
from simulator.run_tables import RunTables

REQUEST_COLUMNS = (
    "id",
    "arrival_ns",
    "prompt_tokens",
    "output_tokens",
    "output_limit",
    "replica",
    "status",
    "scheduled_ns",
    "first_token_ns",
    "finished_ns",
    "preemptions",
    "cached_tokens",
)
ITERATION_COLUMNS = (
    "replica",
    "start_ns",
    "end_ns",
    *IterationShape._fields,
    "preempted",
    "waiting",
    "kv_blocks_used",
    "repeats",
)
COMPLETED, REJECTED, FAILED, UNFINISHED = range(4)


class RequestLog:
    """One row per request that has left, in any order; sorted by id in the end."""

    def __init__(self) -> None:
        self.rows = array("q")
        self.reasons: dict[int, str] = {}
        self.completed = 0

    def complete(self, request: Request, replica: int, now_ns: int) -> None:
        """A request's answer is complete; where nothing was streamed this is its first token too."""
        if request.first_token_ns < 0:
            request.first_token_ns = now_ns
        self._write(request, replica, COMPLETED, now_ns)
        self.completed += 1

    def turn_away(self, request: Request, replica: int, status: int, reason: str, now_ns: int = -1) -> None:
        """A request ends without its answer; ``now_ns`` if it was let in and has waited."""
        self.reasons[request.id] = reason
        self._write(request, replica, status, now_ns)

    def _write(self, request: Request, replica: int, status: int, now_ns: int) -> None:
        self.rows.extend(
            (
                request.id,
                request.arrival_ns,
                request.prompt_tokens,
                request.generated_tokens,
                request.output_limit,
                replica,
                status,
                request.scheduled_ns,
                request.first_token_ns,
                now_ns,
                request.preemptions,
                request.cached_tokens,
            )
        )

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """The request table in order of id."""
        table = _columns(self.rows, REQUEST_COLUMNS)
        order = np.argsort(table["id"], kind="stable")
        return {name: column[order] for name, column in table.items()}


class IterationLog:
    """What one replica did, iteration by iteration: a row per run of equal plans, and every end.

    A request's tokens come at the ends of consecutive iterations, so the gaps between tokens are the
    iterations' durations, each seen by as many requests as rows decoded. The exceptions, requests that
    lost their seat or were left out for a while, are written down one by one.
    """

    def __init__(self, replica: int, *, streams: bool) -> None:
        self.replica = replica
        self.streams = streams
        self.rows = array("q")
        self.ends = array("q")
        self._long_gaps = array("q")  # pairs of a gap and how many rows saw it
        self._paused_since = -1  # when the decoding rows got their last tokens, while they are left out
        self._joined_paused: dict[Request, int] = {}  # request -> its first token, since then
        self._resumed_at = array(
            "q"
        )  # iterations in which a row's gap was longer than the iteration, once per row
        self._away: dict[Request, int] = {}  # request between two tokens -> time of the earlier one

    def write(
        self,
        plan: Plan,
        shape: IterationShape,
        start_ns: int,
        ends: Sequence[int],
        waiting: int,
        used_blocks: int,
    ) -> None:
        """Iterations of one plan have ended; call before the last is committed.

        ``waiting`` as the first began, ``used_blocks`` in the last.
        """
        end_ns = ends[-1]
        evicted = len(plan.preempted) + len(plan.swapped_out)
        self.rows.extend((self.replica, start_ns, end_ns, *shape, evicted, waiting, used_blocks, len(ends)))
        self.ends.extend(ends)
        if plan.prefills:
            self._stamp(plan, start_ns, end_ns)
        if plan.paused or self._paused_since >= 0:
            self._follow_pause(plan, shape, start_ns, ends)
        if evicted or self._away or plan.stalled:
            self._follow_away(plan, start_ns, ends)

    def _stamp(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        for request, _, _, completes in plan.prefills:
            if request.scheduled_ns < 0:
                request.scheduled_ns = start_ns
            if completes and self.streams and request.first_token_ns < 0:
                request.first_token_ns = end_ns

    def _follow_away(self, plan: Plan, start_ns: int, ends: Sequence[int]) -> None:
        """Requests that come back do so in the first of these iterations."""
        away, end_ns = self._away, ends[0]
        for request in (*_evicted(plan), *plan.stalled):
            if request.generated_tokens:
                away.setdefault(request, self._last_token_ns(request, start_ns))
        for chunk in plan.prefills:
            if chunk.completes and chunk.request in away:
                self._long_gaps.extend((end_ns - away.pop(chunk.request), 1))
        if not plan.paused:
            for request in [r for r in away if r in plan.decodes.members]:
                self._long_gaps.extend((end_ns - away.pop(request), 1))
                self._resumed_at.append(len(self.ends) - len(ends))

    def _last_token_ns(self, request: Request, start_ns: int) -> int:
        """Rows that lose their place had their last token as this iteration began, or before a pause."""
        if self._paused_since < 0:
            return start_ns
        return self._joined_paused.pop(request, self._paused_since)

    def _follow_pause(self, plan: Plan, shape: IterationShape, start_ns: int, ends: Sequence[int]) -> None:
        """While the group is left out its rows wait for their next token, each since its last."""
        joined = self._joined_paused
        if plan.paused:
            if self._paused_since < 0:
                self._paused_since = start_ns
            joined.update((c.request, ends[-1]) for c in plan.prefills if c.completes)
            return
        for request in _evicted(plan):
            if request.generated_tokens:
                self._away.setdefault(request, self._last_token_ns(request, start_ns))
        late = [r for r in joined if r in plan.decodes.members]
        back = len([r for r in self._away if r in plan.decodes.members])
        waited = shape.decodes - len(late) - back
        self._long_gaps.extend((ends[0] - self._paused_since, waited))
        for request in late:
            self._long_gaps.extend((ends[0] - joined[request], 1))
        self._resumed_at.extend([len(self.ends) - len(ends)] * (waited + len(late)))
        self._paused_since = -1
        joined.clear()

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """The iteration table in time order."""
        return _columns(self.rows, ITERATION_COLUMNS)

    def gaps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Inter-token gaps and how many tokens saw each; none where answers are not streamed."""
        if not self.streams or not self.rows:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        table = self.columns()
        ends = np.array(self.ends, np.int64)
        starts = np.empty_like(ends)
        starts[1:] = ends[:-1]
        first = np.cumsum(table["repeats"]) - table["repeats"]
        starts[first] = table["start_ns"]
        finished_rows = np.where(table["prefills"] == 0, table["padding_tokens"], 0)
        rows = np.repeat(table["decodes"] - finished_rows, table["repeats"])
        np.subtract.at(rows, np.array(self._resumed_at, np.int64), 1)
        seen = rows > 0
        long_gaps = np.array(self._long_gaps, np.int64).reshape(-1, 2)
        return np.concatenate(((ends - starts)[seen], long_gaps[:, 0])), np.concatenate(
            (rows[seen], long_gaps[:, 1])
        )


def _evicted(plan: Plan) -> list[Request]:
    return [*plan.preempted, *(copy.request for copy in plan.swapped_out)]


def tables(requests: RequestLog, replicas: Sequence[IterationLog], kv_blocks: int) -> RunTables:
    """Everything that was recorded, as columns."""
    iterations = [log.columns() for log in replicas]
    gaps = [log.gaps() for log in replicas]
    return RunTables(
        requests=requests.columns(),
        reasons=requests.reasons,
        iterations={
            name: np.concatenate([table[name] for table in iterations]) for name in ITERATION_COLUMNS
        },
        gap_ns=np.concatenate([gap for gap, _ in gaps]),
        gap_rows=np.concatenate([rows for _, rows in gaps]),
        kv_blocks=kv_blocks,
    )


def _columns(rows: array[int], names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    table = np.array(rows, np.int64).reshape(-1, len(names))
    return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
