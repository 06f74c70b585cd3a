"""Continuous batching as in the vLLM paper and its release 0.1.0 (June 2023): prompts beside decodes.

Source: policy notes section 1.8. Whole prompts and decodes share one iteration and one token limit. Where
KV blocks run out the newest request makes way and is computed again later; its turn comes before all
that wait. Requests of several sequences (parallel samples, beams) move to host memory instead; while any
is there, nobody is admitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import BlockCopy, Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.seats import Seats, next_chunk
from simulator.errors import RequestTooLarge


class Vllm01:
    """First come, first served; nobody is admitted in an iteration that had to evict."""

    streams = True

    def __init__(
        self,
        kv: KVCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        watermark: float = 0.01,
    ) -> None:
        self.kv = kv
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.seats = Seats(kv, max_num_seqs=max_num_seqs, watermark=watermark)
        self.group: DecodeGroup = self.seats.group

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
        refuse_uncomputable(request, self.max_num_batched_tokens)
        self.seats.add(request, self.max_model_len)

    def cancel(self, request: Request) -> None:
        self.seats.cancel(request)

    def plan(self) -> Plan | None:
        if not self.busy:
            return None
        seats = self.seats
        evicted = seats.grow()
        seats.requeue(evicted)
        if evicted.anybody:
            out = tuple(evicted.swapped_out)
            return seats.described(Plan((), self.group, tuple(evicted.preempted), swapped_out=out))
        back = self._swap_in() if seats.swap else ()
        chunks = self._admit()
        horizon = 1 if chunks or back else seats.horizon()
        return seats.described(Plan(tuple(chunks), self.group, horizon=horizon, swapped_in=back))

    def _swap_in(self) -> tuple[BlockCopy, ...]:
        """Bring back, in order, whom the host holds and who fits."""
        back = list[BlockCopy]()
        while copy := self.seats.swap_in():
            back.append(copy)
        return tuple(back)

    def _admit(self) -> list[PrefillChunk]:
        """Whole prompts, in order, while decodes and prompts together stay within the token limit."""
        seats, chunks = self.seats, list[PrefillChunk]()
        if seats.swap and seats.swap.held:
            return chunks
        budget = self.max_num_batched_tokens - len(self.group.members)
        while seats.head_fits() and seats.waiting[0].total_tokens <= budget:
            chunks.append(next_chunk(seats.admit(), budget))
            budget -= chunks[-1].tokens
        return chunks

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the group's
        self.seats.repeat(times)

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        return self.seats.commit(plan, stopped)


def refuse_uncomputable(request: Request, max_num_batched_tokens: int) -> None:
    """Refuse what could not be computed again in one piece, should it be evicted near its limit.

    Requests of several sequences are computed once: evicted, they go to host memory.
    """
    alone, limit = request.decoding.sequences == 1, max_num_batched_tokens
    longest = request.limit_tokens - 1 if alone else request.prompt_tokens
    if longest > limit:
        text = f"{longest} tokens to (re)compute exceed max_num_batched_tokens {limit}, unchunked"
        raise RequestTooLarge(text)
