"""SGLang's scheduler: prefill first, admission by an estimate of what the running will still generate.

Source: policy notes section 1.14, read from schedule_policy.py, scheduler.py and retract_decode (2026),
without its overlap of scheduling and execution, hierarchical cache, priorities and speculation. Its exact
feasibility check for clients that ignore end-of-text while the cache is off is not modelled.

Where `KVCache` differs from SGLang's radix tree. A page is a block. Free and evictable pages are one
number, as in SGLang's budget. SGLang evicts least recently used leaves of the tree, a lookup counting as
use; here pages are taken back in the order in which they were released, the tail of a prompt first, which
never takes a page before those that continue it either, but does not know of lookups. SGLang hands a
request the tree's pages for what another has computed meanwhile and frees its duplicates; here both keep
theirs until they leave. Nothing computed in an iteration can be shared within it, in either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.scheduler import UNBOUNDED
from simulator.engine.single import refuse_beyond_model
from simulator.errors import RequestTooLarge

SCHEDULE_POLICIES = ("fcfs", "lpm")
CLIP_TOKENS = 4096  # more than this of one request's future output is not reckoned with
SORTED_REQUESTS = 128  # longer queues are not sorted by prefix
IN_BATCH_TOKENS = 32  # a prefix of this length is worth computing once, for those that come after
RETRACT_STEPS = 20  # decode steps for which a retraction reckons to have made room
INITIAL_RATIO, LEAST_SHARE, DECAY_STEPS = 0.7, 0.14, 600


class SgLang:
    """One engine. Decoding requests pause while prompts are computed, unless ``enable_mixed_chunk``.

    A request is admitted when its prompt and output limit fit beside ``new_token_ratio`` times what the
    running may still generate; the ratio falls with every decode step and rises when decodes run out of
    pages and the ones with the fewest tokens are retracted, to be computed again.

    ``chunked_prefill_size``: most prompt tokens of an iteration, a multiple of the page size; 0: whole
    prompts, ``max_prefill_tokens`` of them or one. A prompt cut short continues first.

    Costs O(changes), except that sorting by the longest prefix (``lpm``) looks at up to 128 waiting
    requests per admission, and a retraction at all running ones. With pages of one token every
    decoding request takes a page in every iteration.
    """

    streams = True

    def __init__(
        self,
        kv: KVCache,
        *,
        max_num_seqs: int,
        max_model_len: int,
        schedule_policy: str = "fcfs",
        schedule_conservativeness: float = 1.0,
        chunked_prefill_size: int = 8192,
        max_prefill_tokens: int = 16384,
        enable_mixed_chunk: bool = False,
    ) -> None:
        assert schedule_policy in SCHEDULE_POLICIES
        assert chunked_prefill_size % kv.block_size == 0
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.by_prefix = schedule_policy == "lpm" and kv.prefix_caching
        self.chunked_prefill_size = chunked_prefill_size
        self.max_prefill_tokens = max_prefill_tokens
        self.mixed = enable_mixed_chunk and chunked_prefill_size > 0
        self.ratio = TokenRatio(schedule_conservativeness)
        self.group = DecodeGroup(kv.block_size)
        self.waiting: deque[Request] = deque()
        self.chunked: Request | None = None  # the one whose prompt is partly computed
        self._outlook = Outlook()
        self._rows: dict[Request, list[int]] = {}  # the pages of those that decode
        self._full = False  # nobody is admitted until the batch shrinks
        self._ended: list[Request] = []  # stopped, but in the batch until the next decode step
        self._undecayed = 0  # how far the group's clock is ahead of the decode steps

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.group.members or self.chunked)

    @property
    def waiting_requests(self) -> int:
        return len(self.waiting)

    @property
    def used_blocks(self) -> int:
        return self.kv.used_blocks

    @property
    def new_token_ratio(self) -> float:
        """The share of its possible output that each running request is expected to generate."""
        return self.ratio.after(self.group.steps - self._undecayed)

    def add(self, request: Request) -> None:
        refuse_beyond_model(request, self.max_model_len)
        need, room = request.limit_tokens + self.kv.block_size, self.kv.blocks * self.kv.block_size
        if need >= room:
            raise RequestTooLarge(
                f"needs room for more than {need} tokens (prompt, output limit and a page), "
                f"the cache has {room}"
            )
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        self._full = False
        if request is self.chunked:
            self.chunked = None
            self.kv.release(request)
        elif request in self.group.members:
            self._leave(request)
        else:
            self.waiting.remove(request)

    def plan(self) -> Plan | None:
        members = self.group.members
        if not self.busy:
            self._ended, self._full = [], False
            self.ratio.restart(self.group.steps - self._undecayed)
            return None
        retracted = self._make_room_beside_chunk() if self.mixed and self.chunked else []
        chunks = self._prefill(admit=not retracted)
        if not chunks and not members:  # those that have stopped are filtered out, and then there is room
            self._ended, self._full = [], False
            chunks = self._prefill(admit=True)
        if not chunks:
            return self._decode()
        if self.mixed:
            self._ended = []
            self.kv.grow(self.group.due())
        return Plan(tuple(chunks), self.group, tuple(retracted), paused=bool(members) and not self.mixed)

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the group's
        if self.kv.block_size == 1:
            self.group.steps += times
            self._grow_all(times)
        elif growing := self.group.advance(times):
            self.kv.grow(growing)

    def _grow_all(self, pages: int) -> None:
        """Pages of one token: give every decoding request as many as there are steps, row by row."""
        rows = self._rows.values()
        taken = self.kv.take(pages * len(rows))
        if pages == 1:
            deque(map(list.append, rows, taken), maxlen=0)
            return
        for row, start in zip(rows, range(0, len(taken), pages), strict=True):
            row.extend(taken[start : start + pages])

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        if not plan.paused:
            self.group.steps += 1
        if plan.prefills:
            self._undecayed += not plan.paused
            for chunk in plan.prefills:
                self._finish(chunk)
            if stopped or self.chunked is not None:
                self._full = False
        if len(stopped) > 1:  # pages are freed in the same order, whoever runs the model
            stopped = sorted(stopped, key=_id)
        for request in stopped:
            self._leave(request)
        if not plan.prefills:
            self._ended += stopped
        return stopped

    def _finish(self, chunk: PrefillChunk) -> None:
        """Make the chunk's pages available to others; with a complete prompt, start to decode."""
        request = chunk.request
        request.computed_tokens = end = chunk.start + chunk.tokens
        if self.kv.prefix_caching and (request.content is not None or request.preemptions):
            self.kv.publish(request, end)
        if chunk.completes:
            request.generated_tokens += 1
            self.group.join(request)
            self._outlook.join(request)
            self._rows[request] = request.blocks

    def _leave(self, request: Request) -> None:
        self._settle(request)
        self.kv.release(request)

    def _settle(self, request: Request) -> None:
        """Let a request leave the decoding ones, its counters up to date."""
        self.group.leave(request)
        self._outlook.leave(request)
        del self._rows[request]

    def _decode(self) -> Plan:
        """A decode step for everybody for whom there is a page."""
        if self._ended:
            self._ended, self._full = [], False
        retracted: list[Request] = []
        if len(self.group.due()) > self.kv.free_blocks:
            retracted = self._retract()
        if self.kv.block_size == 1:
            self._grow_all(1)
        elif due := self.group.due():
            self.kv.grow(due)
        settled = not retracted and (self._full or not self.waiting)
        horizon = 1 + self.group.steps_within(self.kv.free_blocks) if settled else 1
        return Plan((), self.group, tuple(retracted), horizon=horizon)

    def _retract(self) -> list[Request]:
        """Take the fewest generated first, the longest prompt among equals, until a step fits; keep one."""
        rows = self._by_progress()
        retracted: list[Request] = []
        while len(rows) > 1 and (not retracted or len(self.group.due()) > self.kv.free_blocks):
            retracted.append(self._evict(rows.pop()))
        self._raise_ratio(rows, 1)
        return retracted

    def _make_room_beside_chunk(self) -> list[Request]:
        """Before a mixed iteration: the same, until a step and the chunk fit, where SGLang itself fails."""
        rows: list[Request] = []
        retracted: list[Request] = []
        while self.group.members and self._chunk_blocks() + len(self.group.due()) > self.kv.free_blocks:
            rows = rows or self._by_progress()
            retracted.append(self._evict(rows.pop()))
        if retracted:
            self._raise_ratio(rows, 0)
        return retracted

    def _by_progress(self) -> list[Request]:
        return sorted(self.group.members, key=lambda request: (request.origin, request.prompt_tokens))

    def _evict(self, request: Request) -> Request:
        """Drop what it generated; its prompt stays cached until the pages are taken."""
        self._settle(request)
        if self.kv.prefix_caching:
            self.kv.publish(request, request.prompt_tokens)
        self.kv.release(request)
        request.computed_tokens = 0
        request.preemptions += 1
        self.waiting.append(request)
        return request

    def _raise_ratio(self, rows: Sequence[Request], steps: int) -> None:
        """What the rows that stay have used of their limits is what is now expected of everybody.

        ``steps``: how many decode steps from now on the ratio starts to fall again.
        """
        self._full = False
        decoded = sum(self.group.generated(row) for row in rows)
        limits = sum(row.output_limit for row in rows)
        value = min(1.0, (decoded + RETRACT_STEPS * len(rows)) / (limits + 1))
        self.ratio.reset(value, self.group.steps - self._undecayed + steps)

    def _prefill(self, *, admit: bool) -> list[PrefillChunk]:
        """The prompts of this iteration: the one that was cut short, then new ones while they fit."""
        if self.chunked is None and (self._full or not self.waiting):
            return []
        rows = len(self.group.members) + len(self._ended)
        if self.chunked is None and rows >= self.max_num_seqs:
            self._full = True
            return []
        budget = self._budget(rows)
        chunks: list[PrefillChunk] = []
        if self.chunked is not None:
            chunks.append(self._continue(self.chunked, budget))
        if admit and self.waiting and budget.tokens > 0 and budget.input_tokens > 0:
            if self.by_prefix:
                self._sort_by_prefix()
            self._admit(budget, rows, chunks)
        return chunks

    def _budget(self, rows: int) -> Budget:
        kv, beside = self.kv, rows if self.mixed else 0
        expected = self._outlook.tokens(self.group.steps) + sum(_future_tokens(r) for r in self._ended)
        return Budget(
            kv.block_size,
            kv.free_blocks * kv.block_size - expected * self.new_token_ratio - beside,
            (self.chunked_prefill_size or UNBOUNDED) - beside,
            self.max_prefill_tokens - beside,
            kv.free_blocks - (len(self.group.due()) if self.mixed else 0),
        )

    def _chunk_tokens(self, request: Request) -> int:
        beside = len(self.group.members) + len(self._ended) if self.mixed else 0
        left = request.total_tokens - request.computed_tokens
        return min(left, self.chunked_prefill_size - beside)

    def _chunk_blocks(self) -> int:
        request = self.chunked
        assert request is not None
        end = request.computed_tokens + self._chunk_tokens(request)
        return self.kv.blocks_for(end) - len(request.blocks)

    def _continue(self, request: Request, budget: Budget) -> PrefillChunk:
        tokens, blocks = self._chunk_tokens(request), self._chunk_blocks()
        start = request.computed_tokens
        request.blocks += self.kv.take(blocks)
        completes = start + tokens == request.total_tokens
        budget.spend(tokens, min(request.output_limit, CLIP_TOKENS) if completes else 0, blocks)
        if completes:
            self.chunked = None
        return PrefillChunk(request, start, tokens, completes)

    def _admit(self, budget: Budget, rows: int, chunks: list[PrefillChunk]) -> None:
        """Admit from the head of the queue; the first that does not fit stops it."""
        kv, waiting = self.kv, self.waiting
        while waiting:
            if rows + len(chunks) >= self.max_num_seqs:
                self._full = True
                return
            request = waiting[0]
            hits = kv.lookup(request) if kv.prefix_caching else []
            start, revived = len(hits) * kv.block_size, kv.idle(hits) if hits else 0
            wanted = request.total_tokens - start
            if not budget.holds(wanted, _future_tokens(request), revived):
                self._full = True
                return
            tokens = self._share(budget, wanted, first=not chunks)
            if not tokens:
                return
            waiting.popleft()
            self._seat(request, hits, start + tokens)
            completes = tokens == wanted
            if not completes:
                self.chunked = request
            chunks.append(PrefillChunk(request, start, tokens, completes))
            future = min(request.output_limit, CLIP_TOKENS) if completes else 0
            budget.spend(tokens, future, kv.blocks_for(start + tokens) - len(hits) + revived)
            budget.memory_tokens -= revived * kv.block_size
            if budget.memory_tokens <= 0:
                self._full = True
                return
            if budget.tokens <= 0 or budget.input_tokens <= 0:
                return

    def _share(self, budget: Budget, wanted: int, *, first: bool) -> int:
        """How much of a prompt is computed in this iteration."""
        page = self.kv.block_size
        paged = -(-wanted // page) * page
        if not self.chunked_prefill_size:
            return wanted if first or paged < budget.input_tokens else 0
        return wanted if paged <= budget.tokens else budget.tokens // page * page

    def _seat(self, request: Request, hits: list[int], tokens: int) -> None:
        kv = self.kv
        if hits:
            kv.share(request, hits)
            if not request.preemptions:
                request.cached_tokens = len(hits) * kv.block_size
        request.blocks += kv.take(kv.blocks_for(tokens) - len(hits))

    def _sort_by_prefix(self) -> None:
        """Longest cached prefix first; of those that share a prefix not yet cached all but one go last."""
        if not 1 < len(self.waiting) <= SORTED_REQUESTS:
            return
        openings: set[int] = set()
        ranks: dict[Request, float] = {}
        for request in self.waiting:
            cached = self.kv.cached_blocks(request) * self.kv.block_size
            ranks[request] = -cached
            opening = _opening(request) if cached <= IN_BATCH_TOKENS else None
            if opening in openings:
                ranks[request] = float("inf")
            elif opening is not None:
                openings.add(opening)
        self.waiting = deque(sorted(self.waiting, key=ranks.__getitem__))


@dataclass(slots=True)
class Budget:
    """What prompts may still take in one iteration."""

    page: int
    memory_tokens: float  # free pages, less what the running are expected to generate
    tokens: int
    input_tokens: int
    blocks: int

    def holds(self, tokens: int, future_tokens: int, revived: int) -> bool:
        """Whether a prompt and its future fit, beside cached pages that are revived for it."""
        pages = -(-tokens // self.page) + revived
        need = tokens + future_tokens + (1 + revived) * self.page
        return need < self.memory_tokens and pages <= self.blocks

    def spend(self, tokens: int, future_tokens: int, blocks: int) -> None:
        """Account for a prompt or a part of one, in whole pages and a page more."""
        paged = -(-tokens // self.page) * self.page
        self.memory_tokens -= paged + future_tokens + self.page
        self.tokens -= paged
        self.input_tokens -= paged
        self.blocks -= blocks


class Outlook:
    """How many tokens the decoding requests may still generate, each counted up to the clip.

    Kept as a sum over the decode clock; those beyond the clip wait in a heap for the step at which
    they come within it.
    """

    def __init__(self) -> None:
        self._near = 0  # requests within the clip
        self._ends = 0  # sum of the clocks at which they would reach their limits
        self._far: dict[Request, int] = {}  # the others: the clock at which they come within it
        self._coming: list[tuple[int, int, Request]] = []

    def join(self, request: Request) -> None:
        """Count a request that has just joined the decode group."""
        end = request.origin + request.output_limit
        if request.output_limit - request.generated_tokens <= CLIP_TOKENS:
            self._near += 1
            self._ends += end
        else:
            self._far[request] = end - CLIP_TOKENS
            heappush(self._coming, (end - CLIP_TOKENS, request.id, request))

    def leave(self, request: Request) -> None:
        """Count it no more."""
        if self._far.pop(request, None) is None:
            self._near -= 1
            self._ends -= request.origin + request.output_limit

    def tokens(self, clock: int) -> int:
        """The sum at this clock."""
        coming = self._coming
        while coming and coming[0][0] <= clock:
            step, _, request = heappop(coming)
            if self._far.get(request) == step:
                del self._far[request]
                self._near += 1
                self._ends += step + CLIP_TOKENS
        return self._ends - self._near * clock + CLIP_TOKENS * len(self._far)


class TokenRatio:
    """SGLang's ``new_token_ratio``, from the number of decode steps since it was last set."""

    def __init__(self, conservativeness: float) -> None:
        self.initial = min(INITIAL_RATIO * conservativeness, 1.0)
        self.least = LEAST_SHARE * self.initial
        self.decay = (self.initial - self.least) / DECAY_STEPS
        self._value, self._since = self.initial, 0

    def after(self, decode_steps: int) -> float:
        """Its value after this many decode steps in all."""
        return max(self._value - self.decay * (decode_steps - self._since), self.least)

    def reset(self, value: float, decode_steps: int) -> None:
        """Set it; it falls with every decode step after this many."""
        self._value, self._since = value, decode_steps

    def restart(self, decode_steps: int) -> None:
        """Back to the initial value, as in an idle engine."""
        self.reset(self.initial, decode_steps)


def _opening(request: Request) -> int | None:
    """What names the beginning of a prompt that is long enough to be worth sharing."""
    content = request.content
    if content is None or request.prompt_tokens < IN_BATCH_TOKENS:
        return None
    return content.ids[-(-IN_BATCH_TOKENS // content.tokens_per_id) - 1]


def _future_tokens(request: Request) -> int:
    return min(request.output_limit - request.generated_tokens, CLIP_TOKENS)


def _id(request: Request) -> int:
    return request.id
