"""Seats of an engine with paged KV that evicts the newest: what vLLM before V1 and Sarathi-Serve share.

Source: policy notes sections 1.8, 1.9 and 1.12. A request gets blocks for all its known tokens when it is
admitted, if a watermark of blocks stays free; then one more block whenever its last one is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.gangs import Gangs
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import BlockCopy, Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.sequence_group import SequenceGroup, together
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

    A request of several sequences stands in all these as its first one. It is seated and evicted as a
    whole, always to host memory; where that is full vLLM aborts, here it is overdrawn. ``rows`` counts the
    seated sequences, ``widest`` the most that a request has had: beyond one, `Gangs` take part.
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
        self.rows = 0
        self.widest = 1
        self.gangs = Gangs(kv, self.group)
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
        sequences = request.decoding.sequences
        if sequences > 1:
            if sequences > self.max_num_seqs:
                text = f"its {sequences} sequences exceed max_num_seqs {self.max_num_seqs}"
                raise RequestTooLarge(text)
            need += (sequences - 1) * (need - request.prompt_tokens // kv.block_size)
            reserve = self.watermark_blocks + sequences
        if need + reserve > kv.blocks:
            beside = f" beside {reserve} that must stay free" if reserve else ""
            raise RequestTooLarge(f"needs {need} KV blocks{beside}, the cache has {kv.blocks}")
        if sequences > 1:
            self._enrol(request)
        self.waiting.append(request)

    def _enrol(self, request: Request) -> None:
        """From now on requests have several sequences, which only host memory can take as they are."""
        SequenceGroup(request, gang=True)
        self.widest = max(self.widest, request.decoding.sequences)
        if self.swap is None:
            self.swap = SwapSpace(0)

    def cancel(self, request: Request) -> None:
        """Forget a request wherever it is."""
        if request in self.running:
            self._vacate(request)
        elif self.swap and request in self.swap.held:
            self.swap.drop(request)
        else:
            self.waiting.remove(request)
        self._blocked_at = -1

    def head_fits(self) -> bool:
        """Whether the first waiting request has a seat, and blocks above the watermark."""
        kv = self.kv
        if not self.waiting or self.rows >= self.max_num_seqs or self._blocked_at == kv.changes:
            return False
        head = self.waiting[0]
        if self.rows + head.decoding.sequences > self.max_num_seqs:
            return False
        if kv.blocks_for(head.total_tokens) + self.watermark_blocks <= kv.free_blocks:
            return True
        self._blocked_at = kv.changes
        return False

    def admit(self) -> Request:
        """Seat the first waiting request, with blocks for all its known tokens."""
        request = self.waiting.popleft()
        request.blocks = self.kv.take(self.kv.blocks_for(request.total_tokens))
        self._seat(request, request.decoding.sequences)
        self.prefilling[request] = None
        return request

    def _seat(self, request: Request, rows: int) -> None:
        self._taken += 1
        request.seat = self._taken
        self.running[request] = None
        self.rows += rows

    def swap_in(self) -> BlockCopy | None:
        """Bring back the request that was swapped out first, if it fits above the watermark."""
        swap, kv = self.swap, self.kv
        if swap is None or not swap.held:
            return None
        request = next(iter(swap.held))
        rows = len(together(request))
        if self.rows + rows > self.max_num_seqs:
            return None
        if swap.held[request] + rows + self.watermark_blocks > kv.free_blocks:
            return None
        copy = BlockCopy(request, swap.drop(request))
        if request.group is None:
            request.blocks = kv.take(copy.blocks)
        else:
            self.gangs.unpack(request.group)
        self._seat(request, rows)
        row = together(request)[0]
        if not row.generated_tokens or row.computed_tokens < row.total_tokens - 1:
            self.prefilling[request] = None
            return copy
        self.gangs.resume(request)
        return copy

    def decoding_rows(self, request: Request) -> int:
        """How many rows of a seated request decode."""
        return 0 if request in self.prefilling else len(together(request))

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
        if self.widest > 1:
            return self._grow_gangs()
        due = self.group.due()
        if len(due) + self.eager <= self.kv.free_blocks or not self.group.members:
            if due:
                self.kv.grow(due)
            return Evicted([], [])
        return self._grow_in_order(sorted(due, key=_seat_of))

    def _grow_gangs(self) -> Evicted:
        """The same where requests may have several rows: a block for each row, or as many as they take."""
        gangs, kv, evicted = self.gangs, self.kv, Evicted([], [])
        if not self.group.members:
            return evicted
        if gangs.growth() + self._reserve <= kv.free_blocks:
            gangs.grow_all()
            return evicted
        for request in list(self.running):
            if request in self.prefilling:
                continue
            while request in self.running:
                if (self.decoding_rows(request) if self.eager else gangs.need(request)) <= kv.free_blocks:
                    gangs.grow(request)
                    break
                self._evict_newest(evicted)
        return evicted

    @property
    def _reserve(self) -> int:
        """Free blocks that are wanted beyond those that are taken, by any one request."""
        return self.widest if self.eager else 0

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
        self._unseat(victim)
        blocks = self.gangs.pack(victim)
        victim.preemptions += 1
        if self.swap and self.swap.store(victim, blocks, must=victim.group is not None):
            evicted.swapped_out.append(BlockCopy(victim, blocks))
        else:
            victim.computed_tokens = 0
            evicted.preempted.append(victim)

    def requeue(self, evicted: Evicted) -> None:
        """Put the evicted that must be computed again in front of the queue, the oldest foremost."""
        self.waiting.extendleft(evicted.preempted)

    def horizon(self) -> int:
        """How often the decoding requests may run, the first time included, before blocks run out."""
        if self.gangs.searching or self.gangs.copies:
            return 1
        return 1 + self.group.steps_within(self.kv.free_blocks - self._reserve)

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
        if self.widest > 1:
            return self._commit_gangs(plan, stopped)
        for request in stopped:
            self._vacate(request)
        return stopped

    def _commit_gangs(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        """Where requests may have several sequences, one completes when its last sequence has stopped."""
        gangs, answered = self.gangs, list[Request]()
        for chunk in plan.prefills:
            if chunk.completes and chunk.request.group is not None:
                gangs.spread(chunk.request)
        gangs.branch()
        for sequence in stopped:
            group = sequence.group
            if group is None:
                self._vacate(sequence)
                answered.append(sequence)
                continue
            request = group.sequences[0]
            self.rows -= 1
            self.group.leave(sequence)
            self.kv.release(sequence)
            if group.stop(sequence):
                del self.running[request]
                gangs.forget(request)
                answered.append(request)
        return answered

    def _vacate(self, request: Request) -> None:
        """Give up a request's seat and blocks."""
        self._unseat(request)
        if request.group is not None:
            self.gangs.release(request)
            return
        if request in self.group.members:
            self.group.leave(request)
        self.kv.release(request)

    def _unseat(self, request: Request) -> None:
        del self.running[request]
        self.prefilling.pop(request, None)
        self.rows -= len(together(request))

    def described(self, plan: Plan) -> Plan:
        """The plan, with what the sequences of requests share and copy, where there are such requests."""
        if self.widest == 1:
            return plan
        return plan._replace(copies=self.gangs.take_copies(), saved_blocks=self.kv.saved_blocks)


def next_chunk(request: Request, budget: int) -> PrefillChunk:
    """The next tokens of a request that are known and not computed, within a budget."""
    start, known = request.computed_tokens, request.total_tokens
    tokens = min(known - start, budget)
    return PrefillChunk(request, start, tokens, start + tokens == known)


def _seat_of(request: Request) -> int:
    return request.seat
