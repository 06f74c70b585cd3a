"""Seats of an engine with paged KV that evicts the newest: what vLLM before V1 and Sarathi-Serve share.

Source: policy notes sections 1.8, 1.9 and 1.12. A request gets blocks for all its known tokens when it is
admitted, if a watermark of blocks stays free; then one more block whenever its last one is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import BlockCopy, Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.swap_space import SwapSpace
from simulator.errors import RequestTooLarge


class Evicted(NamedTuple):
    """Who made way in one iteration, newest first: to be computed again, or copied to the host."""

    preempted: list[Request]
    swapped_out: list[BlockCopy]

    @property
    def anybody(self) -> bool:
        """Whether somebody had to go."""
        return bool(self.preempted or self.swapped_out)


class Seats:
    """The waiting, the running and their KV blocks.

    ``running`` is in order of admission: its last key is the newest and the next victim. ``prefilling``
    are those with known tokens still to compute, in the same order. ``eager``: a row needs a free block
    even where its last one has room, as in vLLM's first block manager and in Sarathi-Serve, so the
    newest makes way slightly early.
    """

    def __init__(
        self,
        kv: KVCache,
        *,
        max_num_seqs: int,
        watermark: float,
        eager: bool = True,
        swap: SwapSpace | None = None,
    ) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.watermark_blocks = int(watermark * kv.blocks)
        self.eager = eager
        self.swap = swap
        self.group = DecodeGroup(kv.block_size)
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self.prefilling: dict[Request, None] = {}
        self._blocked_at = -1  # kv.changes when the head of the queue last did not fit
        self._taken = 0

    @property
    def busy(self) -> bool:
        """Whether any request waits, runs or is swapped out."""
        return bool(self.waiting or self.running or (self.swap and self.swap.held))

    @property
    def seatless(self) -> int:
        """Requests without a seat: waiting, or swapped out."""
        return len(self.waiting) + (len(self.swap.held) if self.swap else 0)

    def add(self, request: Request, max_model_len: int) -> None:
        """Queue up a request; `RequestTooLarge` if it could not run to its limit, even alone."""
        limit, kv = request.limit_tokens, self.kv
        if limit > max_model_len:
            text = f"{limit} tokens (prompt and output limit) exceed max_model_len {max_model_len}"
            raise RequestTooLarge(text)
        need = kv.blocks_for(limit - 1)  # the last token's KV is never stored
        reserve = max(self.watermark_blocks, int(self.eager)) + (self.swap is not None)
        if need + reserve > kv.blocks:
            beside = f" beside {reserve} that must stay free" if reserve else ""
            raise RequestTooLarge(f"needs {need} KV blocks{beside}, the cache has {kv.blocks}")
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Forget a request wherever it is."""
        if request in self.running:
            self._leave(request)
            self.kv.release(request)
        elif self.swap and request in self.swap.held:
            self.swap.drop(request)
        else:
            self.waiting.remove(request)
        self._blocked_at = -1

    def head_fits(self) -> bool:
        """Whether the first waiting request has a seat, and blocks above the watermark."""
        kv = self.kv
        if not self.waiting or len(self.running) >= self.max_num_seqs or self._blocked_at == kv.changes:
            return False
        if self.kv.blocks_for(self.waiting[0].total_tokens) + self.watermark_blocks <= kv.free_blocks:
            return True
        self._blocked_at = kv.changes
        return False

    def admit(self) -> Request:
        """Seat the first waiting request, with blocks for all its known tokens."""
        request = self.waiting.popleft()
        self._seat(request, self.kv.blocks_for(request.total_tokens))
        self.prefilling[request] = None
        return request

    def _seat(self, request: Request, blocks: int) -> None:
        request.blocks = self.kv.take(blocks)
        self._taken += 1
        request.seat = self._taken
        self.running[request] = None

    def swap_in(self) -> BlockCopy | None:
        """Bring back the request that was swapped out first, if it fits above the watermark."""
        swap, kv = self.swap, self.kv
        if swap is None or not swap.held or len(self.running) >= self.max_num_seqs:
            return None
        request = next(iter(swap.held))
        if swap.held[request] + 1 + self.watermark_blocks > kv.free_blocks:
            return None
        copy = BlockCopy(request, swap.drop(request))
        self._seat(request, copy.blocks)
        if not request.generated_tokens or request.computed_tokens < request.total_tokens - 1:
            self.prefilling[request] = None
            return copy
        self.group.join(request)
        if request in self.group.due():
            kv.grow((request,))
        return copy

    def continue_prefills(self, budget: int) -> list[PrefillChunk]:
        """Chunks for the seated requests that are not fully computed, in order, within a token budget."""
        chunks = []
        for request in self.prefilling:
            if budget <= 0:
                break
            chunks.append(next_chunk(request, budget))
            budget -= chunks[-1].tokens
        return chunks

    def admit_chunks(self, chunks: list[PrefillChunk], budget: int) -> None:
        """Admit in order while the budget lasts, cutting the last prompt short where it must."""
        while budget > 0 and self.head_fits():
            chunks.append(next_chunk(self.admit(), budget))
            budget -= chunks[-1].tokens

    def grow(self) -> Evicted:
        """Give every decoding request its next token's slot; where blocks run out the newest make way."""
        due = self.group.due()
        if len(due) + self.eager <= self.kv.free_blocks or not self.group.members:
            if due:
                self.kv.grow(due)
            return Evicted([], [])
        return self._grow_in_order(sorted(due, key=_seat_of))

    def _grow_in_order(self, due: Sequence[Request]) -> Evicted:
        kv, evicted = self.kv, Evicted([], [])
        last_seat = 0
        for request in due:
            while not kv.free_blocks and request in self.running:
                self._evict_newest(evicted)
            if request not in self.running:
                return evicted  # so are all newer ones
            kv.grow((request,))
            last_seat = request.seat
        if self.eager and not kv.free_blocks and self._decodes_after(last_seat):
            self._evict_newest(evicted)
        return evicted

    def _decodes_after(self, seat: int) -> bool:
        newest = next((r for r in reversed(self.running) if r not in self.prefilling), None)
        return newest is not None and newest.seat > seat

    def _evict_newest(self, evicted: Evicted) -> None:
        victim = next(reversed(self.running))
        blocks = len(victim.blocks)
        self._leave(victim)
        self.kv.release(victim)
        victim.preemptions += 1
        if self.swap and self.swap.store(victim, blocks):
            evicted.swapped_out.append(BlockCopy(victim, blocks))
        else:
            victim.computed_tokens = 0
            evicted.preempted.append(victim)

    def requeue(self, evicted: Evicted) -> None:
        """Put the evicted that must be computed again in front of the queue, the oldest foremost."""
        self.waiting.extendleft(evicted.preempted)

    def horizon(self) -> int:
        """How often the decoding requests may run, the first time included, before blocks run out."""
        return 1 + self.group.steps_within(self.kv.free_blocks - self.eager)

    def repeat(self, times: int) -> None:
        """Let the decoding requests run that often and take the blocks that they need."""
        growing = self.group.advance(times)
        if growing:
            self.kv.grow(growing)

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        """End an iteration: computed prompts start to decode, the stopped give up seat and blocks."""
        if not plan.paused:
            self.group.steps += 1
        plan.end_prefills(self.prefilling)
        for request in stopped:
            self._leave(request)
            self.kv.release(request)
        return stopped

    def _leave(self, request: Request) -> None:
        del self.running[request]
        if request in self.group.members:
            self.group.leave(request)
        else:
            self.prefilling.pop(request, None)


def next_chunk(request: Request, budget: int) -> PrefillChunk:
    """The next tokens of a request that are known and not computed, within a budget."""
    start, known = request.computed_tokens, request.total_tokens
    tokens = min(known - start, budget)
    return PrefillChunk(request, start, tokens, start + tokens == known)


def _seat_of(request: Request) -> int:
    return request.seat
