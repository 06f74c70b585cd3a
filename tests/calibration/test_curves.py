"""Monotone fits recover what they are given, and outliers do not move them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.curves import error_summary, evaluate, isotonic, monotone_fit, simplified
from simulator.profile import Curve

KNOTS = [1.0, 4.0, 16.0, 64.0, 256.0]
TRUTH = np.array([100.0, 100.0, 180.0, 700.0, 3000.0])


def test_a_curve_is_recovered_from_noise() -> None:
    chance = np.random.default_rng(1)
    at = chance.uniform(1, 256, 400)
    ns = np.interp(at, KNOTS, TRUTH) * chance.normal(1, 0.02, 400)
    fitted = monotone_fit(at.tolist(), ns.tolist(), KNOTS)
    places = np.linspace(2, 250, 100)
    assert evaluate(fitted, places) == pytest.approx(np.interp(places, KNOTS, TRUTH), rel=0.02)


def test_every_fifth_measurement_being_an_outlier_costs_three_per_cent() -> None:
    chance = np.random.default_rng(2)
    at = np.geomspace(1, 256, 400)
    ns = np.interp(at, KNOTS, TRUTH) * chance.normal(1, 0.01, 400)
    ns[::5] *= 3
    fitted = monotone_fit(at.tolist(), ns.tolist(), KNOTS)
    places = np.geomspace(1, 250, 100)
    assert evaluate(fitted, places) == pytest.approx(np.interp(places, KNOTS, TRUTH), rel=0.03)


times = st.lists(st.floats(1.0, 1e9), min_size=2, max_size=12)


@given(times)
def test_a_fit_rises_and_stays_within_what_was_measured(ns: list[float]) -> None:
    knots = [float(index + 1) for index in range(len(ns))]
    fitted = monotone_fit(knots, ns, knots)
    assert all(later >= earlier >= 0 for earlier, later in zip(fitted.ns, fitted.ns[1:], strict=False))
    assert max(fitted.ns) <= max(ns) * 1.001


@given(times)
def test_isotonic_rises_keeps_the_mean_and_leaves_order_alone(values: list[float]) -> None:
    given_values = np.array(values)
    risen = isotonic(given_values)
    assert np.all(np.diff(risen) >= 0)
    assert risen.mean() == pytest.approx(given_values.mean())
    assert isotonic(np.sort(given_values)).tolist() == sorted(values)


@given(times, st.sampled_from([0.001, 0.02, 0.3]))
def test_simplifying_keeps_the_ends_and_the_tolerance(values: list[float], tolerance: float) -> None:
    knots = tuple(float(2**index) for index in range(len(values)))
    curve = Curve(knots, tuple(sorted(values)))
    small = simplified(curve, tolerance)
    assert (small.knots[0], small.knots[-1]) == (knots[0], knots[-1])
    assert evaluate(small, knots) == pytest.approx(np.array(curve.ns), rel=tolerance * 1.0001)


def test_a_straight_line_needs_two_knots() -> None:
    curve = Curve((1.0, 2.0, 3.0, 9.0), (10.0, 20.0, 30.0, 90.0))
    assert simplified(curve, 0.001) == Curve((1.0, 9.0), (10.0, 90.0))


def test_errors_are_summarised_by_size() -> None:
    summary = error_summary([0.01, -0.03, 0.02], "something")
    assert (summary["points"], summary["median"]) == (3, 0.02)
