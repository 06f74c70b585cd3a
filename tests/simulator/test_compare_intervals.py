"""Paired differences and their confidence intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.measures import MEASURES, Measure
from simulator.paired import Difference, paired_difference, t_975
from simulator.summary_words import percent, three_digits


@pytest.mark.parametrize("degrees", [*range(1, 60), 100, 1000, 100_000])
def test_quantiles_are_those_of_students_t(degrees: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert t_975(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=0.0006)  # three decimals


figures = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12)


@given(figures, st.floats(-1e6, 1e6))
def test_a_constant_shift_is_certain_whatever_the_noise(values: list[float], shift: float) -> None:
    """Noise that both alternatives share cancels: that is what common random numbers are for."""
    difference = paired_difference([value + shift for value in values], values)
    assert difference.mean == pytest.approx(shift, abs=1e-6)
    assert difference.half_width == pytest.approx(0, abs=1e-6)


@given(figures)
def test_swapping_the_sides_turns_the_sign_and_keeps_the_width(values: list[float]) -> None:
    other = values[::-1]
    there, back = paired_difference(values, other), paired_difference(other, values)
    assert there.mean == pytest.approx(-back.mean, abs=1e-9)
    assert there.half_width == pytest.approx(back.half_width)


def test_one_run_has_no_interval() -> None:
    assert paired_difference([3.0], [1.0]) == (2.0, None)


def test_nineteen_of_twenty_intervals_hold_the_true_difference() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(2000):
        noise = rng.normal(size=5)
        difference = paired_difference((noise + rng.normal(1, 2, 5)).tolist(), noise.tolist())
        assert difference.half_width is not None
        held += abs(difference.mean - 1) <= difference.half_width
    assert 0.935 < held / 2000 < 0.965  # three standard errors of a share of 0.95


WORDS = [
    (Difference(-12.34, None), 100.0, "-12.3 %"),
    (Difference(12.34, 0.5), 100.0, "+12.3 ±0.5 %"),
    (Difference(900.0, None), 100.0, "+900 %"),
    (Difference(1650.0, None), 100.0, "x17.5"),
    (Difference(1650.0, 25.0), 100.0, "x17.5 ±0.2"),
    (Difference(123_400.0, None), 100.0, "x1,235"),
    (Difference(0.0, 0.0), 100.0, "="),
    (Difference(0.0, 3.0), 100.0, "+0.0 ±3.0 %"),
    (Difference(5.0, None), 0.0, ""),
    (Difference(0.0, None), 0.0, "="),
    (None, 100.0, ""),
    (Difference(5.0, None), None, ""),
]


@pytest.mark.parametrize(("difference", "first", "words"), WORDS)
def test_differences_in_words(difference: Difference | None, first: float | None, words: str) -> None:
    assert Measure("a.b", "", "higher", three_digits).difference_words(difference, first) == words


def test_shares_differ_by_points() -> None:
    measure = Measure("a.b", "", "higher", percent)
    assert measure.difference_words(Difference(-0.034, 0.002), 0.5) == "-3.4 ±0.2 pt"
    assert measure.difference_words(Difference(0.25, None), 0.0) == "+25.0 pt"


def test_no_figure_is_compared_twice() -> None:
    assert len({measure.key for measure in MEASURES}) == len({measure.label for measure in MEASURES})
    assert len({measure.key for measure in MEASURES}) == len(MEASURES)
