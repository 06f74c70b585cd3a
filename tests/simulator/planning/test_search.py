"""The searches against services whose latency is a formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.planning.criteria import Percentile
from simulator.planning.laboratory import Care, Measurement
from simulator.planning.offer import Point
from simulator.planning.search import headroom, highest_rate, least_replicas, rate_if_slower
from simulator.planning.steady_state import Interval

SATURATION = 40.0  # requests/s of one replica
WANTED = (Percentile("ttft_ms", 99, 100.0),)


class Formula:
    """A laboratory whose every figure is a function of rho, without chance."""

    spent = False

    def __init__(self, strain: Callable[[float], float], half_width: float = 0.0) -> None:
        self._strain = strain
        self._half_width = half_width
        self.points: list[Point] = []

    def rho(self, point: Point) -> float:
        return point.rate_per_s / (point.replicas * SATURATION)

    def measure(self, points: Sequence[Point], care: Care) -> list[Measurement]:
        self.points += points
        return [self._one(point) for point in points]

    def _one(self, point: Point) -> Measurement:
        rho = self.rho(point)
        if rho >= 1:
            return Measurement(point, "unstable", rho)
        strain = self._strain(rho)
        verdict = "met" if strain <= 1 else "missed"
        return Measurement(point, verdict, rho, (Interval(strain, self._half_width * strain),))


def queue(scale: float) -> Callable[[float], float]:
    """Grows like a queue's wait: (1 + scale rho / (1 - rho)) / 4."""
    return lambda rho: (1 + scale * rho / (1 - rho)) / 4


@settings(max_examples=60)
@given(scale=st.floats(0.05, 30), replicas=st.integers(1, 9))
def test_the_highest_rate_is_found_to_two_per_cent(scale: float, replicas: int) -> None:
    """Strain 1 at rho = 3 / (3 + scale)."""
    truth = 3 / (3 + scale) * SATURATION * replicas
    found = highest_rate(Formula(queue(scale)), replicas, SATURATION * replicas)
    assert found.rate_per_s is not None
    assert found.rate_per_s.value == pytest.approx(truth, rel=0.021)
    assert found.rate_per_s.low <= truth * 1.001
    assert found.rate_per_s.high >= truth * 0.999
    assert found.met is not None
    assert found.met.point.rate_per_s <= truth


def test_no_rate_is_looked_at_beyond_saturation() -> None:
    bench = Formula(lambda _: 0.1)
    found = highest_rate(bench, 1, SATURATION)
    assert all(point.rate_per_s < SATURATION for point in bench.points)
    assert found.rate_per_s is not None
    assert 0.96 * SATURATION < found.rate_per_s.value <= SATURATION


def test_a_service_that_is_too_slow_when_idle_has_no_rate() -> None:
    assert highest_rate(Formula(lambda _: 1.5), 1, SATURATION).rate_per_s is None


@settings(max_examples=60)
@given(scale=st.floats(0.05, 30), rate=st.floats(1, 20_000))
def test_the_least_replicas_are_found_exactly(scale: float, rate: float) -> None:
    truth = ceil(rate / (3 / (3 + scale) * SATURATION) - 1e-9)
    bench = Formula(queue(scale))
    found = least_replicas(bench, rate, SATURATION)
    if abs(truth - rate / (3 / (3 + scale) * SATURATION)) > 1e-6:
        assert found.replicas == truth
    assert len({point.replicas for point in bench.points}) <= 30


def test_an_overloaded_number_is_never_the_answer() -> None:
    """Latency would allow everything; capacity does not."""
    found = least_replicas(Formula(lambda _: 0.01), 200, SATURATION)
    assert found.replicas == 6  # 5 are offered exactly what they serve
    assert found.tried[0].point.replicas == 5
    assert found.tried[0].verdict == "unstable"


def test_an_answer_that_no_further_run_can_sharpen_is_given_as_it_is() -> None:
    """Runs cost more than they tell from some point on; what was measured twice is then the same twice."""

    class Spent(Formula):
        def _one(self, point: Point) -> Measurement:
            waits = np.array([1.0, 2.0])
            return replace(super()._one(point), samples=({"ttft_ms": waits, "e2e_ms": waits},))

    bench = Spent(lambda rho: 0.97 if rho < 0.9 else 1.5, half_width=0.2)
    assert least_replicas(bench, 100, SATURATION).replicas == 3
    assert bench.points.count(Point(100, 3)) == 2


def test_no_number_of_replicas_helps_where_one_request_alone_is_too_slow() -> None:
    assert least_replicas(Formula(lambda _: 1.2), 200, SATURATION).replicas is None


@settings(max_examples=60)
@given(scale=st.floats(0.5, 10), slowdown=st.floats(0.9, 1.1))
def test_slower_steps_cost_rate_by_the_scale_of_time(scale: float, slowdown: float) -> None:
    """f q(f r) = limit, solved by hand for this formula."""
    curve = highest_rate(Formula(queue(scale)), 1, SATURATION).curve
    x = 4 / slowdown - 1  # scale rho / (1 - rho) must equal this
    truth = x / (x + scale) * SATURATION / slowdown
    assert rate_if_slower(curve, WANTED, slowdown) == pytest.approx(truth, rel=0.06)


@given(room=st.floats(0.8, 1.2))
def test_headroom_undoes_rate_if_slower(room: float) -> None:
    curve = highest_rate(Formula(queue(2.0)), 1, SATURATION).curve
    rate = rate_if_slower(curve, WANTED, room)
    assert headroom(curve, WANTED, rate) == pytest.approx(room, rel=0.03)


def test_a_point_without_figures_is_beyond_every_limit() -> None:
    one = Measurement(Point(50, 1), "unstable", 1.25)
    assert one.strain.value == inf
    assert not np.isfinite(one.strain.value)
