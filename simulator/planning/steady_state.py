"""When a simulated system has left its start behind, whether it ever will, and how sure its figures are.

Warm-up: the series of all replications is averaged (Welch), then cut where the marginal standard error of
what is left is smallest over means of five (MSER-5: White 1997, Simulation 69(6); Spratt 1998). Intervals:
sectioning (Asmussen and Glynn, Stochastic Simulation, III.5a): the figure of all kept requests together,
with Student's interval from the spread of the same figure over disjoint stretches of them. Stretches are
made longer until neighbours no longer resemble each other (von Neumann 1941). Consecutive requests share a
queue, so order-statistic intervals, which need independent ones, would be too narrow here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf, isfinite, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from simulator.paired import t_975

Series = NDArray[float64]

MEAN_OF = 5  # observations that MSER-5 averages before it looks
LATEST_CUT = 0.45  # of a series: a minimum beyond means that the series is still on its way
MOST_SECTIONS = 8  # of one replication
Z_975 = 1.96  # half widths of 95 % per standard error
ALIKE_Z = 1.645  # one-sided 5 %: neighbouring sections resemble each other
MATERIAL_GROWTH = 0.10  # over the whole of what was kept


class Warmup(NamedTuple):
    """How many observations at the start are the start's, and whether what follows has settled."""

    cut: int
    settled: bool


def warm_up(series: Series) -> Warmup:
    """Where MSER-5 cuts; not settled where that is late, or where the series is too short to tell."""
    means = series[: len(series) // MEAN_OF * MEAN_OF].reshape(-1, MEAN_OF).mean(axis=1)
    if len(means) < 10 or not np.isfinite(means).all():
        return Warmup(len(series) // 2, settled=False)
    left = np.arange(len(means), 0, -1)
    total = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means * means)[::-1])[::-1]
    error = (squares - total * total / left) / (left.astype(float64) ** 2)
    half = len(means) // 2
    cut = int(np.argmin(error[: half + 1]))
    return Warmup(cut * MEAN_OF, cut < LATEST_CUT * len(means))


class Interval(NamedTuple):
    """A figure and half the width of its 95 % interval, infinite where nothing bounds it."""

    value: float
    half_width: float

    @property
    def low(self) -> float:
        return self.value - self.half_width

    @property
    def high(self) -> float:
        return self.value + self.half_width


def sections(replications: Sequence[int], least: int) -> int:
    """Into how many stretches each replication is cut at most, none shorter than ``least``."""
    return max(1, min(MOST_SECTIONS, min(replications) // max(least, 1)))


def interval(pooled: float, figure: Callable[[int], list[list[float]]], most_sections: int) -> Interval:
    """An interval around a figure. ``figure(n)``: its values in n sections of every replication."""
    count = most_sections
    while True:
        values = figure(count)
        if count == 1 or not _neighbours_alike(values):
            return student(pooled, [value for row in values for value in row])
        count //= 2


def student(centre: float, values: Sequence[float]) -> Interval:
    """Student's interval around ``centre`` from independent values of the same figure."""
    if len(values) < 2 or not all(map(isfinite, values)) or not isfinite(centre):
        return Interval(centre, inf)
    return Interval(centre, t_975(len(values) - 1) * stdev(values) / sqrt(len(values)))


def together(first: Interval, second: Interval) -> Interval:
    """Two independent estimates of one figure as one, weighed by what each may be off.

    Where they differ by more than their intervals allow, the difference itself counts as an error of both
    (random effects: DerSimonian and Laird 1986, Controlled Clinical Trials 7(3), for two estimates):
    weights then become equal and the interval as wide as the disagreement. An estimate without an interval
    is taken for as sure as the other.
    """
    known = min(first.half_width, second.half_width)
    if not all(map(isfinite, (known, first.value, second.value))):
        return max(first, second)
    halves = [one.half_width if isfinite(one.half_width) else known for one in (first, second)]
    variances = [half**2 for half in halves]
    apart = (first.value - second.value) ** 2
    between = max(0.0, (apart * Z_975**2 - sum(variances)) / 2)
    weighed = [variance + between for variance in variances]
    total = sum(weighed)
    if not total:
        return first
    value = (first.value * weighed[1] + second.value * weighed[0]) / total
    return Interval(value, sqrt(weighed[0] * weighed[1] / total))


def _neighbours_alike(values: Sequence[Sequence[float]]) -> bool:
    """Whether sections next to each other differ less than any two do: von Neumann's ratio, one-sided."""
    everything = [value for row in values for value in row]
    if not all(map(isfinite, everything)):
        return True
    spread = stdev(everything) ** 2
    if not spread:
        return False
    steps = [(after - before) ** 2 for row in values for before, after in pairwise(row)]
    ratio = fmean(steps) / (2 * spread)  # 1 for independent values
    return (1 - ratio) * sqrt(len(steps)) > ALIKE_Z


class Growth(NamedTuple):
    """How the number of requests in the system grows over what was kept, as a share of its mean."""

    share: Interval

    @property
    def material(self) -> bool:
        """It grows beyond chance, and by more than one would overlook."""
        return self.share.low > 0 and self.share.value > MATERIAL_GROWTH


def growth(populations: Sequence[Series]) -> Growth:
    """The slope of each replication's number in the system, tested across replications."""
    slopes = [_slope(one) for one in populations]
    return Growth(student(fmean(slopes), slopes))


def _slope(series: Series) -> float:
    """Least-squares rise from the first to the last observation over the mean."""
    mean = float(series.mean())
    if not mean or len(series) < 2:
        return 0.0
    time = np.arange(len(series)) - (len(series) - 1) / 2
    slope = float((time * series).sum() / (time * time).sum())
    return slope * len(series) / mean
