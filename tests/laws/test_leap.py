"""The leap changes how long a simulation takes, never what it says."""

from __future__ import annotations

import copy

import numpy as np
from hypothesis import given, settings

from simulator.engine.scheduler import Scheduler
from simulator.engine.single import Single
from simulator.run_tables import RunTables
from tests.laws.worlds import CountingModel, Pace, World, offer, worlds


def stepwise(tables: RunTables) -> dict[str, list[int]]:
    """The iteration table with leaps unrolled, without the times inside a leap, which `ends` covers."""
    table, repeats = tables.iterations, tables.iterations["repeats"]
    unrolled = {
        name: np.repeat(table[name], repeats)
        for name in (
            "replica",
            "prefills",
            "prefill_tokens",
            "prefill_pairs",
            "decodes",
            "padding_tokens",
            "waiting",
        )
    }
    run = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    unrolled["context_tokens"] = np.repeat(table["context_tokens"], repeats) + run * unrolled["decodes"]
    return {name: column.tolist() for name, column in unrolled.items()}


def gap_counts(tables: RunTables) -> dict[int, int]:
    gaps: dict[int, int] = {}
    for gap, rows in zip(tables.gap_ns.tolist(), tables.gap_rows.tolist(), strict=True):
        gaps[gap] = gaps.get(gap, 0) + rows
    return gaps


@settings(max_examples=1000, deadline=None)
@given(world=worlds(clusters=True))
def test_leaping_equals_stepping(world: World) -> None:
    leaped, stepped = world.run(), world.run(1)
    for name, column in stepped.requests.items():
        assert leaped.requests[name].tolist() == column.tolist(), name
    assert leaped.reasons == stepped.reasons
    assert stepwise(leaped) == stepwise(stepped)
    assert gap_counts(leaped) == gap_counts(stepped)


@settings(max_examples=150, deadline=None)
@given(world=worlds())
def test_repeat_equals_commit_and_plan(world: World) -> None:
    """``repeat(plan, n)`` is n rounds of "nobody stopped, plan again", for every n below the horizon."""
    engine, model = world.engine(), CountingModel()
    offer(engine, world.arrivals, model)
    pace = Pace(engine)
    while (plan := pace.plan()) is not None:
        for times in sorted({1, 7, plan.horizon - 1}):
            if 0 < times < min(plan.horizon, 120):
                leaper, leap_plan = copy.deepcopy((engine, plan))
                stepper, step_plan = copy.deepcopy((engine, plan))
                leaper.repeat(leap_plan, times)
                for _ in range(times):
                    stepper.commit(step_plan, ())
                    step_plan = stepper.plan()
                    assert step_plan is not None
                    assert not step_plan.prefills
                    assert not step_plan.preempted
                assert state(leaper) == state(stepper)
                assert leap_plan.shape() == step_plan.shape()
        engine.commit(plan, model.finish(plan))


def state(engine: Scheduler) -> object:
    """All that later decisions depend on, up to the renaming of blocks."""
    group = engine.group
    return (
        group.steps,
        [(r.id, r.origin, len(r.blocks), offset) for r, offset in group.members.items()],
        [[r.id for r in bucket] for bucket in group.wheel],
        [r.id for r in getattr(engine, "running", ()) or ()] if not isinstance(engine, Single) else None,
        engine.waiting_requests,
        engine.used_blocks,
    )
