"""Iteration-level scheduling with reserved, contiguous KV memory: Orca.

Source: Orca (OSDI 2022), algorithm 1, and the three reservation rules that the vLLM paper
(arXiv:2309.06180, section 6.1) compares with; policy notes sections 1.6 and 1.7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from simulator.engine.buddy import BuddyAllocator
from simulator.engine.decode_group import DecodeGroup
from simulator.engine.plan import Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.scheduler import UNBOUNDED
from simulator.errors import RequestTooLarge


def reserve_oracle(request: Request, max_model_len: int) -> int:  # noqa: ARG001 one signature for the three
    """Prompt and output limit exactly; "oracle" where the declared limit is the true length."""
    return request.limit_tokens


def reserve_pow2(request: Request, max_model_len: int) -> int:
    """Prompt and the output limit rounded up to a power of two, within the model's length."""
    rounded = 1 << (request.output_limit - 1).bit_length()
    return min(request.prompt_tokens + rounded, max(max_model_len, request.limit_tokens))


def reserve_max(request: Request, max_model_len: int) -> int:  # noqa: ARG001
    """The model's maximum length, whatever was asked for."""
    return max_model_len


RESERVATIONS: dict[str, Callable[[Request, int], int]] = {
    "oracle": reserve_oracle,
    "pow2": reserve_pow2,
    "max": reserve_max,
}


class Orca:
    """Requests join and leave between iterations; whole prompts run beside decodes, nothing is padded.

    A request reserves its slots when it is first selected and holds them to the end, so nothing is ever
    preempted. Selection stops at the first request that does not fit: later arrivals never overtake.
    """

    streams = True

    def __init__(
        self,
        slots: BuddyAllocator,
        *,
        max_num_seqs: int,
        max_model_len: int,
        reservation: str = "max",
    ) -> None:
        self.slots = slots
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.reserve = RESERVATIONS[reservation]
        self.group = DecodeGroup(slots.block_size)
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self._blocked = False  # until a reservation is given back

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def waiting_requests(self) -> int:
        return len(self.waiting)

    @property
    def used_blocks(self) -> int:
        return self.slots.used_blocks

    def add(self, request: Request) -> None:
        limit, slots = self.reserve(request, self.max_model_len), self.slots
        if request.limit_tokens > self.max_model_len:
            tokens = f"{request.limit_tokens} tokens (prompt and output limit)"
            raise RequestTooLarge(f"{tokens} exceed max_model_len {self.max_model_len}")
        if slots.blocks_for(limit) > slots.largest_chunk:
            size = slots.block_size
            text = (
                f"reserves {limit} contiguous KV slots, the largest chunk has {slots.largest_chunk * size}"
            )
            raise RequestTooLarge(text)
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        if request in self.running:
            self._release(request)
        else:
            self.waiting.remove(request)
            self._blocked = False

    def plan(self) -> Plan | None:
        chunks = self._select()
        if not chunks and not self.running:
            return None
        return Plan(tuple(chunks), self.group, horizon=1 if chunks else UNBOUNDED)

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the group's
        self.group.steps += times

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        self.group.steps += 1
        plan.end_prefills()
        for request in stopped:
            self._release(request)
        return stopped

    def _select(self) -> list[PrefillChunk]:
        chunks: list[PrefillChunk] = []
        waiting = self.waiting
        while waiting and not self._blocked and len(self.running) < self.max_num_seqs:
            request = waiting[0]
            blocks = self.slots.take(self.slots.blocks_for(self.reserve(request, self.max_model_len)))
            if blocks is None:
                self._blocked = True
                break
            waiting.popleft()
            request.blocks = blocks
            self.running[request] = None
            chunks.append(PrefillChunk(request, 0, request.prompt_tokens, completes=True))
        return chunks

    def _release(self, request: Request) -> None:
        del self.running[request]
        self.group.leave(request)
        self.slots.release(request)
        self._blocked = False
