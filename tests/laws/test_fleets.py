"""What holds for every fleet, whatever happens to its replicas."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.availability import Changes
from simulator.engine.scheduler import Scheduler
from simulator.metrics import littles_law
from simulator.recorder import COMPLETED, FAILED, REJECTED
from simulator.run_tables import RunTables
from tests.laws.fleets import (
    RandomFleet,
    changing_fleets,
    of_replicas,
    scaled_fleets,
    split_fleets,
    steady_fleets,
)
from tests.laws.worlds import World, worlds

fleets = st.one_of(changing_fleets(), scaled_fleets(), steady_fleets(), split_fleets())


def check_every_request_ends_once(world: World, tables: RunTables) -> None:
    requests = tables.requests
    assert requests["id"].tolist() == list(range(len(world.arrivals)))
    for i, arrival in enumerate(world.arrivals):
        if requests["status"][i] == COMPLETED:
            assert requests["output_tokens"][i] == arrival.output_tokens
            assert requests["arrival_ns"][i] <= requests["scheduled_ns"][i] < requests["first_token_ns"][i]
            assert requests["first_token_ns"][i] <= requests["finished_ns"][i]
        else:
            assert requests["status"][i] in (REJECTED, FAILED)
            assert tables.reasons[i]


@settings(max_examples=200, deadline=None)
@given(fleet=fleets)
def test_every_request_ends_once_and_littles_law_holds(fleet: RandomFleet) -> None:
    tables = fleet.run()
    check_every_request_ends_once(fleet.world, tables)
    law = littles_law(tables)
    assert law.number_in_system == law.rate_times_sojourn


def as_seen(tables: RunTables) -> tuple[dict[str, list[int]], list[tuple[int, int]]]:
    """The requests, and how many tokens saw each gap."""
    gaps, place = np.unique(tables.gap_ns, return_inverse=True)
    rows = np.bincount(place, weights=tables.gap_rows, minlength=len(gaps)).astype(int)
    seen = [(gap, count) for gap, count in zip(gaps.tolist(), rows.tolist(), strict=True) if count]
    return {name: column.tolist() for name, column in tables.requests.items()}, seen


@settings(max_examples=150, deadline=None)
@given(fleet=fleets)
def test_leaps_change_nothing_and_a_second_run_is_the_same(fleet: RandomFleet) -> None:
    leaping = as_seen(fleet.run())
    assert as_seen(fleet.run()) == leaping
    assert as_seen(fleet.run(longest_leap=1)) == leaping


@settings(max_examples=150, deadline=None)
@given(fleet=st.one_of(steady_fleets(), split_fleets()))
def test_gaps_between_tokens_add_up_over_transfers_and_stages(fleet: RandomFleet) -> None:
    tables = fleet.run()
    assume(all(server.scheduler.streams for server in fleet.servers))
    done = tables.requests["status"] == COMPLETED
    waited = (tables.requests["finished_ns"] - tables.requests["first_token_ns"])[done]
    assert (tables.gap_ns * tables.gap_rows).sum() == waited.sum()
    assert tables.gap_rows.sum() == (tables.requests["output_tokens"][done] - 1).sum()


@settings(max_examples=100, deadline=None)
@given(fleet=fleets)
def test_iterations_of_a_replica_never_overlap(fleet: RandomFleet) -> None:
    table = fleet.run().iterations
    for replica in range(len(fleet.servers)):
        mine = table["replica"] == replica
        assert (table["end_ns"][mine] > table["start_ns"][mine]).all()
        assert (table["start_ns"][mine][1:] >= table["end_ns"][mine][:-1]).all()


def check_empty(scheduler: Scheduler) -> None:
    assert not scheduler.busy
    assert scheduler.used_blocks == scheduler.waiting_requests == 0


@settings(max_examples=150, deadline=None)
@given(fleet=split_fleets())
def test_no_block_is_lost_on_either_side(fleet: RandomFleet) -> None:
    cluster = fleet.cluster()
    cluster.run()
    for replica in cluster.replicas:
        check_empty(replica.scheduler)
        assert replica.outstanding == 0
        replica.scheduler.kv.check([])


@settings(max_examples=100, deadline=None)
@given(fleet=split_fleets())
def test_a_second_token_comes_after_the_kv_has_travelled(fleet: RandomFleet) -> None:
    requests = fleet.run().requests
    assert fleet.split is not None
    answered = (requests["status"] == COMPLETED) & (requests["output_tokens"] > 1)
    travelled = [fleet.split.link.transfer_ns(tokens) for tokens in requests["prompt_tokens"][answered]]
    after_first = (requests["finished_ns"] - requests["first_token_ns"])[answered]
    assert (after_first > np.array(travelled, np.int64)).all()
    assert (requests["replica"][answered] >= fleet.split.prompt_replicas).all()


@settings(max_examples=60, deadline=None)
@given(world=worlds(clusters=True))
def test_changes_of_which_none_happens_change_nothing(world: World) -> None:
    world = of_replicas(world, 2)
    plain = RandomFleet(world, "least-outstanding").run()
    kept_up = RandomFleet(world, "least-outstanding", changes=Changes()).run()
    assert as_seen(plain) == as_seen(kept_up)
