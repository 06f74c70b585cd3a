"""Continuous batching as in vLLM 0.2 to 0.6 (V0): prompts first, or chunked prompts beside decodes.

Source: policy notes section 1.9, read from release 0.6.1 (vllm/core/scheduler.py, block_manager_v1.py).
Not modelled: ``delay_factor`` (0 by default; it needs the time, which no scheduler sees), prefix caching
(off by default in V0), and lookahead slots of speculative decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import BlockCopy, Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.seats import Evicted, Seats, next_chunk
from simulator.engine.swap_space import SwapSpace
from simulator.engine.vllm_0_1 import refuse_uncomputable


class VllmV0:
    """First come, first served, with a choice of how to batch and of what becomes of the evicted.

    By default an iteration computes prompts or decodes, never both, and prompts come first: a burst of
    arrivals stalls all decodes. With ``chunked_prefill`` decodes come first and prompts fill what they
    leave of the token budget; a chunked prompt still holds blocks for all of its tokens from the start.

    ``swap_blocks``: KV blocks of host memory; evicted requests go there if they fit, and come back before
    anybody else is admitted. None: they are computed again. Without room on the host vLLM aborts; here
    that request is computed again. Requests of several sequences always go to the host (see `Seats`).
    ``padded_budget``: a batch of prompts counts as rows times longest row, as up to 0.2. ``eager``: see
    `Seats`; False is the second block manager, which counts exactly.

    In chunked mode vLLM puts requests that were swapped in before all others of its running list; here
    they queue up behind, which only matters for who is evicted next.
    """

    streams = True

    def __init__(
        self,
        kv: KVCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        chunked_prefill: bool = False,
        watermark: float = 0.01,
        swap_blocks: int | None = None,
        padded_budget: bool = False,
        eager: bool = True,
    ) -> None:
        self.kv = kv
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.chunked_prefill = chunked_prefill
        self.padded_budget = padded_budget
        swap = None if swap_blocks is None else SwapSpace(swap_blocks)
        self.seats = Seats(kv, max_num_seqs=max_num_seqs, watermark=watermark, eager=eager, swap=swap)
        self.group: DecodeGroup = self.seats.group

    @property
    def swap(self) -> SwapSpace | None:
        """Host memory for the evicted; None where all of them are computed again."""
        return self.seats.swap

    @property
    def running(self) -> dict[Request, None]:
        """Seated requests in order of admission."""
        return self.seats.running

    @property
    def busy(self) -> bool:
        return self.seats.busy

    @property
    def waiting_requests(self) -> int:
        return self.seats.seatless

    @property
    def used_blocks(self) -> int:
        return self.kv.used_blocks

    def add(self, request: Request) -> None:
        if not self.chunked_prefill:
            refuse_uncomputable(request, self.max_num_batched_tokens)
        self.seats.add(request, self.max_model_len)

    def cancel(self, request: Request) -> None:
        self.seats.cancel(request)

    def plan(self) -> Plan | None:
        if not self.busy:
            return None
        return self._plan_chunked() if self.chunked_prefill else self._plan_prompts_first()

    def _plan_prompts_first(self) -> Plan:
        if self.swap is None or not self.swap.held:
            chunks = self._admit_whole()
            if chunks:
                plan = Plan(tuple(chunks), self.group, paused=bool(self.group.members))
                return self.seats.described(plan)
        evicted = self.seats.grow()
        self.seats.requeue(evicted)
        back, _ = self._swap_in(evicted, [], self.max_num_batched_tokens)
        return self._plan([], evicted, back)

    def _admit_whole(self) -> list[PrefillChunk]:
        """Whole prompts, in order, within the token limit."""
        seats, limit, chunks = self.seats, self.max_num_batched_tokens, list[PrefillChunk]()
        tokens = longest = 0
        while seats.head_fits():
            known = seats.waiting[0].total_tokens
            longest = max(longest, known)
            tokens = (len(chunks) + 1) * longest if self.padded_budget else tokens + known
            if tokens > limit:
                break
            chunks.append(next_chunk(seats.admit(), known))
        return chunks

    def _plan_chunked(self) -> Plan:
        """Who was evicted queues up again only afterwards, so a smaller request may overtake it."""
        seats = self.seats
        evicted = seats.grow()
        budget = self.max_num_batched_tokens - len(self.group.members)
        chunks = seats.continue_prefills(budget)
        budget -= sum(chunk.tokens for chunk in chunks)
        back, budget = self._swap_in(evicted, chunks, budget)
        seats.admit_chunks(chunks, budget)
        seats.requeue(evicted)
        return self._plan(chunks, evicted, back)

    def _swap_in(
        self, evicted: Evicted, chunks: list[PrefillChunk], budget: int
    ) -> tuple[list[BlockCopy], int]:
        """Bring back whom the host holds, unless somebody had to go; who came, and the budget left."""
        back: list[BlockCopy] = []
        while budget > 0 and not evicted.anybody:
            copy = self.seats.swap_in()
            if copy is None:
                break
            back.append(copy)
            rows = self.seats.decoding_rows(copy.request)
            if rows:
                budget -= rows
            else:
                chunks.append(next_chunk(copy.request, budget))
                budget -= chunks[-1].tokens
        return back, budget

    def _plan(self, chunks: list[PrefillChunk], evicted: Evicted, back: list[BlockCopy]) -> Plan:
        quiet = not (chunks or back or evicted.anybody)
        plan = Plan(
            tuple(chunks),
            self.group,
            tuple(evicted.preempted),
            horizon=self.seats.horizon() if quiet else 1,
            swapped_out=tuple(evicted.swapped_out),
            swapped_in=tuple(back),
        )
        return self.seats.described(plan)

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the group's
        self.seats.repeat(times)

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        return self.seats.commit(plan, stopped)
