"""Many clients: their rates add up, their bursts are their own, and all follow the hours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import SeedSequence

from simulator.scenario import WorkloadSettings
from simulator.workloads.clients import FLAT, ClientTimes, Profile, client_rates
from simulator.workloads.describe import dispersion, window_counts
from simulator.workloads.renewal import gamma_gaps, stationary_times_s, weibull_gaps
from simulator.workloads.workload import build_workload

SECOND = 1_000_000_000


def times_ns(count: int = 20_000, seed: int = 0, **arrivals: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    settings = {
        "arrivals": {"process": "clients", "clients": 50, "rate_per_s": 10, **arrivals},
        "lengths": {"fixed": {"prompt": 1, "output": 1}},
        "requests": count,
    }
    workload = build_workload(WorkloadSettings.model_validate(settings), seed, Path())
    return np.array([row.arrival_ns for row in workload.arrivals()])


def test_times_are_in_order_and_follow_from_the_seed() -> None:
    first = times_ns()
    assert (np.diff(first) >= 0).all()
    assert first.tolist() == times_ns().tolist()
    assert first.tolist() != times_ns(seed=1).tolist()


def test_fewer_requests_are_the_first_of_more() -> None:
    assert times_ns(500).tolist() == times_ns(5000)[:500].tolist()


def test_alike_poisson_clients_are_one_poisson_process() -> None:
    """A superposition of Poisson processes: rate 10, dispersion 1."""
    times = times_ns(rate_sigma=0, cv=1, cv_sigma=0)
    assert len(times) / (times[-1] / SECOND) == pytest.approx(10, rel=0.03)
    assert dispersion(window_counts(times, 10)) == pytest.approx(1, abs=0.15)


def test_bursts_of_clients_survive_among_many() -> None:
    times = times_ns(rate_sigma=1, cv=6, cv_sigma=0.1)
    found = dispersion(window_counts(times, 60))
    assert found is not None
    assert found > 5


def test_clients_do_not_all_begin_with_a_burst() -> None:
    """A gap of cv 10 is nearly always none; begun with one, 1,000 clients would send at once."""
    seeds = [SeedSequence(seed) for seed in range(20)]
    rates, cvs = np.full(200, 0.05), np.full(200, 10.0)
    early = [int((ClientTimes(rates, cvs, FLAT, seed).take(400) < SECOND).sum()) for seed in seeds]
    assert np.mean(early) < 60  # 10 expected, in bursts of about 100


def test_rates_are_lognormal_shares_of_the_whole() -> None:
    rates = client_rates(20_000, 300.0, 2.0, np.random.default_rng(1))
    assert rates.sum() == pytest.approx(300)
    assert np.log(rates).std() == pytest.approx(2.0, rel=0.03)


def test_the_profile_says_when_requests_come() -> None:
    """A tenth, then three times as many, period after period, at the same mean rate."""
    times = times_ns(rate_sigma=0, cv=1, cv_sigma=0, profile=[0.5, 1.5], period_s=200)
    first_half = (times % (200 * SECOND)) < 100 * SECOND
    assert first_half.mean() == pytest.approx(0.25, abs=0.02)
    assert len(times) / (times[-1] / SECOND) == pytest.approx(10, rel=0.05)


@given(
    levels=st.lists(st.floats(0.01, 100), min_size=1, max_size=24),
    period_s=st.floats(1, 1e5),
    own=st.lists(st.integers(0, 10**15), min_size=2, max_size=20),
)
def test_a_profile_keeps_order_and_whole_periods(
    levels: list[float], period_s: float, own: list[int]
) -> None:
    profile = Profile(levels, period_s)
    clock = profile.to_clock(np.sort(np.array(own)))
    assert (np.diff(clock) >= 0).all()
    period_ns = int(period_s * SECOND)
    whole = np.array([0, period_ns, 3 * period_ns])
    assert np.abs(profile.to_clock(whole) - whole).max() <= 1


@pytest.mark.parametrize(("law", "shape"), [(gamma_gaps, 0.3), (gamma_gaps, 4.0), (weibull_gaps, 0.5)])
def test_stationary_processes_have_their_rate_from_the_first_second(law: Any, shape: float) -> None:
    """What equilibrium means: whatever the stretch, rate times length of arrivals on average."""
    generator = np.random.default_rng(5)
    counts = [len(stationary_times_s(law(2.0, shape), 2.0, 1.5, generator)) for _ in range(6000)]
    error = np.std(counts) / np.sqrt(len(counts))
    assert np.mean(counts) == pytest.approx(3.0, abs=4 * error)
