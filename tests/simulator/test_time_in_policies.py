"""Policies that name a time, through the whole simulator: wake-ups, timeouts, full queues."""

from __future__ import annotations

from simulator.cluster import Cluster, alike
from simulator.engine.bucketed import Bucketed
from simulator.engine.dynamic import Dynamic
from simulator.engine.kv_cache import KVCache
from simulator.engine.queue_policy import QueuePolicy
from simulator.engine.scheduler import Scheduler
from simulator.metrics import littles_law
from simulator.recorder import COMPLETED, REJECTED
from simulator.routers import RoundRobin
from simulator.run_tables import RunTables
from simulator.workloads.arrival import Arrival
from simulator.workloads.workload import Workload
from tests.laws.worlds import ToyCost

BLOCKS = 100


def serve(scheduler: Scheduler, arrival_ns: list[int], concurrency: int | None = None) -> RunTables:
    arrivals = [Arrival(time, 4, 3, 3) for time in arrival_ns]
    workload = Workload(lambda: iter(arrivals), concurrency, len(arrivals))
    return Cluster(alike([scheduler], ToyCost(), RoundRobin(), BLOCKS), workload).run()


def bucketed(timeout_ns: int) -> Bucketed:
    return Bucketed(KVCache(BLOCKS, 4), max_num_seqs=3, max_model_len=50, timeout_ns=timeout_ns)


def dynamic(limits: QueuePolicy) -> Dynamic:
    return Dynamic(KVCache(BLOCKS, 4), max_num_seqs=1, max_model_len=50, queue_policy=limits)


def test_an_idle_replica_wakes_when_the_oldest_has_waited_long_enough() -> None:
    tables = serve(bucketed(900), [100, 300])
    assert tables.iterations["start_ns"][0] == 1000
    assert tables.requests["scheduled_ns"].tolist() == [1000, 1000]


def test_an_arrival_at_the_moment_of_waking_still_joins() -> None:
    """At equal times what comes from outside comes first."""
    assert serve(bucketed(900), [100, 1000]).requests["scheduled_ns"].tolist() == [1000, 1000]


def test_a_bucket_that_fills_is_not_kept_waiting() -> None:
    assert serve(bucketed(900), [100, 200, 300]).iterations["start_ns"][0] == 300


def test_requests_given_up_are_rejected_with_their_reason_at_the_end_of_the_batch_before() -> None:
    tables = serve(dynamic(QueuePolicy(timeout_ns=2)), [0, 1, 1])
    requests = tables.requests
    assert requests["status"].tolist() == [COMPLETED, REJECTED, REJECTED]
    assert requests["finished_ns"].tolist() == [requests["finished_ns"][0]] * 3
    assert tables.reasons == dict.fromkeys((1, 2), "waited longer than its timeout of 2e-06 ms")
    assert littles_law(tables).number_in_system > 1


def test_a_full_queue_turns_away_at_once() -> None:
    tables = serve(dynamic(QueuePolicy(max_queue_size=1)), [0, 1, 2])
    assert tables.requests["status"].tolist() == [COMPLETED, COMPLETED, REJECTED]
    assert tables.reasons == {2: "the queue holds max_queue_size (1) requests"}
    assert tables.requests["finished_ns"][2] == -1


def test_a_client_whose_request_was_given_up_sends_the_next() -> None:
    tables = serve(dynamic(QueuePolicy(timeout_ns=1)), [0] * 6, concurrency=2)
    assert len(tables.requests["id"]) == 6
    assert {COMPLETED, REJECTED} == set(tables.requests["status"].tolist())
