"""TensorRT-LLM's in-flight batching: who has room in the KV cache, and of these who in the iteration.

Source: policy notes section 1.13, read from capacityScheduler.cpp and microBatchScheduler.cpp (2025).
Beam width 1, no draft tokens, no LoRA, one micro-batch, and no block reuse between requests, so its rule
of skipping a prompt whose next block another is just producing has nothing to do.

The active list is in order of arrival and a paused request keeps its place in it. A started request holds
blocks for its whole prompt from its first chunk on. All capacity policies admit a prefix of the list, so
only as much of it is looked at as the iteration has tokens for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.single import refuse_oversized
from simulator.errors import RequestTooLarge

CAPACITY_POLICIES = ("guaranteed-no-evict", "max-utilization", "static-batch")

Chunks = list[tuple[Request, int]]  # each with the tokens that it computes


class TensorRtLlm:
    """One engine. ``waiting`` and ``running`` together are the active list, by `Request.seat`.

    ``guaranteed-no-evict``: a request starts when blocks for its prompt and output limit are free beside
    those that all started ones may still ask for. ``static-batch``: the same, but prompts are computed
    only while nobody generates. ``max-utilization``: it starts when its prompt fits; where a started one
    then finds no block, the last started at or after it is paused, loses its KV and is computed again.

    Costs O(changes), except: an iteration that pauses somebody sorts the started ones, and one that cuts
    a prompt short looks through the admitted for prompts shorter than a block that use up its last tokens.
    """

    streams = True

    def __init__(
        self,
        kv: KVCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        capacity_policy: str = "guaranteed-no-evict",
        context_chunking: str = "off",
    ) -> None:
        assert capacity_policy in CAPACITY_POLICIES
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.evicting = capacity_policy == "max-utilization"
        self.in_batches = capacity_policy == "static-batch"
        self.chunked = context_chunking != "off"
        self._share_out = CHUNKING_RULES[context_chunking]
        self.group = DecodeGroup(kv.block_size)
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self.prefilling: dict[Request, None] = {}  # running, with prompt still to compute; in order
        self._reserved = 0  # blocks that the running would hold at their output limits
        self._short = 0  # waiting requests of less than a block
        self._seats = 0
        self._last_started = 0  # no running request has a later seat

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def waiting_requests(self) -> int:
        return len(self.waiting)

    @property
    def used_blocks(self) -> int:
        return self.kv.used_blocks

    def add(self, request: Request) -> None:
        refuse_oversized(request, self.kv, self.max_model_len)
        longest = request.limit_tokens - 1 if self.evicting else request.prompt_tokens
        if not self.chunked and longest > self.max_num_batched_tokens:
            raise RequestTooLarge(
                f"{longest} tokens to (re)compute exceed max_num_batched_tokens "
                f"{self.max_num_batched_tokens}, unchunked"
            )
        self._seats += 1
        request.seat = self._seats
        self.waiting.append(request)
        self._short += request.total_tokens < self.kv.block_size

    def cancel(self, request: Request) -> None:
        if request in self.running:
            self._leave(request)
        else:
            self.waiting.remove(request)
            self._short -= request.total_tokens < self.kv.block_size

    def plan(self) -> Plan | None:
        if not (self.waiting or self.running):
            return None
        in_order = not self.evicting or self._in_order()
        paused: list[Request] = []
        fitting: Iterable[Request] | None = None
        if not in_order or len(self.group.due()) > self.kv.free_blocks:
            fitting, paused = self._walk(in_order)
        due = self.group.due()
        if due:
            self.kv.grow(due)
        chunks = self._contexts(self._fitting() if fitting is None else fitting)
        calm = in_order and not (chunks or paused)
        horizon = 1 + self.group.steps_within(self.kv.free_blocks) if calm else 1
        return Plan(chunks, self.group, tuple(paused), horizon=horizon)

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the group's
        growing = self.group.advance(times)
        if growing:
            self.kv.grow(growing)

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        self.group.steps += 1
        plan.end_prefills(self.prefilling)
        for request in stopped:
            self._leave(request)
        return stopped

    def _in_order(self) -> bool:
        """Whether everybody who waits stands behind everybody who has started."""
        if not self.running:
            self._last_started = 0
        return not self.waiting or self.waiting[0].seat > self._last_started

    def _leave(self, request: Request) -> None:
        """Give up everything, settling the request's counters."""
        del self.running[request]
        if request in self.group.members:
            self.group.leave(request)
        else:
            self.prefilling.pop(request, None)
        self.kv.release(request)
        self._reserved -= self.kv.blocks_for(request.limit_tokens)

    def _fitting(self) -> Iterator[Request]:
        """The waiting that the capacity policy lets in, in order, up to the first that it keeps out."""
        kv, room = self.kv, self.max_num_seqs - len(self.running)
        free = kv.free_blocks if self.evicting else kv.blocks - self._reserved
        for request in islice(self.waiting, room):
            free -= kv.blocks_for(request.total_tokens if self.evicting else request.limit_tokens)
            if free < 0:
                return
            yield request

    def _walk(self, in_order: bool) -> tuple[list[Request], list[Request]]:
        """Go through the active list counting free blocks; where one is missing pause the last started.

        Returns the waiting requests that fit and the paused ones. Started requests that need no block
        always fit; where all the waiting stand behind them, a missing block keeps these out altogether.
        """
        kv, due = self.kv, self.group.due()
        started = sorted(self.running, key=_seat)
        heads = () if in_order else islice(self.waiting, self.max_num_seqs - len(started))
        fitting: list[Request] = []
        paused: list[Request] = []
        free = kv.free_blocks
        for request in sorted(chain(due, heads), key=_seat):
            begun = request in self.running
            need = 1 if begun else kv.blocks_for(request.total_tokens)
            while need > free and started and started[-1].seat >= request.seat:
                paused.append(started.pop())
                free += len(paused[-1].blocks)
            if need > free or (paused and paused[-1].seat <= request.seat):
                break
            free -= need
            if not begun:
                fitting.append(request)
        self._last_started = started[-1].seat if started else 0
        for request in paused:
            self._pause(request)
        return fitting, paused

    def _pause(self, request: Request) -> None:
        """Take away all KV; the request goes back to waiting, in its place."""
        self._leave(request)
        request.computed_tokens = 0
        request.preemptions += 1
        place = 0
        while place < len(self.waiting) and self.waiting[place].seat < request.seat:
            place += 1
        self.waiting.insert(place, request)
        self._short += request.total_tokens < self.kv.block_size

    def _contexts(self, fitting: Iterable[Request]) -> tuple[PrefillChunk, ...]:
        """The prompts, or parts of them, that share what the generating requests leave of the tokens."""
        generating, begun = len(self.group.members), tuple(self.prefilling)
        if self.in_batches and generating:
            return ()
        if not begun and (not self.waiting or len(self.running) == self.max_num_seqs):
            return ()
        unit = self.kv.block_size
        short = self._short > 0 or any(request.total_tokens % unit for request in begun)
        shares = self._share_out(
            self.max_num_batched_tokens - generating, chain(begun, fitting), unit, short
        )
        return tuple([self._chunk(request, tokens) for request, tokens in shares])

    def _chunk(self, request: Request, tokens: int) -> PrefillChunk:
        if request not in self.running:
            self._start(request)
        start = request.computed_tokens
        return PrefillChunk(request, start, tokens, start + tokens == request.total_tokens)

    def _start(self, request: Request) -> None:
        kv, waiting = self.kv, self.waiting
        if waiting[0] is request:
            waiting.popleft()
        else:
            waiting.remove(request)
        self._short -= request.total_tokens < kv.block_size
        request.blocks = kv.take(kv.blocks_for(request.total_tokens))
        self.running[request] = None
        self.prefilling[request] = None
        self._reserved += kv.blocks_for(request.limit_tokens)
        self._last_started = max(self._last_started, request.seat)


# How the contexts, in order, share the tokens of an iteration. ``unit``: the block size, of which a chunk
# that does not complete its prompt is a multiple. ``short``: whether less than a unit may be of use to
# anybody, so that it is worth looking on.


def _whole_prompts(tokens: int, contexts: Iterable[Request], unit: int, short: bool) -> Chunks:  # noqa: ARG001
    """Without chunking: in order, up to the first prompt that exceeds the tokens left."""
    shares: Chunks = []
    for request in contexts:
        if request.total_tokens > tokens:
            break
        shares.append((request, request.total_tokens))
        tokens -= request.total_tokens
    return shares


def _first_come(tokens: int, contexts: Iterable[Request], unit: int, short: bool) -> Chunks:
    """FIRST_COME_FIRST_SERVED: each takes what is left, a prompt cut short a multiple of the unit."""
    shares: Chunks = []
    for request in contexts:
        wanted = request.total_tokens - request.computed_tokens
        share = wanted if wanted <= tokens else tokens // unit * unit
        if share:
            shares.append((request, share))
            tokens -= share
        if tokens < unit and not (tokens and short):
            break
    return shares


def _equal_progress(tokens: int, contexts: Iterable[Request], unit: int, short: bool) -> Chunks:
    """EQUAL_PROGRESS: round robin, a unit each, until no further share fits into what is left."""
    shares: dict[Request, int] = {}
    first_round = True
    while tokens:
        unfinished = []
        for request in contexts:
            given = shares.get(request, 0)
            wanted = request.total_tokens - request.computed_tokens - given
            share = min(wanted, unit)
            if share <= tokens:
                shares[request] = given + share
                tokens -= share
                if share < wanted:
                    unfinished.append(request)
            if first_round and tokens < unit and not (tokens and short):
                break
        if not unfinished:
            break
        contexts, first_round = unfinished, False
    return list(shares.items())


CHUNKING_RULES: dict[str, Callable[[int, Iterable[Request], int, bool], Chunks]] = {
    "off": _whole_prompts,
    "fcfs": _first_come,
    "equal-progress": _equal_progress,
}


def _seat(request: Request) -> int:
    return request.seat
