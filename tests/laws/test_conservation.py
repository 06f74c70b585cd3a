"""What must hold after every iteration of every policy, and at the end of every run."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.engine.plan import Plan
from simulator.engine.request import Request
from simulator.engine.scheduler import Scheduler
from simulator.engine.vllm_v1 import VllmV1
from simulator.recorder import COMPLETED, REJECTED
from simulator.workloads.arrival import Arrival
from tests.laws.worlds import CountingModel, Pace, World, offer, worlds


def held_cache(engine: Scheduler) -> object:
    return engine.slots if hasattr(engine, "slots") else engine.kv


def check_plan(world: World, engine: Scheduler, plan: Plan, model: CountingModel) -> None:
    """A plan computes only what is known and stored in order, within the policy's limits."""
    shape = plan.shape()
    decoding = set(plan.decodes.members)
    assert decoding.isdisjoint(chunk.request for chunk in plan.prefills), "prefilling and decoding at once"
    assert decoding.isdisjoint(plan.stalled)
    assert shape.prefills + shape.decodes <= world.knobs.get("max_num_seqs", 1)
    if isinstance(engine, VllmV1):
        assert shape.prefill_tokens + shape.decodes <= engine.max_num_batched_tokens
        assert shape.prefills + shape.decodes > 0, "an iteration without work"
    size = world.block_size
    for request, start, tokens, completes in plan.prefills:
        assert tokens >= 1
        assert model.tokens[request.id] == start or start == 0 or engine.kv.prefix_caching, (
            "a gap in the KV"
        )
        assert len(request.blocks) * size >= start + tokens, "a chunk without blocks for it"
        assert completes == (start + tokens == request.total_tokens)
    if plan.paused:
        assert shape.decodes == shape.context_tokens == 0
        return
    context = 0
    for request, offset in plan.decodes.members.items():
        stored = plan.decodes.steps + offset
        context += stored + 1
        assert len(request.blocks) * size > stored, "a decode without a block for its token"
    assert context == shape.context_tokens


def check_swap(engine: Scheduler, plan: Plan) -> None:
    """Blocks on the host are counted, belong to requests that hold none here, and never flow both ways."""
    swap = getattr(engine, "swap", None)
    if swap is None:
        assert not plan.copied_blocks
        return
    assert swap.free_blocks == swap.blocks - sum(swap.held.values())
    assert swap.free_blocks >= 0
    assert not (plan.swapped_out and plan.swapped_in)
    for request, blocks in swap.held.items():
        assert request.blocks == []
        assert 0 < blocks <= engine.kv.blocks
        assert blocks * engine.kv.block_size >= request.computed_tokens
    for request, blocks in plan.swapped_in:
        assert request not in swap.held
        assert blocks <= len(request.blocks)
    for request, blocks in plan.swapped_out:
        assert swap.held[request] == blocks


def forget_expired(pace: Pace, waiting_for: dict[Request, None], model: CountingModel) -> None:
    """What an engine gives up was waiting, holds nothing, and is named once with a reason."""
    for request, reason in pace.expired:
        assert reason
        assert request.blocks == []
        del waiting_for[request], model.left[request]
    pace.expired.clear()


@settings(max_examples=300, deadline=None)
@given(world=worlds(), data=st.data())
def test_every_iteration_conserves_blocks_and_every_request_gets_its_tokens(
    world: World, data: st.DataObject
) -> None:
    engine, model = world.engine(), CountingModel()
    waiting_for = dict.fromkeys(offer(engine, world.arrivals, model))
    outputs = {r: model.left[r] for r in waiting_for}
    holders: list[Request] = list(waiting_for)
    cancels = data.draw(st.integers(0, 2))
    rounds, pace = 0, Pace(engine)
    while (plan := pace.plan()) is not None:
        forget_expired(pace, waiting_for, model)
        held_cache(engine).check(holders)
        check_swap(engine, plan)
        check_plan(world, engine, plan, model)
        model.begin(plan)
        for request in engine.commit(plan, model.finish(plan)):
            del waiting_for[request]
            assert request.generated_tokens == outputs[request]
            assert request.blocks == [] or hasattr(engine, "batch"), (
                "only a padded batch keeps stopped rows"
            )
        held_cache(engine).check(holders)
        rounds += 1
        assert rounds < 20_000, "no end in sight: a livelock"
        if cancels and rounds % 7 == 0 and waiting_for:
            cancels -= 1
            victim = data.draw(st.sampled_from(list(waiting_for)))
            engine.cancel(victim)
            del waiting_for[victim]
            model.left.pop(victim, None)
            held_cache(engine).check(holders)
    forget_expired(pace, waiting_for, model)
    assert not waiting_for
    assert not engine.busy
    assert engine.used_blocks == 0
    assert held_cache(engine).free_blocks == world.blocks
    assert getattr(engine, "swap", None) is None or engine.swap.free_blocks == engine.swap.blocks


@settings(max_examples=150, deadline=None)
@given(world=worlds(clusters=True))
def test_every_offered_request_ends_once_with_a_reason_or_its_tokens(world: World) -> None:
    tables = world.run()
    requests = tables.requests
    assert requests["id"].tolist() == list(range(len(world.arrivals)))
    for i, arrival in enumerate(world.arrivals):
        if requests["status"][i] == COMPLETED:
            assert requests["output_tokens"][i] == arrival.output_tokens
            assert requests["arrival_ns"][i] <= requests["scheduled_ns"][i] < requests["first_token_ns"][i]
            assert requests["first_token_ns"][i] <= requests["finished_ns"][i]
        else:
            assert requests["status"][i] == REJECTED
            assert tables.reasons[i]
    streamed = all(engine.streams for engine in world.engines)
    tokens = requests["output_tokens"].sum() - (requests["status"] == COMPLETED).sum()
    assert tables.gap_rows.sum() == (tokens if streamed else 0), (
        "a gap between two tokens is missing or doubled"
    )


@settings(max_examples=300, deadline=None)
@given(world=worlds(clusters=True))
def test_gaps_between_tokens_add_up_to_the_time_from_first_to_last(world: World) -> None:
    """To the nanosecond, over evictions, pauses and leaps: no gap is off, and no first token is moved."""
    tables = world.run()
    assume(all(engine.streams for engine in world.engines))
    done = tables.requests["status"] == COMPLETED
    waited = (tables.requests["finished_ns"] - tables.requests["first_token_ns"])[done]
    assert (tables.gap_ns * tables.gap_rows).sum() == waited.sum()


@settings(max_examples=100, deadline=None)
@given(world=worlds(clusters=True))
def test_iterations_of_a_replica_never_overlap(world: World) -> None:
    table = world.run().iterations
    for replica in range(world.replicas):
        mine = table["replica"] == replica
        starts, ends = table["start_ns"][mine], table["end_ns"][mine]
        assert (ends > starts).all()
        assert (starts[1:] >= ends[:-1]).all()


def log_to_first_stop(world: World, arrivals: list[Arrival]) -> list[object]:
    engine, model, log = world.engine(), CountingModel(), []
    offer(engine, arrivals, model)
    pace = Pace(engine)
    while (plan := pace.plan()) is not None:
        chunks = [(chunk.request.id, chunk.start, chunk.tokens) for chunk in plan.prefills]
        log.append((plan.shape(), chunks, [r.id for r in plan.preempted], plan.horizon))
        if model.finish(plan):
            break
        engine.commit(plan, ())
    return log


@settings(max_examples=150, deadline=None)
@given(world=worlds())
def test_schedulers_are_blind_to_the_answers_length(world: World) -> None:
    """Worlds that differ only in hidden lengths are planned alike until the first stop tells them apart."""
    ragged = log_to_first_stop(world, list(world.arrivals))
    longest = log_to_first_stop(world, [a._replace(output_tokens=a.output_limit) for a in world.arrivals])
    assert longest[: len(ragged)] == ragged
