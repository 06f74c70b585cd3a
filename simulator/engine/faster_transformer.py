"""Request-level batching as FasterTransformer was run in the papers that compare with it.

Source: policy notes section 1.3; Orca (OSDI 2022), sections 3.1 and 6.2; the emulation in Sarathi's and
Vidur's simulators. Whenever the engine is idle it takes the earliest requests that wait, at most
``max_num_seqs``, without waiting for more, and runs them to the last token. Memory is given to every row
for the longest sequence of the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from simulator.engine.kv_cache import KVCache
from simulator.engine.padded_batch import Extent, PaddedBatch
from simulator.engine.plan import Plan
from simulator.engine.request import Request
from simulator.engine.single import refuse_beyond_model
from simulator.errors import RequestTooLarge


class FasterTransformer:
    """One batch at a time, from the earliest requests.

    ``pads_prompts``: the first iteration computes every prompt, padded to the longest. Otherwise, as in
    the engine itself, it computes as many tokens of each as the shortest prompt has; the other rows are
    then fed the rest of their prompts one token per iteration, beside the decodes of the first. Those
    iterations cost O(rows still fed) and never repeat.
    ``shrinks``: rows that have stopped are no longer computed and are answered at once, as in Vidur's
    emulation; they hold their memory until the batch has ended all the same.
    """

    def __init__(
        self,
        kv: KVCache,
        *,
        max_num_seqs: int,
        max_model_len: int,
        pads_prompts: bool = False,
        shrinks: bool = False,
    ) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.pads_prompts = pads_prompts
        self.streams = shrinks
        self.waiting: deque[Request] = deque()
        self.batch = PaddedBatch(kv, streams=shrinks, shrinks=shrinks)
        self.group = self.batch.group
        self._row_blocks = kv.blocks_for(max_model_len)

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
        refuse_beyond_model(request, self.max_model_len)
        if self._row_blocks > self.kv.blocks:
            raise RequestTooLarge(
                f"every row reserves {self._row_blocks} KV blocks for max_model_len {self.max_model_len}, "
                f"the cache has {self.kv.blocks}"
            )
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
        rows = self._take_rows()
        if self.pads_prompts:
            return self.batch.start(rows, self._row_blocks)
        return self.batch.start_at_shortest(rows, self._row_blocks)

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the batch's
        self.batch.repeat(times)

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        return self.batch.commit(plan, stopped)

    def _take_rows(self) -> list[Request]:
        """The earliest requests, cut short where a padded row would outgrow what is reserved for it."""
        waiting, rows, extent = self.waiting, list[Request](), Extent()
        most = min(self.max_num_seqs, self.kv.blocks // self._row_blocks)
        while waiting and len(rows) < most:
            extent = extent.plus(waiting[0])
            if self.pads_prompts and extent.width + extent.answer > self.max_model_len:
                break
            rows.append(waiting.popleft())
        return rows
