"""Arrival processes keep the rate and the shape that were asked for, and nothing is clipped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ScenarioError
from simulator.workloads.arrival import Arrival
from simulator.workloads.arrivals import (
    ArrivalTimes,
    BurstTimes,
    ConstantTimes,
    RecordedTimes,
    gamma_times,
    poisson_times,
    rescale,
    spread_ticks,
)

SECOND = 1_000_000_000
PROCESSES: dict[str, Callable[[], ArrivalTimes]] = {
    "poisson": lambda: poisson_times(8, np.random.default_rng(7)),
    "gamma": lambda: gamma_times(8, 3, np.random.default_rng(7)),
    "constant": lambda: ConstantTimes(3),
    "burst": BurstTimes,
}


def gaps_s(times: ArrivalTimes, count: int) -> np.ndarray:
    return np.diff(times.take(count), prepend=0) / SECOND


def test_poisson_at_8_per_s_is_8_per_s() -> None:
    """A peer clips its gaps, which turns 8/s into 8.42/s; the mean here is within 4 standard errors."""
    gaps = gaps_s(poisson_times(8, np.random.default_rng(1)), 400_000)
    assert 1 / gaps.mean() == pytest.approx(8, rel=4 / math.sqrt(400_000))


def test_poisson_gaps_are_exponential_from_the_shortest_to_the_longest() -> None:
    """Quantiles far out in both tails: neither end is clipped."""
    gaps = np.sort(gaps_s(poisson_times(8, np.random.default_rng(2)), 400_000)) * 8
    for share in (0.0005, 0.01, 0.5, 0.99, 0.9995):
        spread = math.sqrt(share * (1 - share) / len(gaps))
        below = np.searchsorted(gaps, -math.log1p(-share)) / len(gaps)
        assert below == pytest.approx(share, abs=4 * spread)


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_gamma_gaps_have_the_mean_and_variation_asked_for(cv: float) -> None:
    gaps = gaps_s(gamma_times(5, cv, np.random.default_rng(3)), 400_000)
    assert gaps.mean() == pytest.approx(0.2, rel=4 * cv / math.sqrt(400_000))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


@pytest.mark.parametrize("cv", [0.5, 1.0])
def test_the_first_request_comes_one_gap_after_the_start(cv: float) -> None:
    """Over many seeds the first arrival has the mean of a gap: it is neither 0 nor cut short."""
    first = [gamma_times(10, cv, np.random.default_rng(seed)).take(1)[0] for seed in range(2000)]
    assert np.mean(first) / SECOND == pytest.approx(0.1, rel=4 * cv / math.sqrt(2000))


def test_equal_gaps_that_are_no_whole_nanoseconds_do_not_drift() -> None:
    times = ConstantTimes(3).take(3_000_000)
    assert times[:3].tolist() == [333_333_333, 666_666_667, SECOND]
    assert times[-1] == 1_000_000 * SECOND


def test_a_burst_is_all_at_once() -> None:
    assert not BurstTimes().take(5).any()


@pytest.mark.parametrize("name", PROCESSES)
@given(pieces=st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_times_do_not_depend_on_the_pieces_they_are_taken_in(name: str, pieces: Sequence[int]) -> None:
    whole = PROCESSES[name]().take(sum(pieces)).tolist()
    stream = PROCESSES[name]()
    assert [time for piece in pieces for time in stream.take(piece).tolist()] == whole
    assert whole == sorted(whole)


def rows_at(times_ns: Sequence[int]) -> list[Arrival]:
    return [Arrival(time, number + 1, 1, 1) for number, time in enumerate(times_ns)]


def test_recorded_times_end_where_the_recording_ends() -> None:
    times = RecordedTimes(rows_at([0, 5, 9]))
    assert times.take(2).tolist() == [0, 5]
    assert times.take(2).tolist() == [9]


def test_twice_the_rate_halves_every_gap_and_keeps_everything_else() -> None:
    rows = rows_at([0, 10, 50])
    assert list(rescale(rows, 2)) == [row._replace(arrival_ns=row.arrival_ns // 2) for row in rows]


@pytest.mark.parametrize("times", [poisson_times(1e-9, np.random.default_rng(7)), ConstantTimes(1e-9)])
def test_times_beyond_what_nanoseconds_can_count_are_refused(times: ArrivalTimes) -> None:
    """Instead of wrapping round to the past."""
    with pytest.raises(ScenarioError, match=r"more than 146 years after the start; raise the rate$"):
        times.take(100)


def test_a_rate_scale_that_slows_time_beyond_reach_is_refused() -> None:
    with pytest.raises(ScenarioError, match="more than 146 years"):
        list(rescale(rows_at([0, 3600 * SECOND]), 1e-9))


ticked = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=2, max_size=30)


@given(steps=ticked, seed=st.integers(0, 2**32))
def test_spreading_keeps_order_rows_and_ticks(steps: list[tuple[int, int]], seed: int) -> None:
    """Each request stays within its own tick, no longer than the shortest step, before the next time."""
    times: list[int] = []
    now = 0
    for step, requests in steps:
        times += [now] * requests
        now += step * 1000
    tick = min(step for step, _ in steps[:-1]) * 1000
    rows = rows_at(times)
    spread = list(spread_ticks(rows, np.random.default_rng(seed)))
    assert [row[1:] for row in spread] == [row[1:] for row in rows]
    assert all(
        0 <= after.arrival_ns - before.arrival_ns < tick for before, after in zip(rows, spread, strict=True)
    )
    assert [row.arrival_ns for row in spread] == sorted(row.arrival_ns for row in spread)


def test_spreading_is_uniform_over_the_tick() -> None:
    rows = rows_at([0] * 20_000 + [1000] * 20_000)
    offsets = [row.arrival_ns % 1000 for row in spread_ticks(rows, np.random.default_rng(4))]
    counts = np.bincount(offsets, minlength=1000).reshape(10, 100).sum(axis=1)
    assert counts == pytest.approx(np.full(10, 4000), abs=4 * math.sqrt(4000))


def test_an_idle_hour_is_not_taken_for_a_tick() -> None:
    rows = rows_at([0, 0, SECOND, SECOND, 3600 * SECOND, 3600 * SECOND])
    spread = [row.arrival_ns for row in spread_ticks(rows, np.random.default_rng(5))]
    assert SECOND <= spread[2] <= spread[3] < 2 * SECOND


def test_requests_that_all_share_one_time_stay_where_they_are() -> None:
    rows = rows_at([0, 0, 0])
    assert list(spread_ticks(rows, np.random.default_rng(6))) == rows
