"""Two replicas against queueing theory: what round-robin and joining the shorter queue cost in waiting."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.cluster import Cluster, alike
from simulator.cost_model import DecodeLine
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import IterationShape
from simulator.engine.single import Single
from simulator.routers import LeastLoaded, RoundRobin, Router, one_request, prompt_tokens
from simulator.workloads.arrival import Arrival
from simulator.workloads.workload import Workload

LOAD = 0.8
SERVICE_NS = 1_000_000
SIZE_TOKENS = 1000
REQUESTS, WARM_UP, SEEDS = 5000, 1000, 24


class PerToken:
    """A prompt takes a microsecond per token; answers of one token need nothing else."""

    def iteration_ns(self, shape: IterationShape) -> int:
        return shape.prefill_tokens * (SERVICE_NS // SIZE_TOKENS)

    def decode_line(self, decodes: int, context_tokens: int) -> DecodeLine:
        raise AssertionError("an answer of one token never decodes")


def waits(router: Router, arrival_ns: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    rows = zip(arrival_ns.tolist(), sizes.tolist(), strict=True)
    arrivals = [Arrival(time, size, 1, 1) for time, size in rows]
    engines = [Single(KVCache(10_000, 16), max_model_len=10**6) for _ in range(2)]
    fleet = alike(engines, PerToken(), router, 10_000)
    requests = Cluster(fleet, Workload(lambda: iter(arrivals), requests=len(arrivals))).run().requests
    return requests["scheduled_ns"] - requests["arrival_ns"]


def drawn(seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Poisson arrivals at 0.8 of what two replicas can do, exponential sizes."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(SERVICE_NS / (2 * LOAD), REQUESTS)
    sizes = np.maximum(1, random.exponential(SIZE_TOKENS, REQUESTS).round()).astype(np.int64)
    return np.cumsum(gaps).astype(np.int64), sizes


def mean_waits(router: Callable[[], Router]) -> NDArray[np.float64]:
    """In units of the mean service, one mean per independent replication."""
    means = [waits(router(), *drawn(seed))[WARM_UP:].mean() / SERVICE_NS for seed in range(SEEDS)]
    return np.array(means)


@pytest.fixture(scope="module")
def shorter_queue() -> NDArray[np.float64]:
    return mean_waits(lambda: LeastLoaded(one_request))


def standard_error(means: NDArray[np.float64]) -> float:
    return float(np.std(means, ddof=1)) / sqrt(len(means))


def round_robin_wait() -> float:
    """Every other Poisson arrival: the queue E2/M/1, whose wait follows from the root of s = A*(1 - s)."""
    root = 0.5
    for _ in range(200):
        root = (2 * LOAD / (2 * LOAD + 1 - root)) ** 2
    return root / (1 - root)


def shorter_queue_wait(most: int = 40) -> float:
    """Two M/M/1 queues, arrivals join the shorter: the Markov chain of (shorter, longer), solved."""
    states = [(low, high) for high in range(most + 1) for low in range(high + 1)]
    place = {state: i for i, state in enumerate(states)}
    rates = np.zeros((len(states), len(states)))
    for (low, high), i in place.items():
        moves = [(2 * LOAD, (low + 1, high)), (1.0, (low - 1, high)), (1.0, (low, high - 1))]
        for rate, (one, other) in moves:
            target = place.get((min(one, other), max(one, other)))
            if target is not None and min(one, other) >= 0:
                rates[i, target] += rate
    rates -= np.diag(rates.sum(axis=1))
    balance = np.vstack((rates.T[:-1], np.ones(len(states))))
    share = np.linalg.solve(balance, np.eye(len(states))[-1])
    number = sum(p * (low + high) for p, (low, high) in zip(share, states, strict=True))
    return float(number / (2 * LOAD) - 1)


def test_round_robin_of_exponential_work_waits_as_every_other_arrival_does() -> None:
    means = mean_waits(RoundRobin)
    error = standard_error(means)
    assert abs(means.mean() - round_robin_wait()) < 3.5 * error
    assert error < 0.05 * means.mean(), "the interval is too wide to tell"


def test_joining_the_shorter_queue_beats_round_robin_by_what_theory_says(
    shorter_queue: NDArray[np.float64],
) -> None:
    mean, error, expected = shorter_queue.mean(), standard_error(shorter_queue), shorter_queue_wait()
    assert abs(mean - expected) < 3.5 * error, f"{mean} against {expected} +- {error}"
    assert error < 0.05 * mean, "the interval is too wide to tell"
    assert mean + 3.5 * error < 0.85 * round_robin_wait()


def test_counting_tokens_comes_closer_to_one_queue_for_both(shorter_queue: NDArray[np.float64]) -> None:
    """M/M/2, where nobody waits beside an idle replica: load^2 / (1 - load^2) of a service."""
    by_tokens = mean_waits(lambda: LeastLoaded(prompt_tokens))
    saved = shorter_queue - by_tokens
    assert saved.mean() > 3.5 * standard_error(saved), "on the same arrivals"
    assert by_tokens.mean() > LOAD**2 / (1 - LOAD**2) - 3.5 * standard_error(by_tokens)


def test_with_constant_service_round_robin_is_one_queue_for_both_and_nothing_beats_it() -> None:
    """M/D/2: equal work in order of arrival frees replicas in turn (recursion of Kiefer and Wolfowitz)."""
    arrival_ns, _ = drawn(1)
    sizes = np.full(REQUESTS, SIZE_TOKENS)
    in_turn = waits(RoundRobin(), arrival_ns, sizes)
    free, expected = [0, 0], []
    for now in arrival_ns.tolist():
        start = max(now, free[0])
        expected.append(start - now)
        free = sorted((start + SERVICE_NS, free[1]))
    assert in_turn.tolist() == expected
    shorter = waits(LeastLoaded(one_request), arrival_ns, sizes)
    assert in_turn.mean() < shorter.mean() < 1.5 * in_turn.mean()
