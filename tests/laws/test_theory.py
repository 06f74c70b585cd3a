"""The simulator against queueing theory, within confidence intervals from independent replications."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import assume, given, settings

from simulator.cluster import Cluster, alike
from simulator.cost_model import DecodeLine
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import IterationShape
from simulator.engine.single import Single
from simulator.metrics import littles_law
from simulator.recorder import COMPLETED
from simulator.routers import RoundRobin
from simulator.run_tables import RunTables
from simulator.workloads.arrival import Arrival
from simulator.workloads.workload import Workload
from tests.laws.worlds import World, worlds

SERVICE_NS = 1_000_000


class ConstantService:
    """Every prefill takes the same time; answers of one token need nothing else."""

    def iteration_ns(self, shape: IterationShape) -> int:
        assert shape.decodes == 0
        return SERVICE_NS

    def decode_line(self, decodes: int, context_tokens: int) -> DecodeLine:
        raise AssertionError("an answer of one token never decodes")


def serve(arrival_ns: np.ndarray, replicas: int = 1) -> RunTables:
    arrivals = [Arrival(time, 1, 1, 1) for time in arrival_ns.tolist()]
    engines = [Single(KVCache(10, 16), max_model_len=10) for _ in range(replicas)]
    fleet = alike(engines, ConstantService(), RoundRobin(), 10)
    return Cluster(fleet, Workload(lambda: iter(arrivals), requests=len(arrivals))).run()


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_waiting_times_are_those_of_m_d_1(load: float) -> None:
    """Pollaczek-Khinchine for constant service: mean wait = load * service / (2 * (1 - load))."""
    means = []
    for seed in range(30):
        gaps = np.random.default_rng(seed).exponential(SERVICE_NS / load, 6000)
        tables = serve(np.cumsum(gaps).astype(np.int64))
        waits = tables.requests["scheduled_ns"] - tables.requests["arrival_ns"]
        means.append(waits[1000:].mean())
    expected = load * SERVICE_NS / (2 * (1 - load))
    error = np.std(means, ddof=1) / sqrt(len(means))
    assert abs(np.mean(means) - expected) < 3.5 * error, f"{np.mean(means)} against {expected} +- {error}"
    assert error < 0.05 * expected, "the interval is too wide to tell"


def test_lindleys_recursion_gives_every_single_wait() -> None:
    """W' = max(0, W + service - gap): an independent three-line simulation of the same queue."""
    arrival_ns = np.cumsum(np.random.default_rng(5).exponential(SERVICE_NS / 0.9, 3000)).astype(np.int64)
    tables = serve(arrival_ns)
    wait, expected = 0, [0]
    for gap in np.diff(arrival_ns).tolist():
        wait = max(0, wait + SERVICE_NS - gap)
        expected.append(wait)
    assert (tables.requests["scheduled_ns"] - arrival_ns).tolist() == expected


def test_round_robin_halves_the_load_of_each_of_two_replicas() -> None:
    arrival_ns = np.cumsum(np.random.default_rng(6).exponential(SERVICE_NS / 1.6, 2000)).astype(np.int64)
    together, alone = serve(arrival_ns, 2), serve(arrival_ns[::2])
    waits = together.requests["scheduled_ns"] - arrival_ns
    assert waits[::2].tolist() == (alone.requests["scheduled_ns"] - arrival_ns[::2]).tolist()


@settings(max_examples=100, deadline=None)
@given(world=worlds(clusters=True))
def test_littles_law_holds_exactly_on_every_run(world: World) -> None:
    """The time integral of the number present equals the sum of the times spent, to the nanosecond."""
    law = littles_law(world.run())
    assert law.number_in_system == law.rate_times_sojourn


@settings(max_examples=100, deadline=None)
@given(world=worlds())
def test_the_queue_that_iterations_saw_is_the_one_that_requests_stood_in(world: World) -> None:
    """Two tables written at different moments agree: arrived and not yet started, counted either way."""
    tables = world.run()
    requests, iterations = tables.requests, tables.iterations
    assume(not requests["preemptions"].any())
    served, let_in = requests["scheduled_ns"] >= 0, requests["status"] == COMPLETED
    let_in |= requests["finished_ns"] >= 0  # those that were given up later stood in the queue until then
    left = np.where(served, requests["scheduled_ns"], requests["finished_ns"])
    arrived, started = requests["arrival_ns"][let_in], left[let_in]
    for start, waiting in zip(iterations["start_ns"].tolist(), iterations["waiting"].tolist(), strict=True):
        assert waiting == np.count_nonzero((arrived <= start) & (started > start))
