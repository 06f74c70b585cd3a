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

from simulator.engine.kv_cache import KVCache
from simulator.engine.padded_batch import Extent, PaddedBatch
from simulator.engine.plan import Plan
from simulator.engine.request import Request
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
        self.waiting: deque[Request] = deque()
        self.batch = PaddedBatch(kv, streams=streaming)
        self.group = self.batch.group

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
        if request in self.batch.rows:
            self.batch.cancel(request)
        else:
            self.waiting.remove(request)

    def plan(self) -> Plan | None:
        if self.batch:
            return self.batch.plan()
        if not self.waiting:
            return None
        return self._start_batch()

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the batch's
        self.batch.repeat(times)

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        return self.batch.commit(plan, stopped)

    def _start_batch(self) -> Plan:
        """Take rows in order while the padded batch, at its longest, fits the cache."""
        waiting, extent = self.waiting, Extent()
        rows: list[Request] = []
        while waiting and len(rows) < self.max_num_seqs:
            grown = extent.plus(waiting[0])
            if grown.rows * self._row_blocks(grown) > self.kv.blocks:
                break
            extent = grown
            rows.append(waiting.popleft())
        longest = self.global_max_tokens
        decodes = None if longest is None else max(longest - extent.width, 1)
        return self.batch.start(rows, self._row_blocks(extent), iterations=decodes)

    def _row_blocks(self, extent: Extent) -> int:
        longest = self.global_max_tokens
        return self.kv.blocks_for(extent.width + extent.answer if longest is None else longest)
