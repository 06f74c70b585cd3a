"""Warm-up, intervals and growth on series whose truth is known."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import ScenarioError
from simulator.planning.criteria import Attainment, Percentile, criteria, quantile
from simulator.planning.steady_state import Interval, growth, interval, sections, student, warm_up
from simulator.scenario import SloSettings


def noise(seed: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(100, 5, length)


def autoregressive(seed: int, length: int, phi: float) -> np.ndarray:
    """AR(1) with unit innovations and mean 0, started in its stationary distribution."""
    generator = np.random.default_rng(seed)
    shocks = generator.normal(0, 1, length)
    series = np.empty(length)
    series[0] = shocks[0] / sqrt(1 - phi**2)
    for place in range(1, length):
        series[place] = phi * series[place - 1] + shocks[place]
    return series


def test_a_start_that_differs_is_cut_and_nothing_more() -> None:
    series = noise(1, 5000)
    series[:600] = np.linspace(0, 100, 600)
    cut, settled = warm_up(series)
    assert settled
    assert 480 <= cut <= 700


def test_little_is_cut_where_there_was_no_start() -> None:
    cuts = [warm_up(noise(seed, 5000)).cut for seed in range(20)]
    assert np.median(cuts) <= 250


def test_a_series_that_still_rises_has_not_settled() -> None:
    assert not warm_up(np.linspace(0, 1000, 5000) + noise(2, 5000)).settled


def test_a_series_too_short_to_tell_has_not_settled() -> None:
    assert not warm_up(noise(3, 40)).settled


@pytest.mark.parametrize("phi", [0.0, 0.9])
def test_intervals_of_a_percentile_cover_the_truth_about_as_often_as_they_say(phi: float) -> None:
    """Also for neighbours that resemble each other: the stationary distribution is normal."""
    truth = 1.6448536269514722 / sqrt(1 - phi**2)  # 95th percentile
    covered = 0
    for seed in range(100):
        runs = [autoregressive(1000 * seed + r, 3000, phi) for r in range(4)]
        pooled = quantile(np.concatenate(runs), 0.95)
        found = interval(
            pooled,
            lambda n, runs=runs: [[quantile(p, 0.95) for p in np.array_split(r, n)] for r in runs],
            sections([3000] * 4, 200),
        )
        covered += found.low <= truth <= found.high
    assert 88 <= covered <= 100  # 95 expected; 88 is 3.2 standard deviations below


def test_growth_is_told_from_chance() -> None:
    flat = [autoregressive(seed, 4000, 0.95) + 50 for seed in range(6)]
    rising = [one + np.linspace(0, 20, 4000) for one in flat]
    assert not growth(flat).material
    assert growth(rising).material
    assert growth(rising).share.value == pytest.approx(20 / 60, rel=0.25)


@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=50), share=st.floats(0, 1))
def test_quantiles_are_numpys(values: list[float], share: float) -> None:
    found = quantile(np.array(values), share)
    assert found == pytest.approx(np.quantile(values, share), rel=1e-9, abs=1e-9)


def test_lost_requests_are_beyond_every_percentile_that_they_reach() -> None:
    values = np.array([1.0] * 97 + [inf] * 3)
    assert quantile(values, 0.95) == 1.0
    assert quantile(values, 0.99) == inf


def test_no_interval_comes_from_one_value_or_from_infinite_ones() -> None:
    assert student(3.0, [3.0]) == Interval(3.0, inf)
    assert student(3.0, [3.0, inf]) == Interval(3.0, inf)


@settings(max_examples=50)
@given(limit=st.floats(1, 1e3), slowdown=st.floats(0.5, 2), seed=st.integers(0, 99))
def test_slower_steps_strain_a_percentile_in_proportion(limit: float, slowdown: float, seed: int) -> None:
    sample = {"ttft_ms": np.random.default_rng(seed).exponential(100, 500)}
    criterion = Percentile("ttft_ms", 99, limit)
    assert criterion.strain(sample, slowdown) == pytest.approx(slowdown * criterion.strain(sample))


def test_attainment_counts_requests_that_keep_every_limit() -> None:
    """DistServe's goodput: 1 of 4 keeps both, though 2 keep each."""
    sample = {"ttft_ms": np.array([1.0, 1.0, 9.0, 9.0]), "tpot_ms": np.array([1.0, 9.0, 1.0, 9.0])}
    criterion = Attainment(0.9, (("ttft_ms", 5.0), ("tpot_ms", 5.0)))
    assert criterion.attained(sample) == 0.25
    assert criterion.strain(sample) == pytest.approx(7.5)
    assert criterion.attained(sample, slowdown=5.0) == 0.25
    assert criterion.attained(sample, slowdown=5.1) == 0.0


def test_criteria_are_those_of_the_slo() -> None:
    assert criteria(SloSettings(ttft_ms=500, tpot_ms=50)) == (
        Percentile("ttft_ms", 99, 500),
        Percentile("tpot_ms", 99, 50),
    )
    assert criteria(SloSettings(ttft_ms=500, percentile=95)) == (Percentile("ttft_ms", 95, 500),)
    both = (Attainment(0.9, (("ttft_ms", 500), ("tpot_ms", 50))),)
    assert criteria(SloSettings(ttft_ms=500, tpot_ms=50, attainment=0.9)) == both
    assert criteria(SloSettings(ttft_ms=500, tpot_ms=50), 0.9) == both


def test_sarathis_capacity_is_p99_tbt_with_the_median_delay() -> None:
    wanted = criteria(SloSettings(itl_ms=200, queue_ms=2000))
    assert wanted == (Percentile("itl_ms", 99, 200), Percentile("queue_ms", 50, 2000))


def test_without_an_slo_there_is_one_clear_line() -> None:
    with pytest.raises(
        ScenarioError, match=r"capacity needs an SLO: .* such as slo: \{ttft_ms: 500"
    ) as told:
        criteria(None)
    assert len(str(told.value).splitlines()) == 1
