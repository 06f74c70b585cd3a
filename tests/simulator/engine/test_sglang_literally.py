"""SGLang's loop against a transcript of the policy notes that adds up and filters everybody every time.

Source: policy notes 1.14 and the order of things in scheduler.py's get_next_batch_to_run. The engine keeps
sums and flags instead; without prefix caching and mixed iterations each of its decisions must be the same.
"""

from __future__ import annotations

from hypothesis import given, settings

from simulator.engine.plan import Plan
from simulator.engine.request import Request
from simulator.engine.sglang import SgLang
from simulator.errors import RequestTooLarge
from tests.laws.worlds import CountingModel, World, worlds

CLIP = 4096


class Literal:
    """What SGLang remembers between two iterations, as it remembers it."""

    def __init__(self, engine: SgLang, conservativeness: float) -> None:
        self.engine, self.kv = engine, engine.kv
        self.waiting: list[Request] = []
        self.running: list[Request] = []  # with those that have stopped, until they are filtered out
        self.stopped: set[Request] = set()
        self.last_prefill: list[Request] = []
        self.chunked: Request | None = None
        self.full = False
        self.ratio = self.initial = min(0.7 * conservativeness, 1.0)

    def generated(self, request: Request) -> int:
        group = self.engine.group
        return group.generated(request) if request in group.members else request.generated_tokens

    def decide(self) -> tuple[dict[int, int], list[int], list[int]]:
        """Prompt tokens by request, who decodes, and who is retracted."""
        kept = [r for r in self.last_prefill if r is not self.chunked and r not in self.stopped]
        if len(kept) < len(self.last_prefill):
            self.full = False
        self.running += kept
        self.last_prefill = []
        chunks = self.prefill()
        if chunks:
            self.last_prefill = list(chunks)
            return {request.id: tokens for request, tokens in chunks.items()}, [], []
        before = len(self.running)
        self.running = [request for request in self.running if request not in self.stopped]
        if not self.running:
            self.full = False
            return self.decide()
        retracted = self.retract()
        if len(self.running) < before:
            self.full = False
        return {}, sorted(request.id for request in self.running), [request.id for request in retracted]

    def retract(self) -> list[Request]:
        group, pages = self.engine.group, self.kv.free_blocks
        due = {r for r in self.running if (group.steps + group.members[r]) % self.kv.block_size == 0}
        if len(due) <= pages:
            self.ratio = max(self.ratio - (self.initial - 0.14 * self.initial) / 600, 0.14 * self.initial)
            return []
        rows = sorted(self.running, key=lambda r: (self.generated(r), -r.prompt_tokens), reverse=True)
        retracted: list[Request] = []
        while len(rows) > 1 and (not retracted or len(due & set(rows)) > pages):
            retracted.append(rows.pop())
            pages += len(retracted[-1].blocks)
        decoded, limits = sum(map(self.generated, rows)), sum(r.output_limit for r in rows)
        self.ratio = min(1.0, (decoded + 20 * len(rows)) / (limits + 1))
        self.running = rows
        self.waiting += retracted
        return retracted

    def prefill(self) -> dict[Request, int]:  # noqa: C901 PrefillAdder and its loop in one piece
        engine, page, chunks = self.engine, self.kv.block_size, {}
        if not self.running:
            self.full = False
        if (self.full or not self.waiting) and self.chunked is None:
            return {}
        if len(self.running) >= engine.max_num_seqs and self.chunked is None:
            self.full = True
            return {}
        expected = sum(min(r.output_limit - self.generated(r), CLIP) for r in self.running)
        memory = self.kv.free_blocks * page - expected * self.ratio
        tokens, inputs = engine.chunked_prefill_size or 1 << 60, engine.max_prefill_tokens

        def take(request: Request, share: int, future: int) -> None:
            nonlocal memory, tokens, inputs
            paged = -(-share // page) * page
            chunks[request] = share
            memory -= paged + future + page
            tokens, inputs = tokens - paged, inputs - paged

        if self.chunked is not None:
            left = self.chunked.total_tokens - self.chunked.computed_tokens
            share = min(left, tokens)
            take(self.chunked, share, min(self.chunked.output_limit, CLIP) if share == left else 0)
            if share == left:
                self.chunked = None
        while self.waiting and tokens > 0 and inputs > 0 and (memory > 0 or not chunks):
            request = self.waiting[0]
            if len(self.running) + len(chunks) >= engine.max_num_seqs:
                self.full = True
                break
            wanted = request.total_tokens
            paged = -(-wanted // page) * page
            if wanted + min(request.output_limit - request.generated_tokens, CLIP) + page >= memory:
                self.full = True
                break
            if not engine.chunked_prefill_size and chunks and paged >= inputs:
                break
            share = wanted if paged <= tokens else tokens // page * page
            if share <= 0:
                break
            if share < wanted:
                self.chunked = request
            take(self.waiting.pop(0), share, min(request.output_limit, CLIP) if share == wanted else 0)
            if memory <= 0:
                self.full = True
        return chunks


def decision(plan: Plan) -> tuple[dict[int, int], list[int], list[int]]:
    decoding = [] if plan.paused else sorted(request.id for request in plan.decodes.members)
    chunks = {chunk.request.id: chunk.tokens for chunk in plan.prefills}
    return chunks, decoding, [request.id for request in plan.preempted]


@settings(max_examples=60, deadline=None)
@given(world=worlds("sglang"))
def test_every_iteration_is_what_sglangs_own_loop_decides(world: World) -> None:
    """One more request every third iteration: some find the batch full, some the engine about to idle."""
    world.knobs.update(prefix_caching=False, enable_mixed_chunk=False)
    engine, model, upcoming = world.engine(), CountingModel(), list(enumerate(world.arrivals))
    assert isinstance(engine, SgLang)
    literal, iterations = Literal(engine, world.knobs["schedule_conservativeness"]), 0
    while upcoming or engine.busy:
        if upcoming and (iterations % 3 == 0 or not engine.busy):
            i, arrival = upcoming.pop(0)
            request = Request(i, i, arrival.prompt_tokens, arrival.output_limit)
            try:
                engine.add(request)
            except RequestTooLarge:
                continue
            model.expect(request, arrival)
            literal.waiting.append(request)
        expected = literal.decide()
        plan = engine.plan()
        assert plan is not None
        assert decision(plan) == expected
        stopped = model.finish(plan)
        literal.stopped.update(stopped)
        engine.commit(plan, stopped)
        iterations += 1
