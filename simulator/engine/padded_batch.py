"""The batch of request-level policies: rows that start together, decode in lock step and end together.

Source: policy notes sections 1.2 to 1.5. Which requests make up a batch, and when, is the policies' own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.scheduler import UNBOUNDED


class Extent(NamedTuple):
    """How large a padded batch would be: its rows, its longest prompt and its longest answer."""

    rows: int = 0
    width: int = 0
    answer: int = 0

    def plus(self, request: Request) -> Extent:
        """The extent with one more row."""
        return Extent(
            self.rows + 1, max(self.width, request.prompt_tokens), max(self.answer, request.output_limit)
        )

    def fits(self, kv: KVCache) -> bool:
        """Whether every row, padded to the longest prompt, has room for the longest answer."""
        return self.rows * kv.blocks_for(self.width + self.answer) <= kv.blocks


def extent_of(rows: Sequence[Request]) -> Extent:
    """The extent of a batch of these rows."""
    extent = Extent()
    for row in rows:
        extent = extent.plus(row)
    return extent


class PaddedBatch:
    """At most one batch at a time. All KV blocks are given as it starts and come back as it ends.

    A row that has stopped keeps its seat: it is still computed, as padding, unless ``shrinks``, and in
    any case its memory is held. ``streams``: rows are answered as they stop; otherwise all at the end.

    ``behind`` holds rows with prompt tokens left over: they are fed one by one, beside the decodes of
    the others. Only such an iteration costs O(rows behind); all others cost O(rows that stop).
    """

    def __init__(self, kv: KVCache, *, streams: bool, shrinks: bool = False) -> None:
        self.kv = kv
        self.streams = streams
        self.shrinks = shrinks
        self.group = DecodeGroup(kv.block_size)
        self.rows: dict[Request, bool] = {}  # row -> whether it has stopped
        self.behind: list[Request] = []
        self._going = 0  # rows that have not stopped
        self._cancelled: list[Request] = []
        self._width: int | None = None  # what every prompt is padded to
        self._ends_at = UNBOUNDED  # decode clock at which the batch ends, whoever has stopped by then

    def __len__(self) -> int:
        return len(self.rows)

    def start(self, rows: Sequence[Request], blocks_per_row: int, *, iterations: int | None = None) -> Plan:
        """Begin a batch with its prompts padded to the longest; it ends after ``iterations`` if given."""
        self._seat(rows, blocks_per_row)
        self._width = width = max(row.prompt_tokens for row in rows)
        if iterations is not None:
            self._ends_at = self.group.steps + iterations
        chunks = tuple(PrefillChunk(row, 0, row.prompt_tokens, completes=True) for row in rows)
        return Plan(chunks, self.group, padded_to=width)

    def start_at_shortest(self, rows: Sequence[Request], blocks_per_row: int) -> Plan:
        """Begin a batch with as many tokens of every prompt as the shortest has; the rest is fed later."""
        self._seat(rows, blocks_per_row)
        self._width = None
        shortest = min(row.prompt_tokens for row in rows)
        self.behind = [row for row in rows if row.prompt_tokens > shortest]
        chunks = (PrefillChunk(row, 0, shortest, shortest == row.prompt_tokens) for row in rows)
        return Plan(tuple(chunks), self.group)

    def _seat(self, rows: Sequence[Request], blocks_per_row: int) -> None:
        self.rows = dict.fromkeys(rows, False)
        self._going = len(rows)
        for row in rows:
            row.blocks = self.kv.take(blocks_per_row)

    def plan(self) -> Plan:
        """The next iteration of the batch under way."""
        if self.behind:
            return Plan(tuple(_next_token(row) for row in self.behind), self.group)
        return Plan((), self.group, horizon=1 if self._over() else self._ends_at - self.group.steps)

    def repeat(self, times: int) -> None:
        """Iterations in which nobody stopped."""
        self.group.steps += times

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        """End an iteration; the requests whose answers are now out."""
        group = self.group
        group.steps += 1
        for request, start, tokens, completes in plan.prefills:
            request.computed_tokens = start + tokens
            if completes:
                request.generated_tokens = 1
                group.join(request, self._width)
        if self.behind:
            self.behind = [row for row in self.behind if row.computed_tokens < row.prompt_tokens]
        for row in stopped:
            self._stop(row)
        leaving = self._end() if self._over() else ()
        return stopped if self.streams else leaving

    def cancel(self, row: Request) -> None:
        """A row's answer is no longer wanted: it keeps its seat, as stopped rows do.

        Where it was the last to go on and others await their answers, these come with the next commit.
        """
        self._cancelled.append(row)
        if row in self.behind:
            self.behind.remove(row)
        if not self.rows[row]:
            self._stop(row)
        if self.streams and self._over():
            self._end()

    def _stop(self, row: Request) -> None:
        self.rows[row] = True
        self._going -= 1
        group = self.group
        if row not in group.members:
            return
        if self.shrinks:
            group.leave(row)
        else:
            row.generated_tokens = group.generated(row)
            group.finished += 1

    def _over(self) -> bool:
        if self._ends_at == UNBOUNDED:
            return not self._going
        return self.group.steps >= self._ends_at

    def _end(self) -> list[Request]:
        rows, group = self.rows, self.group
        for row in rows:
            if row in group.members:
                generated = row.generated_tokens  # of the answer itself, not of the padding behind it
                group.leave(row)
                row.generated_tokens = generated
            self.kv.release(row)
        answered = [row for row in rows if row not in self._cancelled]
        group.finished, self.rows, self._cancelled, self._ends_at = 0, {}, [], UNBOUNDED
        return answered


def _next_token(row: Request) -> PrefillChunk:
    start = row.computed_tokens
    return PrefillChunk(row, start, 1, completes=start + 1 == row.prompt_tokens)
