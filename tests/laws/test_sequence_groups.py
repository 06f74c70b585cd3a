"""Requests of several sequences: nothing is lost or freed twice, and every sequence reads its own past."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from backend.driver import Driver
from simulator.engine.plan import Plan
from simulator.engine.request import Request
from simulator.engine.scheduler import Scheduler
from simulator.engine.sequence_group import together
from simulator.recorder import COMPLETED, IterationLog, RequestLog, tables
from tests.laws.sequence_worlds import (
    GANGS,
    CountingSequences,
    Memory,
    SequenceWorld,
    sequence_worlds,
)
from tests.laws.test_leap import gap_counts, stepwise
from tests.laws.test_live_equals_simulated import FakeClock
from tests.laws.worlds import BLOCK_COPY_NS, CountingModel, ToyCost, offer


def decoding_rows(plan: Plan) -> list[Request]:
    return [] if plan.paused else list(plan.decodes.members)


def check_pasts(memory: Memory, plan: Plan) -> None:
    """Every row that takes part reads what it wrote, the token written in this iteration included."""
    for row in (*decoding_rows(plan), *(chunk.request for chunk in plan.prefills)):
        told = memory.told[row]
        assert memory.read_back(row, len(told)) == told, f"sequence {row.id} reads another one's past"


def check_seats(world: SequenceWorld, plan: Plan) -> None:
    """A row in the batch for every sequence; a request's rows decode together or not at all."""
    shape = plan.shape()
    assert shape.prefills + shape.decodes <= world.knobs["max_num_seqs"]
    for row in plan.decodes.members:
        assert all(other in plan.decodes.members for other in together(row))
    for request, _ in (*plan.swapped_out, *plan.swapped_in):
        assert request.group.sequences[0] is request


def held_blocks(sequences: list[Request]) -> list[int]:
    return [block for sequence in sequences for block in sequence.blocks]


@settings(max_examples=300, deadline=None)
@given(world=sequence_worlds(), data=st.data())
def test_every_sequence_reads_back_its_own_past_and_no_block_is_lost(
    world: SequenceWorld, data: st.DataObject
) -> None:
    """Under forks, copies on write, evictions, moves to the host and back, ragged ends and cancels."""
    engine = world.engine()
    memory = Memory(world.block_size, Random(data.draw(st.integers(0, 1 << 30))))
    taken = world.offer(engine)
    for request, arrival in taken:
        memory.expect(request, arrival)
    families = {request: request.group.sequences for request, _ in taken}
    sequences = [sequence for family in families.values() for sequence in family]
    cancels, rounds = data.draw(st.integers(0, 3)), 0
    while (plan := engine.plan()) is not None:
        engine.kv.check(sequences)
        check_seats(world, plan)
        memory.begin(plan)
        check_pasts(memory, plan)
        answered = one_iteration(engine, memory, plan)
        for request in answered:
            del families[request]
            assert not held_blocks([request])
        engine.kv.check(sequences)
        rounds += 1
        assert rounds < 20_000, "no end in sight: a livelock"
        if cancels and rounds % 7 == 0 and families:
            cancels -= 1
            victim = data.draw(st.sampled_from(list(families)))
            engine.cancel(victim)
            memory.forget(victim)
            del families[victim]
            engine.kv.check(sequences)
    assert not families
    assert not engine.busy
    assert engine.used_blocks == engine.kv.saved_blocks == 0
    assert not held_blocks(sequences)
    assert not memory.left


def one_iteration(engine: Scheduler, memory: Memory, plan: Plan) -> list[Request]:
    stopped = memory.finish(plan)
    searches = [r for r in decoding_rows(plan) if r.group is not None and r.group.parents]
    branches = [(r, list(r.group.parents)) for r in searches if r.group.sequences[0] is r]
    for request in [chunk.request for chunk in plan.prefills if chunk.completes]:
        for row in together(request)[1:]:
            memory.told[row] = list(memory.told[request])
    answered = list(engine.commit(plan, stopped))
    for request, parents in branches:
        memory.branch(request, parents)
    return answered


@settings(max_examples=200, deadline=None)
@given(world=sequence_worlds(GANGS), data=st.data())
def test_held_blocks_are_those_of_distinct_pasts(world: SequenceWorld, data: st.DataObject) -> None:
    """The naive count: two sequences hold one block exactly where all that it stores came from the same
    writes. After every iteration, for all that decode; ``saved_blocks`` is what that leaves out."""
    engine = world.engine()
    memory = Memory(world.block_size, Random(data.draw(st.integers(0, 1 << 30))))
    for request, arrival in world.offer(engine):
        memory.expect(request, arrival)
    size = world.block_size
    while (plan := engine.plan()) is not None:
        memory.begin(plan)
        one_iteration(engine, memory, plan)
        rows = list(engine.group.members)
        pasts = {
            (start, tuple(memory.told[row][start : start + size]))
            for row in rows
            for start in range(0, len(memory.told[row]), size)
        }
        held = held_blocks(rows)
        assert len(set(held)) == len(pasts)
        assert engine.kv.saved_blocks == len(held) - len(set(held))
        prefilling = held_blocks(list(engine.seats.prefilling))
        assert engine.used_blocks == len(pasts) + len(prefilling)


@settings(max_examples=300, deadline=None)
@given(world=sequence_worlds(clusters=True))
def test_leaping_equals_stepping(world: SequenceWorld) -> None:
    leaped, stepped = world.run(), world.run(1)
    for name, column in stepped.requests.items():
        assert leaped.requests[name].tolist() == column.tolist(), name
    assert stepwise(leaped) == stepwise(stepped)
    assert gap_counts(leaped) == gap_counts(stepped)
    assert leaped.sharing == stepped.sharing


@settings(max_examples=200, deadline=None)
@given(world=sequence_worlds(clusters=True))
def test_every_sequence_of_every_request_gets_its_tokens(world: SequenceWorld) -> None:
    found = world.run()
    done = found.requests["status"] == COMPLETED
    expected = [arrival.output_tokens for arrival in world.arrivals]
    assert found.requests["output_tokens"][done].tolist() == [
        output for output, completed in zip(expected, done, strict=True) if completed
    ]
    gaps = found.requests["output_tokens"][done] - 1
    assert found.gap_rows.sum() == world.decoding.sequences * gaps.sum()
    if world.policy in GANGS:
        waited = (found.requests["finished_ns"] - found.requests["first_token_ns"])[done]
        assert (found.gap_ns * found.gap_rows).sum() == world.decoding.sequences * waited.sum()


class TimedSequences(CountingSequences):
    """Takes as long as the cost model says."""

    def __init__(self, clock: FakeClock, cost: ToyCost) -> None:
        super().__init__()
        self.clock, self.cost = clock, cost

    def finish(self, plan: Plan) -> list[Request]:
        copying_ns = int(BLOCK_COPY_NS * plan.copied_blocks)
        self.clock.time_ns += copying_ns + self.cost.iteration_ns(plan.shape())
        return super().finish(plan)


@settings(max_examples=200, deadline=None)
@given(world=sequence_worlds())
def test_live_and_simulated_logs_are_identical(world: SequenceWorld) -> None:
    simulated = world.run()
    clock, engine = FakeClock(), world.engine()
    requests, iterations = RequestLog(), IterationLog(0, streams=True)
    model = TimedSequences(clock, world.cost)
    Driver(engine, model, clock, requests, iterations, world.decoding).run(iter(world.arrivals))
    live = tables(requests, [iterations], world.blocks)
    for name, column in simulated.requests.items():
        assert live.requests[name].tolist() == column.tolist(), name
    assert live.reasons == simulated.reasons
    assert stepwise(live) == stepwise(simulated)
    assert gap_counts(live) == gap_counts(simulated)
    assert live.sharing == simulated.sharing


@settings(max_examples=100, deadline=None)
@given(world=sequence_worlds(GANGS))
def test_one_sequence_is_planned_alike_with_and_without_gangs(world: SequenceWorld) -> None:
    """The walk that knows of several rows makes the decisions of the one that does not."""

    def plans(widest: int) -> list[object]:
        engine, log, model = world.engine(), [], CountingModel()
        offer(engine, world.arrivals, model)
        engine.seats.widest = widest
        while (plan := engine.plan()) is not None:
            log.append((plan.shape(), [r.id for r in plan.preempted], [r.id for r, _ in plan.swapped_out]))
            engine.commit(plan, model.finish(plan))
        return log

    assert plans(widest=3) == plans(widest=1)
