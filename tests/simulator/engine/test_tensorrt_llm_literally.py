"""TensorRT-LLM's schedulers against a transcript of the policy notes that looks at everybody every time.

Source: policy notes 1.13. The engine looks at as little as it can; each of its iterations must be what a
plain walk over the whole active list decides.
"""

from __future__ import annotations

from hypothesis import given, settings

from simulator.engine.request import Request
from simulator.engine.tensorrt_llm import TensorRtLlm
from tests.laws.worlds import CountingModel, World, offer, worlds


class Literal:
    """One decision, from the state before it."""

    def __init__(self, engine: TensorRtLlm, knobs: dict[str, object]) -> None:
        self.engine, self.kv, self.knobs = engine, engine.kv, knobs
        self.active = sorted([*engine.waiting, *engine.running], key=lambda request: request.seat)
        self.seats = engine.max_num_seqs
        self.paused: list[Request] = []

    def generating(self, request: Request) -> bool:
        return request in self.engine.group.members

    def started(self, request: Request) -> bool:
        return bool(request.blocks)

    def blocks_to_completion(self, request: Request) -> int:
        return self.kv.blocks_for(request.limit_tokens) - len(request.blocks)

    def blocks_of_one_step(self, request: Request) -> int:
        if self.generating(request):
            stored = self.engine.group.steps + self.engine.group.members[request]
            return self.kv.blocks_for(stored + 1) - self.kv.blocks_for(stored)
        return 0 if self.started(request) else self.kv.blocks_for(request.total_tokens)

    def capacity(self) -> list[Request]:
        policy = self.knobs["capacity_policy"]
        return self.max_utilization() if policy == "max-utilization" else self.no_evict(policy)

    def no_evict(self, policy: object) -> list[Request]:
        free, scheduled, pending = self.kv.free_blocks, [], []
        for request in self.active:
            if len(scheduled) >= self.seats:
                break
            if self.generating(request):
                scheduled.append(request)
                free -= self.blocks_to_completion(request)
            else:
                pending.append(request)
        if policy == "static-batch" and scheduled:
            return scheduled
        for request in pending:
            if len(scheduled) >= self.seats or self.blocks_to_completion(request) > free:
                break
            scheduled.append(request)
            free -= self.blocks_to_completion(request)
        return scheduled

    def max_utilization(self) -> list[Request]:
        free, scheduled = self.kv.free_blocks, []
        at, end = 0, len(self.active)
        while at < end:
            request = self.active[at]
            if len(scheduled) < self.seats and self.blocks_of_one_step(request) <= free:
                free -= self.blocks_of_one_step(request)
                scheduled.append(request)
                at += 1
                continue
            last = next((i for i in range(end - 1, at - 1, -1) if self.started(self.active[i])), None)
            if last is None:
                break
            free += len(self.active[last].blocks)
            self.paused.append(self.active[last])
            end = last
        return scheduled

    def micro_batch(self, scheduled: list[Request]) -> tuple[dict[Request, int], list[Request]]:
        """The tokens of each context, and who generates."""
        budget, chunking = self.engine.max_num_batched_tokens, self.knobs["context_chunking"]
        used, whole, contexts, generating = 0, {}, [], []
        for request in scheduled:
            left = request.total_tokens - request.computed_tokens
            if self.generating(request):
                if used + 1 > budget:
                    break
                used += 1
                generating.append(request)
            elif chunking == "off":
                if used + left > budget:
                    break
                used += left
                whole[request] = left
            else:
                contexts.append(request)
            if len(generating) + len(whole) + len(contexts) >= self.seats:
                break
        if chunking == "off":
            return whole, generating
        share = self.first_come if chunking == "fcfs" else self.equal_progress
        return {r: tokens for r, tokens in share(contexts, budget - used).items() if tokens}, generating

    def first_come(self, contexts: list[Request], capacity: int) -> dict[Request, int]:
        chunks = {}
        for request in contexts:
            left = request.total_tokens - request.computed_tokens
            tokens = min(left, capacity)
            if tokens < left:
                tokens -= tokens % self.kv.block_size
            chunks[request] = tokens
            capacity -= tokens
        return chunks

    def equal_progress(self, contexts: list[Request], capacity: int) -> dict[Request, int]:
        chunks = dict.fromkeys(contexts, 0)
        progress = True
        while progress:
            progress = False
            for request in contexts:
                left = request.total_tokens - request.computed_tokens - chunks[request]
                tokens = min(left, self.kv.block_size)
                if 0 < tokens <= capacity:
                    chunks[request] += tokens
                    capacity -= tokens
                    progress = True
        return chunks


@settings(max_examples=150, deadline=None)
@given(world=worlds("tensorrt-llm"))
def test_every_iteration_is_what_a_walk_over_all_active_requests_decides(world: World) -> None:
    engine, model = world.engine(), CountingModel()
    assert isinstance(engine, TensorRtLlm)
    offer(engine, world.arrivals, model)
    while engine.busy:
        literal = Literal(engine, dict(world.knobs))
        chunks, generating = literal.micro_batch(literal.capacity())
        plan = engine.plan()
        assert plan is not None
        assert {chunk.request.id: chunk.tokens for chunk in plan.prefills} == {
            request.id: tokens for request, tokens in chunks.items()
        }
        assert [request.id for request in plan.preempted] == [request.id for request in literal.paused]
        assert {r.id for r in plan.decodes.members} == {request.id for request in generating}
        engine.commit(plan, model.finish(plan))
