"""What each timed thing takes at the machine's usual speed, though the machine never keeps it.

A timing is its point's own time, times how slow the machine was just then, times noise. Points are timed
many times in random order, so that all timings of a second together tell how slow the machine was in it,
and all seconds together what a point takes: medians of one, given the other, in turn until both hold
still (Tukey's median polish, Exploratory Data Analysis, 1977, chapter 11). One reference timing beside
each timing would tell the same with the noise of that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.curves import Floats
from calibration.grid import Point
from calibration.timings import REFERENCE, Timing
from simulator.errors import ProfileError

Whole = NDArray[np.int64]

WAITED = 0.02  # share of a timing that its threads waited for a processor, above which it does not count
LEAST = 3  # timings of a point that tell the machine's speed, and its median's interval
STRETCH_S, STRETCH = 0.5, 6  # a stretch of one speed is at least this long and holds as many timings
STEADY = 0.1  # log of the speeds of neighbouring stretches that differ by more: the machine drifted between
SCALED = 0.03  # log of a speed this far from the usual one
ROUNDS, STILL = 50, 1e-4


class Value(NamedTuple):
    """A point's time at the machine's usual speed."""

    ns: float
    timings: int  # that count
    interval: float  # half width of the median's 95 % interval, relative


class Findings(NamedTuple):
    """All points' values, and what became of the timings."""

    values: Mapping[Point, Value]
    reference_ns: float
    timings: int
    rescaled: int  # taken while the machine was faster or slower than usual
    drifting: int  # left out: its speed changed around the timing
    disturbed: int  # left out: others held the processors


class _Drift(NamedTuple):
    """For each timing: log of how slow the machine was, and whether it kept that speed."""

    slow: Floats
    steady: NDArray[np.bool_]


def find_values(timings: Sequence[Timing]) -> Findings:
    """Medians of each point at the machine's usual speed, which is that of the median second."""
    if not any(timing.piece == REFERENCE for timing in timings):
        raise ProfileError("the timings hold no reference, by which a machine's drift is known")
    points = list(dict.fromkeys(timing.point for timing in timings))
    places = {point: place for place, point in enumerate(points)}
    of = np.asarray([places[timing.point] for timing in timings])
    ns = np.log([timing.ns for timing in timings])
    undisturbed = np.asarray([timing.waited_ns <= WAITED * timing.ns for timing in timings])
    drift = _polish(timings, of, ns, undisturbed, len(points))
    counted = of != places[Point(REFERENCE, ())]
    level = ns - drift.slow
    values = {
        point: _value(np.exp(level[of == place]), undisturbed[of == place], drift.steady[of == place])
        for place, point in enumerate(points)
    }
    return Findings(
        {point: value for point, value in values.items() if point.piece != REFERENCE},
        values[Point(REFERENCE, ())].ns,
        int(counted.sum()),
        int((counted & (np.abs(drift.slow) > SCALED)).sum()),
        int((counted & ~drift.steady).sum()),
        int((counted & ~undisturbed).sum()),
    )


def _value(ns: Floats, undisturbed: NDArray[np.bool_], steady: NDArray[np.bool_]) -> Value:
    """Of the timings nothing is wrong with, or of the better ones where there are none."""
    better = next((mask for mask in (undisturbed & steady, undisturbed) if mask.any()), slice(None))
    kept = ns[better]
    return Value(float(np.median(kept)), len(kept), interval(kept.tolist()))


def _polish(
    timings: Sequence[Timing], of: Whole, ns: Floats, undisturbed: NDArray[np.bool_], points: int
) -> _Drift:
    """Points and stretches in turn, from what the references say; points timed often tell more."""
    often = np.bincount(of[undisturbed], minlength=points) >= LEAST
    tells = undisturbed & often[of]
    tells = tells if tells.any() else np.ones(len(of), bool)
    middle_s = np.asarray([timing.at_s - timing.ns / 2e9 for timing in timings])
    stretch = _stretches(np.asarray([timing.at_s for timing in timings]), tells)
    centres = _medians(middle_s[tells], stretch[tells])
    references = np.asarray([timing.piece == REFERENCE for timing in timings])
    slow = np.interp(middle_s, middle_s[references], ns[references] - np.median(ns[references]))
    speeds: Floats = np.zeros(len(centres))
    for _ in range(ROUNDS):
        level = _medians((ns - slow)[tells], of[tells], points)
        before, speeds = speeds, _medians((ns - level[of])[tells], stretch[tells])
        speeds -= np.median(speeds)
        slow = np.interp(middle_s, centres, speeds)
        if np.abs(speeds - before).max() < STILL:
            break
    jumps = np.abs(np.diff(speeds)) > STEADY
    unsteady = np.concatenate([[False], jumps]) & np.concatenate([jumps, [False]])
    return _Drift(slow, ~unsteady[stretch])


def _stretches(at_s: Floats, tells: NDArray[np.bool_]) -> Whole:
    """The number of the stretch that each timing falls in; timings before one that tells go with it."""
    found = np.zeros(len(at_s), dtype=np.int64)
    number, began_s, held = 0, at_s[0], 0
    for place in range(len(at_s)):
        if held >= STRETCH and at_s[place] - began_s >= STRETCH_S:
            number, began_s, held = number + 1, at_s[place], 0
        found[place] = number
        held += int(tells[place])
    if held < STRETCH and number:
        found[found == number] = number - 1
    return found


def _medians(values: Floats, group: Whole, groups: int | None = None) -> Floats:
    """The median of each group's values; 0 for a group of none."""
    order = np.lexsort((values, group))
    counts = np.bincount(group, minlength=groups or 0)
    ends = np.cumsum(counts)
    starts = ends - counts
    ordered = values[order]
    low = ordered[np.minimum(starts + (counts - 1) // 2, len(values) - 1)]
    high = ordered[np.minimum(starts + counts // 2, len(values) - 1)]
    return np.where(counts > 0, (low + high) / 2, 0.0)


def interval(ns: Sequence[float]) -> float:
    """Half width of a median's 95 % interval over the median: 1.57 interquartile ranges over root n.

    Source: McGill, Tukey and Larsen, Variations of box plots, The American Statistician 32 (1978).
    """
    if len(ns) < LEAST:
        return float("inf")
    low, middle, high = np.quantile(ns, (0.25, 0.5, 0.75))
    return float(1.57 * (high - low) / len(ns) ** 0.5 / middle)
