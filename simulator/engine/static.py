"""Static padded batches, as a Hugging Face pipeline with ``batch_size`` runs them.

Source: policy notes section 1.2. Requests are grouped in arrival order, padded to the longest prompt of
the batch, and decoded in lock step; a row that has stopped keeps its seat and is still computed. The
batch ends when every row has stopped (``batch-max``) or, as in the Anyscale benchmark, when every row
has reached one length fixed for all requests (``global-max``: ``min_length = max_length``).

A batch takes what is waiting when the device falls idle, at most ``max_num_seqs``; with all requests
present from the start this is the pipeline's own grouping. Where the whole batch would not fit the
cache the real pipeline crashes; here the batch is cut short instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.scheduler import UNBOUNDED
from simulator.engine.single import refuse_oversized
from simulator.errors import RequestTooLarge


class Static:
    """One padded batch at a time.

    ``global_max_tokens``: the length (padded prompt and answer) that every row is decoded to; None for
    the batch-max rule. ``streams`` is False by default: the pipeline returns whole batches, so a
    request's first token is seen when its batch ends.
    """

    def __init__(
        self,
        kv: KVCache,
        *,
        max_num_seqs: int,
        max_model_len: int,
        global_max_tokens: int | None = None,
        streaming: bool = False,
    ) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.global_max_tokens = global_max_tokens
        self.streams = streaming
        self.group = DecodeGroup(kv.block_size)
        self.waiting: deque[Request] = deque()
        self.batch: dict[Request, bool] = {}  # row -> whether it has stopped
        self._width = 0
        self._ends_at = UNBOUNDED  # decode clock at which the global-max rule ends the batch

    @property
    def busy(self) -> bool:
        return bool(self.batch or self.waiting)

    @property
    def waiting_requests(self) -> int:
        return len(self.waiting)

    @property
    def used_blocks(self) -> int:
        return self.kv.used_blocks

    def add(self, request: Request) -> None:
        refuse_oversized(request, self.kv, self.max_model_len)
        longest = self.global_max_tokens
        if longest is not None and request.limit_tokens > longest:
            raise RequestTooLarge(f"{request.limit_tokens} tokens exceed the global maximum of {longest}")
        if longest is not None and self.kv.blocks_for(longest) > self.kv.blocks:
            raise RequestTooLarge(f"a row of the global maximum of {longest} tokens does not fit the cache")
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """A waiting request leaves; a row of the running batch keeps its seat, as stopped rows do."""
        if request not in self.batch:
            self.waiting.remove(request)
        elif not self.batch[request]:
            self._stop_row(request)

    def plan(self) -> Plan | None:
        if self.batch:
            return Plan((), self.group, horizon=self._ends_at - self.group.steps)
        if not self.waiting:
            return None
        self._form_batch()
        chunks = tuple(PrefillChunk(row, 0, row.prompt_tokens, completes=True) for row in self.batch)
        return Plan(chunks, self.group, padded_to=self._width)

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the group's
        self.group.steps += times

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        group = self.group
        group.steps += 1
        for chunk in plan.prefills:
            row = chunk.request
            row.computed_tokens, row.generated_tokens = chunk.tokens, 1
            group.join(row, self._width)
        for row in stopped:
            self._stop_row(row)
        over = (
            group.finished == len(self.batch)
            if self.global_max_tokens is None
            else group.steps >= self._ends_at
        )
        leaving = self._end_batch() if over else ()
        return stopped if self.streams else leaving

    def _stop_row(self, row: Request) -> None:
        self.batch[row] = True
        self.group.finished += 1
        row.generated_tokens = self.group.generated(row)

    def _form_batch(self) -> None:
        """Take rows in order while the padded batch, at its longest, fits the cache."""
        waiting, kv = self.waiting, self.kv
        width = answer = 0
        rows: list[Request] = []
        while waiting and len(rows) < self.max_num_seqs:
            wider = max(width, waiting[0].prompt_tokens)
            longer = max(answer, waiting[0].output_limit)
            if (len(rows) + 1) * self._row_blocks(wider, longer) > kv.blocks:
                break
            width, answer = wider, longer
            rows.append(waiting.popleft())
        for row in rows:
            row.blocks = kv.take(self._row_blocks(width, answer))
        self._width, self.batch = width, dict.fromkeys(rows, False)
        if self.global_max_tokens is not None:
            self._ends_at = self.group.steps + max(self.global_max_tokens - width, 1)

    def _row_blocks(self, width: int, answer: int) -> int:
        longest = self.global_max_tokens
        return self.kv.blocks_for(width + answer if longest is None else longest)

    def _end_batch(self) -> list[Request]:
        rows = list(self.batch)
        for row in rows:
            generated = row.generated_tokens  # of the answer itself, not of the padding behind it
            self.group.leave(row)
            row.generated_tokens = generated
            self.kv.release(row)
        self.group.finished = 0
        self.batch = {}
        return rows
