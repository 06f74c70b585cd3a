"""The highest rate that a fleet bears and the least replicas that bear a rate, by monotone bisection.

Every point meets the same random numbers (Law, Simulation Modeling and Analysis: common random numbers),
so that latencies rise with the rate and fall with replicas but for what chance the intervals tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, exp, floor, inf, isfinite, log
from typing import NamedTuple, Protocol

from simulator.planning.criteria import Attainment, Criterion
from simulator.planning.laboratory import Care, Measurement
from simulator.planning.offer import Point
from simulator.planning.steady_state import Interval

TOLERANCE = 0.02  # of a rate, on both sides
GRID = (0.1, 0.5, 0.8, 0.9)  # loads at which the throughput-latency curve is drawn
IDLE = 0.01  # a load at which requests hardly meet
ROUGH = Care(0.3, patience=1)
CAREFUL = Care(0.05)
SHARPEST = 0.02  # half width of a strain beyond which no more runs are made
MOST_ROUNDS = 8
MOST_TIMES = 128  # as many replicas as the load needs at least, beyond which no more are tried


class Bench(Protocol):
    """What a search asks of a laboratory."""

    @property
    def spent(self) -> bool: ...

    def rho(self, point: Point) -> float: ...

    def measure(self, points: Sequence[Point], care: Care) -> list[Measurement]: ...


@dataclass(frozen=True, slots=True)
class HighestRate:
    """The highest rate that a fleet bears, with its interval; None where an idle one misses the SLO.

    ``met``, ``missed``: the nearest rates on both sides. ``curve``: everything measured, by rate.
    """

    rate_per_s: Interval | None
    met: Measurement | None
    missed: Measurement | None
    curve: tuple[Measurement, ...]


def highest_rate(
    bench: Bench, replicas: int, saturation_per_s: float, known: Sequence[Measurement] = ()
) -> HighestRate:
    """Bracket on a grid, close in by interpolation from both sides, sharpen until the interval is narrow.

    ``saturation_per_s``: what the fleet serves at most; no rate above it is looked at. ``known``: what was
    measured of this fleet before.
    """
    found = {one.point.rate_per_s: one for one in known}

    def look(rates: Sequence[float], care: Care) -> None:
        for one in bench.measure([Point(rate, replicas) for rate in rates], care):
            found[one.point.rate_per_s] = one

    look([load * saturation_per_s for load in GRID], ROUGH)
    if _bracket(found)[0] is None:
        look([IDLE * saturation_per_s], ROUGH)
    for _ in range(MOST_ROUNDS):
        low, high = _bracket(found)
        if low is None:
            break
        wanted = _next_rates(low, high, saturation_per_s)
        if not wanted:
            break
        look(wanted, CAREFUL)
    _sharpen(bench, found)
    low, high = _bracket(found)
    curve = tuple(found[rate] for rate in sorted(found))
    return HighestRate(_root(low, high, curve, saturation_per_s), low, high, curve)


def _bracket(found: dict[float, Measurement]) -> tuple[Measurement | None, Measurement | None]:
    """The highest rate below which nothing missed, and the lowest that did not meet."""
    low = None
    for rate in sorted(found):
        if found[rate].verdict != "met":
            return low, found[rate]
        low = found[rate]
    return low, None


def _next_rates(low: Measurement, high: Measurement | None, saturation_per_s: float) -> list[float]:
    """Two rates that the limit should lie between; none once the bracket is narrow."""
    below = low.point.rate_per_s
    above = saturation_per_s if high is None else high.point.rate_per_s
    if above / below - 1 <= 2 * TOLERANCE:
        return []
    middle = _crossing(low, high) if high is not None and _has_figure(high) else None
    if middle is None:
        return [below + (above - below) / 3, below + 2 * (above - below) / 3]
    pair = (middle * (1 - 0.9 * TOLERANCE), middle * (1 + 0.9 * TOLERANCE))
    inside = [rate for rate in pair if below * 1.001 < rate < above * 0.999]
    return inside or [(below + above) / 2]


def _has_figure(one: Measurement) -> bool:
    return one.verdict == "missed" and isfinite(one.strain.value)


def _crossing(low: Measurement, high: Measurement) -> float | None:
    """Where the strain passes 1, straight between the two on logarithmic scales."""
    if low.strain.value <= 0:
        return None
    return exp(_interpolated(_log_point(low), _log_point(high)))


def _log_point(one: Measurement) -> tuple[float, float]:
    return log(one.point.rate_per_s), log(max(one.strain.value, 1e-9))


def _interpolated(low: tuple[float, float], high: tuple[float, float]) -> float:
    """The abscissa at which the line through two points is zero, at most as far as the points."""
    (x0, y0), (x1, y1) = low, high
    if y1 <= y0:
        return (x0 + x1) / 2
    return min(max(x0 - y0 * (x1 - x0) / (y1 - y0), x0), x1)


def _sharpen(bench: Bench, found: dict[float, Measurement]) -> None:
    """More replications on both sides, as far as the rate's interval needs them."""
    for _ in range(2):
        low, high = _bracket(found)
        if low is None or high is None or not _has_figure(high) or bench.spent:
            return
        curve = [found[rate] for rate in sorted(found)]
        slope = slope_at(low.point.rate_per_s, curve)
        noise = max(one.strain.half_width / one.strain.value for one in (low, high))
        if noise <= TOLERANCE * slope:
            return
        care = Care(max(SHARPEST, TOLERANCE * slope), decide=False)
        for one in bench.measure([low.point, high.point], care):
            found[one.point.rate_per_s] = one


def slope_at(rate: float, curve: Sequence[Measurement]) -> float:
    """How many per cent the worst strain rises per cent of rate, around a rate; at least a tenth.

    Over a few per cent on each side at least, since neighbours are too close to tell it.
    """
    known = [one for one in curve if one.strains and 0 < one.strain.value < inf]
    below = [one for one in known if one.point.rate_per_s <= rate * 0.97]
    above = [one for one in known if one.point.rate_per_s >= rate * 1.02]
    near = [one for one in known if one.point.rate_per_s not in {o.point.rate_per_s for o in below + above}]
    left = below[-1] if below else (near or known)[0]
    right = above[0] if above else (near or known)[-1]
    (x0, y0), (x1, y1) = _log_point(left), _log_point(right)
    return max(0.1, (y1 - y0) / (x1 - x0)) if x1 > x0 else 1.0


def _root(
    low: Measurement | None,
    high: Measurement | None,
    curve: Sequence[Measurement],
    saturation_per_s: float,
) -> Interval | None:
    if low is None:
        return None
    below = low.point.rate_per_s
    if high is None or not _has_figure(high):
        above = saturation_per_s if high is None else high.point.rate_per_s
        return Interval((below + above) / 2, (above - below) / 2)
    rate = _crossing(low, high) or below
    noise = max(one.strain.half_width / one.strain.value for one in (low, high) if one.strain.value)
    bracket = (high.point.rate_per_s - below) / 2
    doubt = rate * noise / slope_at(rate, curve)
    return Interval(rate, min(rate, max(bracket, doubt)))


class LeastReplicas(NamedTuple):
    """The least replicas that bear a rate, None where none would; and every number tried, ascending."""

    replicas: int | None
    tried: tuple[Measurement, ...]


def least_replicas(bench: Bench, rate: float, saturation_per_s: float) -> LeastReplicas:
    """Up from the least number that is not overloaded, in growing steps, then bisection.

    ``saturation_per_s``: what one replica serves at most.
    """
    found: dict[int, Measurement] = {}

    def look(numbers: Sequence[int], care: Care) -> None:
        for one in bench.measure([Point(rate, number) for number in numbers], care):
            found[one.point.replicas] = one

    first = floor(rate / saturation_per_s) + 1
    step = max(1, first // 16)
    if first > 1:
        look([first - 1], CAREFUL)  # overloaded: said, not simulated
    look([first, first + step], CAREFUL)
    if not _met(found):
        idle = ceil(rate / (IDLE * saturation_per_s))
        look([idle], ROUGH)
        if found[idle].verdict != "met":
            return LeastReplicas(None, tuple(found[number] for number in sorted(found)))
        del found[idle]
    reach, step = 2 * step, 2 * step
    while not _met(found):
        look([first + reach, first + reach + step], CAREFUL)
        reach, step = reach + 2 * step, 2 * step
        if reach > MOST_TIMES * (first + 1):
            break
    while (middle := _between(found)) is not None:
        look([middle], CAREFUL)
    answer = _settle(found, look)
    return LeastReplicas(answer, tuple(found[number] for number in sorted(found)))


def _met(found: dict[int, Measurement]) -> list[int]:
    return sorted(number for number, one in found.items() if one.verdict == "met")


def _between(found: dict[int, Measurement]) -> int | None:
    """The middle between the most replicas that are too few and the fewest above them that suffice."""
    met = _met(found)
    if not met:
        return None
    few = max((number for number in found if number < met[0]), default=met[0] - 1)
    return (few + met[0]) // 2 if met[0] - few > 1 else None


def _settle(found: dict[int, Measurement], look: Callable[[Sequence[int], Care], None]) -> int | None:
    """Measure the answer again, more carefully, where its interval includes the limit."""
    for _ in range(4):
        met = _met(found)
        if not met:
            return None
        answer = met[0]
        doubtful = [
            n for n in (answer, answer - 1) if n in found and found[n].strains and not found[n].clear
        ]
        sharper = Care(SHARPEST)
        again = [n for n in doubtful if found[n].strain.half_width > SHARPEST * found[n].strain.value]
        if not again:
            return answer
        before = [_runs(found[n]) for n in again]
        look(again, sharper)
        if [_runs(found[n]) for n in again] == before:
            return answer
        if answer + 1 not in found and found[answer].verdict != "met":
            look([answer + 1], sharper)
    met = _met(found)
    return met[0] if met else None


def _runs(one: Measurement) -> tuple[int, int]:
    """How many runs a measurement rests on, and how long they are: where these stay, so do its figures."""
    return one.replications, one.requests


def slowed(one: Measurement, wanted: Sequence[Criterion], slowdown: float) -> float:
    """The worst strain if every step took ``slowdown`` times as long and requests came as much slower.

    A run in which all durations and all gaps are multiplied is the same run on a slower clock: a service
    with steps f times as long under rate r has f times the latencies that it has now under rate f r.
    """
    if not one.strains:
        return inf
    worst = -inf
    for place, criterion in enumerate(wanted):
        now = one.strains[place].value
        if isinstance(criterion, Attainment):
            pooled = [criterion.strain(sample, slowdown) for sample in one.samples]
            worst = max(worst, sum(pooled) / len(pooled))
        else:
            worst = max(worst, now * slowdown)
    return worst


def headroom(
    curve: Sequence[Measurement], wanted: Sequence[Criterion], rate: float, raised: float = 1.0
) -> float:
    """How many times as long every step may take while the rate is still borne; below 1 where it is not.

    ``raised``: what every strain of the curve is multiplied by: its points share their random numbers, so
    what is known to be off at one of them is off at all.
    """
    points = [
        (
            log(one.point.rate_per_s / rate),
            _logged(raised * slowed(one, wanted, one.point.rate_per_s / rate)),
        )
        for one in curve
    ]
    return exp(_zero(points))


def rate_if_slower(
    curve: Sequence[Measurement], wanted: Sequence[Criterion], slowdown: float, raised: float = 1.0
) -> float:
    """The highest rate that is borne if every step takes ``slowdown`` times as long; see `headroom`."""
    points = [(log(one.point.rate_per_s), _logged(raised * slowed(one, wanted, slowdown))) for one in curve]
    return exp(_zero(points)) / slowdown


def _logged(strain: float) -> float:
    return inf if strain == inf else log(max(strain, 1e-9))


def _zero(points: Sequence[tuple[float, float]]) -> float:
    """Where a rising curve of (x, y) passes zero, straight between its points; else its nearest end."""
    ordered = sorted(points)
    for (x0, y0), (x1, y1) in pairwise(ordered):
        if y0 <= 0 < y1:
            return x0 if y1 == inf else _interpolated((x0, y0), (x1, y1))
    finite = [point for point in ordered if isfinite(point[1])]
    if not finite:
        return ordered[0][0]
    return finite[-1][0] if finite[-1][1] <= 0 else finite[0][0]
