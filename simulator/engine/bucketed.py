"""Padded batches of requests of similar length.

Source: policy notes section 1.4, variants (a), fixed bucket edges, and (b), a budget of padded tokens
(the rule of TGI without paged attention and of vLLM up to 0.2); no paper is the canonical one. Sorting
removes the padding of prompts only: answers still end when they end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from simulator.engine.kv_cache import KVCache
from simulator.engine.padded_batch import Extent, PaddedBatch
from simulator.engine.plan import Plan
from simulator.engine.request import Request
from simulator.engine.single import refuse_oversized
from simulator.errors import RequestTooLarge


class Bucketed:
    """A queue per bucket of lengths; when the device is idle one bucket sends its oldest requests.

    ``edges``: the longest length of every bucket but the last, ascending; without any there is one queue.
    A bucket is ready when it holds ``max_num_seqs`` requests or its oldest has waited ``timeout_ns``; of
    the ready ones the bucket with the oldest head goes first, so none starves.
    ``max_padded_tokens``: a batch ends before rows times longest length would exceed it, as it does
    before the padded rows would outgrow the cache. Variant (b) is this bound, no edges and no timeout.
    ``counts_answers``: a length is prompt and output limit together, else the prompt alone.
    Rows are padded to the longest of their batch, not to the edge of the bucket.
    """

    def __init__(
        self,
        kv: KVCache,
        *,
        max_num_seqs: int,
        max_model_len: int,
        edges: Sequence[int] = (),
        timeout_ns: int = 0,
        max_padded_tokens: int | None = None,
        counts_answers: bool = False,
        streaming: bool = False,
    ) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.edges = tuple(edges)
        self.timeout_ns = timeout_ns
        self.max_padded_tokens = max_padded_tokens
        self.counts_answers = counts_answers
        self.streams = streaming
        self.buckets: list[deque[Request]] = [deque() for _ in range(len(edges) + 1)]
        self.batch = PaddedBatch(kv, streams=streaming)
        self.group = self.batch.group
        self.waiting_requests = 0
        self._now_ns = 0

    @property
    def busy(self) -> bool:
        return bool(self.batch or self.waiting_requests)

    @property
    def used_blocks(self) -> int:
        return self.kv.used_blocks

    @property
    def wake_at_ns(self) -> int | None:
        heads = [bucket[0].arrival_ns for bucket in self.buckets if bucket]
        return min(heads) + self.timeout_ns if heads else None

    def tell(self, now_ns: int) -> None:
        self._now_ns = now_ns

    def take_expired(self) -> Sequence[tuple[Request, str]]:
        """Nobody: a timeout here only ends the wait for a full batch."""
        return ()

    def add(self, request: Request) -> None:
        refuse_oversized(request, self.kv, self.max_model_len)
        length, budget = self._length(request), self.max_padded_tokens
        if budget is not None and length > budget:
            raise RequestTooLarge(f"{length} tokens exceed the budget of {budget} padded tokens of a batch")
        self._bucket(request).append(request)
        self.waiting_requests += 1

    def cancel(self, request: Request) -> None:
        """A waiting request leaves; a row of the running batch keeps its seat, as stopped rows do."""
        if request in self.batch.rows:
            self.batch.cancel(request)
        else:
            self._bucket(request).remove(request)
            self.waiting_requests -= 1

    def plan(self) -> Plan | None:
        if self.batch:
            return self.batch.plan()
        ready = [bucket for bucket in self.buckets if bucket and self._ready(bucket)]
        if not ready:
            return None
        return self._start_batch(min(ready, key=_age_of_head))

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the batch's
        self.batch.repeat(times)

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        return self.batch.commit(plan, stopped)

    def _length(self, request: Request) -> int:
        return request.limit_tokens if self.counts_answers else request.prompt_tokens

    def _bucket(self, request: Request) -> deque[Request]:
        return self.buckets[bisect_left(self.edges, self._length(request))]

    def _ready(self, bucket: deque[Request]) -> bool:
        waited_ns = self._now_ns - bucket[0].arrival_ns
        return len(bucket) >= self.max_num_seqs or waited_ns >= self.timeout_ns

    def _start_batch(self, bucket: deque[Request]) -> Plan:
        rows, extent, longest = list[Request](), Extent(), 0
        while bucket and len(rows) < self.max_num_seqs:
            grown = extent.plus(bucket[0])
            longest = max(longest, self._length(bucket[0]))
            if not grown.fits(self.kv) or self._over_budget(grown.rows * longest):
                break
            extent = grown
            rows.append(bucket.popleft())
        self.waiting_requests -= len(rows)
        return self.batch.start(rows, self.kv.blocks_for(extent.width + extent.answer))

    def _over_budget(self, padded_tokens: int) -> bool:
        return self.max_padded_tokens is not None and padded_tokens > self.max_padded_tokens


def _age_of_head(bucket: deque[Request]) -> tuple[int, int]:
    return bucket[0].arrival_ns, bucket[0].id
