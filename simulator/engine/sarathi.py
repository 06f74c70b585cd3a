"""Chunked prefill and stall-free batching: Sarathi-Serve, and its two ablations.

Source: Sarathi-Serve (OSDI 2024), algorithm 3 and table 4, and the repository's schedulers
(sarathi_scheduler.py, simple_chunking_scheduler.py); policy notes section 1.12.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.scheduler import UNBOUNDED
from simulator.engine.seats import Evicted, Seats


class Batching(Enum):
    """What an iteration may hold. Each of the two single techniques is an ablation of the combination."""

    COMBINED = "combined"  # decodes, and prompt chunks in what they leave of the token budget
    HYBRID_ONLY = "hybrid-only"  # decodes and whole prompts, whatever their number
    CHUNKED_ONLY = "chunked-only"  # prompt chunks or decodes, in turns


class Sarathi:
    """First come, first served. Decodes are never limited by the token budget; its rest goes to prompts.

    A prompt holds blocks for all of its tokens from its first chunk on. Where blocks run out the newest
    request makes way and is computed again, at once if it fits.
    """

    streams = True

    def __init__(
        self,
        kv: KVCache,
        *,
        max_num_seqs: int,
        token_budget: int,
        max_model_len: int,
        batching: str = "combined",
        watermark: float = 0.01,
    ) -> None:
        self.kv = kv
        self.batching = Batching(batching)
        self.token_budget = UNBOUNDED if self.batching is Batching.HYBRID_ONLY else token_budget
        self.max_model_len = max_model_len
        self.seats = Seats(kv, max_num_seqs=max_num_seqs, watermark=watermark)
        self.group: DecodeGroup = self.seats.group
        self._decodes_turn = False

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
        self.seats.add(request, self.max_model_len)

    def cancel(self, request: Request) -> None:
        self.seats.cancel(request)

    def plan(self) -> Plan | None:
        if not self.busy:
            return None
        return self._plan_turn() if self.batching is Batching.CHUNKED_ONLY else self._plan_mixed()

    def _plan_mixed(self) -> Plan:
        seats = self.seats
        evicted = seats.grow()
        seats.requeue(evicted)
        budget = self.token_budget - len(self.group.members)
        chunks = seats.continue_prefills(budget)
        seats.admit_chunks(chunks, budget - sum(chunk.tokens for chunk in chunks))
        quiet = not chunks and not evicted.anybody
        return self._plan(chunks, evicted, seats.horizon() if quiet else 1)

    def _plan_turn(self) -> Plan:
        """Chunks of seated prompts, else of new ones, else decodes; after chunks the decodes are next."""
        seats, decodes_turn = self.seats, self._decodes_turn and bool(self.group.members)
        self._decodes_turn = False
        if not decodes_turn:
            chunks = seats.continue_prefills(self.token_budget)
            if not chunks:
                seats.admit_chunks(chunks, self.token_budget)
            if chunks:
                self._decodes_turn = True
                return Plan(tuple(chunks), self.group, paused=bool(self.group.members))
        evicted = seats.grow()
        seats.requeue(evicted)
        again = not evicted.anybody and not decodes_turn
        return self._plan([], evicted, seats.horizon() if again else 1)

    def _plan(self, chunks: list[PrefillChunk], evicted: Evicted, horizon: int) -> Plan:
        return Plan(tuple(chunks), self.group, tuple(evicted.preempted), horizon=horizon)

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the group's
        self.seats.repeat(times)

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        return self.seats.commit(plan, stopped)
