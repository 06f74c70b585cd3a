"""Writes down what happened, the same way for a simulated and a live run."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from simulator.columns import CompactColumns, matrix, narrow
from simulator.engine.plan import IterationShape, Plan
from simulator.engine.request import Request
from simulator.engine.sequence_group import together
from simulator.run_tables import NO_SHARING, RunTables, Sharing

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
FOREVER_NS = 1 << 62
FULL = 4096  # iterations, or requests, that wait as they were written until they are packed away
POOLED_GAPS = 1 << 20  # gaps that are kept one by one; of more, equal ones are put together

Gaps = tuple[NDArray[np.int64], NDArray[np.int64]]  # lengths in ns, and how many tokens saw each


class RequestLog:
    """One row per request that has left, in any order; sorted by id in the end."""

    def __init__(self) -> None:
        self._rows = array("q")  # not yet in the table
        self._table = CompactColumns(REQUEST_COLUMNS)
        self.reasons: dict[int, str] = {}
        self.completed = 0
        self.ended = 0  # with an answer or without

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
        self.ended += 1
        self._rows.extend(
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
        if len(self._rows) >= FULL * len(REQUEST_COLUMNS):
            self._pack()

    def _pack(self) -> None:
        self._table.append(matrix(self._rows, len(REQUEST_COLUMNS)))
        del self._rows[:]

    def columns(self) -> CompactColumns:
        """The request table in order of id."""
        self._pack()
        self._table = self._table.ordered_by("id")
        return CompactColumns.joined(REQUEST_COLUMNS, [self._table])


class IterationLog:
    """What one replica did, iteration by iteration: a row per run of equal plans, and every end.

    A request's tokens come at the ends of consecutive iterations, so the gaps between tokens are the
    iterations' durations, each seen by as many requests as rows decoded. The exceptions, requests that
    lost their seat or were left out for a while, are written down one by one.
    """

    def __init__(self, replica: int, *, streams: bool) -> None:
        self.replica = replica
        self.streams = streams
        self._rows = array("q")  # not yet in the table
        self._ends = array("q")  # of all iterations in those rows
        self._table = CompactColumns(ITERATION_COLUMNS)
        self._lasted: list[NDArray[np.signedinteger]] = []  # ns that each iteration in the table took
        self._packed = 0  # how many those are
        self._long_gaps = array("q")  # triples of a gap, how many rows saw it, and when it ended
        self._paused_since = -1  # when the decoding rows got their last tokens, while they are left out
        self._joined_paused: dict[Request, int] = {}  # request -> its first token, since then
        self._resumed_at = array(
            "q"
        )  # iterations in which a row's gap was longer than the iteration, once per row
        self._away: dict[Request, int] = {}  # request between two tokens -> time of the earlier one
        self.sharing = NO_SHARING

    def follow(self, request: Request, since_ns: int) -> None:
        """A request will decode here that had its last token elsewhere, then."""
        self._away[request] = since_ns

    def lose(self) -> None:
        """All requests here are lost: whatever comes next has nothing to do with them."""
        self._away.clear()
        self._joined_paused.clear()
        self._paused_since = -1

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
        self._rows.extend(
            (self.replica, start_ns, end_ns, *shape, evicted, waiting, used_blocks, len(ends))
        )
        self._ends.extend(ends)
        if plan.prefills:
            self._stamp(plan, start_ns, end_ns)
        if plan.paused or self._paused_since >= 0:
            self._follow_pause(plan, shape, start_ns, ends)
        if evicted or self._away or plan.stalled:
            self._follow_away(plan, start_ns, ends)
        if plan.saved_blocks is not None:
            self._follow_sharing(plan, plan.saved_blocks, used_blocks, len(ends))
        if len(self._ends) >= FULL:
            self._pack()

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
                self._long_gaps.extend((end_ns - away.pop(chunk.request), 1, end_ns))
        if not plan.paused:
            for request in [r for r in away if r in plan.decodes.members]:
                self._long_gaps.extend((end_ns - away.pop(request), 1, end_ns))
                self._resumed_at.append(self._iterations() - len(ends))

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
            begun = [row for c in plan.prefills if c.completes for row in together(c.request)]
            joined.update(dict.fromkeys(begun, ends[-1]))
            return
        for request in _evicted(plan):
            if request.generated_tokens:
                self._away.setdefault(request, self._last_token_ns(request, start_ns))
        late = [r for r in joined if r in plan.decodes.members]
        back = len([r for r in self._away if r in plan.decodes.members])
        waited = shape.decodes - len(late) - back
        self._long_gaps.extend((ends[0] - self._paused_since, waited, ends[0]))
        for request in late:
            self._long_gaps.extend((ends[0] - joined[request], 1, ends[0]))
        self._resumed_at.extend([self._iterations() - len(ends)] * (waited + len(late)))
        self._paused_since = -1
        joined.clear()

    def _iterations(self) -> int:
        return self._packed + len(self._ends)

    def _pack(self) -> None:
        """Into the table with what was written, in a quarter of the memory."""
        rows, ends = matrix(self._rows, len(ITERATION_COLUMNS)), np.array(self._ends, np.int64)
        start_ns, repeats = (rows[:, ITERATION_COLUMNS.index(name)] for name in ("start_ns", "repeats"))
        starts = np.empty_like(ends)
        starts[1:] = ends[:-1]
        starts[np.cumsum(repeats) - repeats] = start_ns
        self._table.append(rows)
        self._lasted.append(narrow(ends - starts))
        self._packed += len(ends)
        del self._rows[:], self._ends[:]

    def columns(self) -> CompactColumns:
        """The iteration table in time order."""
        self._pack()
        return CompactColumns.joined(ITERATION_COLUMNS, [self._table])

    def _follow_sharing(self, plan: Plan, saved: int, used: int, repeats: int) -> None:
        """Add up the blocks held in each of the repeats: fewer by those that rows have started since."""
        group, held = plan.decodes, used
        for back in range(repeats - 1):
            used -= len(group.wheel[(group.steps - back) % group.block_size])
            held += used
        self.sharing = self.sharing.plus(Sharing(held, saved * repeats, len(plan.copies)))

    def gaps(self, since_ns: int = 0, until_ns: int = FOREVER_NS) -> Gaps:
        """Inter-token gaps that ended within a time and how many tokens saw each.

        None where answers are not streamed.
        """
        if not self.streams or not self._iterations():
            return _no_gaps()
        table = self.columns()
        lasted, repeats = np.concatenate(self._lasted, dtype=np.int64), table["repeats"]
        finished_rows = np.where(table["prefills"] == 0, table["padding_tokens"], 0)
        rows = np.repeat(table["decodes"] - finished_rows, repeats)
        np.subtract.at(rows, np.array(self._resumed_at, np.int64), 1)
        ends = np.cumsum(lasted)
        ends += np.repeat(table["end_ns"] - ends[np.cumsum(repeats) - 1], repeats)
        seen = (rows > 0) & (ends >= since_ns) & (ends <= until_ns)
        long_gaps = np.array(self._long_gaps, np.int64).reshape(-1, 3)
        long_gaps = long_gaps[(long_gaps[:, 2] >= since_ns) & (long_gaps[:, 2] <= until_ns)]
        return (
            np.concatenate((lasted[seen], long_gaps[:, 0])),
            np.concatenate((rows[seen], long_gaps[:, 1])),
        )


def _evicted(plan: Plan) -> list[Request]:
    """Every sequence that has lost its place."""
    return [*plan.preempted, *(row for copy in plan.swapped_out for row in together(copy.request))]


def tables(requests: RequestLog, replicas: Sequence[IterationLog], *kv_blocks: int) -> RunTables:
    """Everything that was recorded, as columns; ``kv_blocks`` of the only replica, or of each."""
    gap_ns, gap_rows = pooled(log.gaps() for log in replicas)
    return RunTables(
        requests=requests.columns(),
        reasons=requests.reasons,
        iterations=CompactColumns.joined(ITERATION_COLUMNS, [log.columns() for log in replicas]),
        gap_ns=gap_ns,
        gap_rows=gap_rows,
        kv_blocks=max(kv_blocks, default=0),
        replica_blocks=kv_blocks if len(kv_blocks) > 1 else (),
        sharing=reduce(Sharing.plus, [log.sharing for log in replicas], NO_SHARING),
    )


def pooled(gaps: Iterable[Gaps]) -> Gaps:
    """All gaps together; where there are many, equal ones as one."""
    parts, held, most = [_no_gaps()], 0, POOLED_GAPS
    for part in gaps:
        parts.append(part)
        held += len(part[0])
        if held > most:
            parts = [_merged(parts)]
            held = len(parts[0][0])
            most = POOLED_GAPS + 2 * held
    return _joined(parts)


def _no_gaps() -> Gaps:
    return np.empty(0, np.int64), np.empty(0, np.int64)


def _joined(parts: Sequence[Gaps]) -> Gaps:
    return np.concatenate([lengths for lengths, _ in parts]), np.concatenate([rows for _, rows in parts])


def _merged(parts: Sequence[Gaps]) -> Gaps:
    lengths, rows = _joined(parts)
    order = np.argsort(lengths)
    ordered = lengths[order]
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    return ordered[first], np.add.reduceat(rows[order], first)
