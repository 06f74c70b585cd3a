"""Short stories of replicas that fail, come back, start and stop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from simulator.availability import MOST_RETRIES, Changes, Outage, Scaling, Wear
from simulator.cluster import Cluster, Fleet, Server
from simulator.cost_model import DecodeLine
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import IterationShape
from simulator.engine.single import Single
from simulator.recorder import COMPLETED, FAILED
from simulator.routers import LeastLoaded, RoundRobin, Router, one_request
from simulator.workloads.arrival import Arrival, Turn
from simulator.workloads.workload import Workload

SERVICE = 1000


class ConstantService:
    """Every answer takes as long."""

    def iteration_ns(self, shape: IterationShape) -> int:
        return SERVICE

    def decode_line(self, decodes: int, context_tokens: int) -> DecodeLine:
        raise AssertionError("an answer of one token never decodes")


def single() -> Single:
    return Single(KVCache(10, 16), max_model_len=10)


def cluster(
    arrivals: Sequence[int], replicas: int, changes: Changes, router: Router | None = None
) -> Cluster:
    servers = [Server(single(), ConstantService(), 10, renew=single) for _ in range(replicas)]
    changes = changes._replace(random=np.random.default_rng(7))
    fleet = Fleet(servers, router or RoundRobin(), changes=changes)
    rows = [Arrival(time, 1, 1, 1) for time in arrivals]
    return Cluster(fleet, Workload(lambda: iter(rows), requests=len(rows)))


def test_what_a_failing_replica_had_is_done_again_by_another() -> None:
    run = cluster([0, 0, 100], 2, Changes([Outage(0, 500, None)]))
    requests = run.run().requests
    assert requests["replica"].tolist() == [1, 1, 1]
    assert requests["finished_ns"].tolist() == [2000, 1000, 3000], "the second was with replica 1 all along"
    assert requests["arrival_ns"].tolist() == [0, 0, 100], "the client has waited since it first asked"
    record = run.record(3000)
    assert record is not None
    assert (record.failures, record.retries) == (1, 2)


def test_a_session_goes_on_after_its_turn_was_done_again() -> None:
    turn = Turn(300, 1, 1, 1)
    servers = [Server(single(), ConstantService(), 10, renew=single) for _ in range(2)]
    fleet = Fleet(servers, RoundRobin(), changes=Changes([Outage(0, 500, None)]))
    rows = [Arrival(0, 1, 1, 1, later=(turn,))]
    requests = Cluster(fleet, Workload(lambda: iter(rows), sessions=True)).run().requests
    assert requests["finished_ns"].tolist() == [1501, 2801], "failed at 500, sent again 1 ns later"
    assert requests["arrival_ns"].tolist() == [0, 1801]


def test_while_no_replica_is_there_requests_wait_for_one() -> None:
    run = cluster([0, 600], 1, Changes([Outage(0, 500, 1000)]))
    requests = run.run().requests
    assert requests["scheduled_ns"].tolist() == [1500, 2500] or requests["scheduled_ns"].tolist() == [
        2500,
        1500,
    ]
    assert requests["status"].tolist() == [COMPLETED, COMPLETED]


def test_where_no_replica_comes_back_requests_fail_and_say_why() -> None:
    """They fail as the last of them comes, not at 1,000, when the lost iteration would have ended."""
    tables = cluster([0, 600], 1, Changes([Outage(0, 500, None)])).run()
    assert tables.requests["finished_ns"].tolist() == [600, 600]
    assert tables.requests["status"].tolist() == [FAILED, FAILED]
    assert set(tables.reasons.values()) == {"no replica was left"}


def test_a_request_that_is_lost_again_and_again_is_given_up() -> None:
    outages = [Outage(0, 500 + 700 * i, 100) for i in range(MOST_RETRIES + 1)]
    run = cluster([0], 1, Changes(outages))
    tables = run.run()
    assert tables.requests["status"].tolist() == [FAILED]
    assert tables.reasons[0] == f"lost by failing replicas {MOST_RETRIES + 1} times"
    record = run.record(10_000)
    assert record is not None
    assert (record.failures, record.retries) == (MOST_RETRIES + 1, MOST_RETRIES)


def test_an_iteration_that_has_ended_stays_on_record_and_the_one_under_way_does_not() -> None:
    tables = cluster([0, 0], 1, Changes([Outage(0, 1500, 500)])).run()
    assert tables.iterations["start_ns"].tolist() == [0, 2000]
    assert tables.iterations["end_ns"].tolist() == [1000, 3000]


def test_failures_by_chance_come_as_often_as_their_mean_says() -> None:
    """Up for 20 services on average, away for 5: of 2,000 services about 2000 / 25 failures."""
    arrivals = list(range(0, 2_000 * SERVICE, 2 * SERVICE))
    run = cluster(
        arrivals, 2, Changes(wear=[Wear(0, 20.0 * SERVICE, 5 * SERVICE)]), LeastLoaded(one_request)
    )
    run.run()
    record = run.record(2_000 * SERVICE)
    assert record is not None
    assert record.failures == pytest.approx(80, abs=3.5 * 80**0.5)


SCALING = Scaling(1, 3, 2.0, start_up_ns=400, interval_ns=1000, stabilisation_ns=2000)


def test_replicas_are_started_by_load_and_serve_after_their_start_up() -> None:
    """Eight requests at once ask for four replicas; three are allowed, and two of them must start."""
    run = cluster([0] * 8 + [1100, 1500], 3, Changes(scaling=SCALING), LeastLoaded(one_request))
    requests = run.run().requests
    assert set(requests["replica"][:8].tolist()) == {0}, "there was no other"
    assert requests["replica"][8] == 0, "the others are starting"
    assert requests["replica"][9] == 1
    assert requests["finished_ns"][9] == 2500


def test_replicas_stop_once_the_load_has_been_low_for_long_enough_and_are_paid_until_then() -> None:
    arrivals = [0] * 8 + [20_500]
    run = cluster(arrivals, 3, Changes(scaling=SCALING), LeastLoaded(one_request))
    end_ns = int(run.run().requests["finished_ns"].max())
    record = run.record(end_ns)
    assert record is not None
    assert (record.started, record.stopped) == (2, 2)
    assert (record.fewest, record.most) == (1, 3)
    assert end_ns == 21_500
    # Unanswered at 1,000, 2,000 ... 9,000: 8, 7, 6, 5, 4, 3, 2, 1, 0; wanted: 3, 3, 3, 3, 2, 2, 1, 1, 1.
    # The most of the last three: two from 7,000, one from 9,000; gone at the decision after that.
    assert record.replica_ns == end_ns + (10_000 - 1000) + (8000 - 1000)


def test_replicas_about_to_stop_are_taken_back_first() -> None:
    """Nothing has to start up again: the second wave is served at once."""
    arrivals = [0] * 8 + [7_500] * 6
    run = cluster(arrivals, 3, Changes(scaling=SCALING._replace(stabilisation_ns=60_000)))
    run.run()
    record = run.record(20_000)
    assert record is not None
    assert (record.started, record.stopped) == (2, 0)
    assert (record.fewest, record.most) == (1, 3)
