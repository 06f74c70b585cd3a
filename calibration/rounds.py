"""Rounds over a grid of timings, in shuffled order, until medians are sure enough or time is up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from calibration.drift import Findings, Value, find_values
from calibration.grid import Point
from calibration.timings import REFERENCE, Timing, TimingLog

NS_PER_S = 1e9
SURE = 0.02  # half width of a median's interval at which a point is done
ENOUGH = 5  # timings that a point has at least before it is done,
ENOUGH_LONG, LONG_NS = 3, 5e8  # or fewer where each is so long that it is a mean itself
FRESH_S = 0.25  # age from which a reference is timed again
WORKLOAD_S = 8.0  # and the reference workload, of which a profile says what it took


class Taken(NamedTuple):
    """A duration, and how long this process waited for processors meanwhile."""

    ns: int
    waited_ns: int = 0


class Bench(Protocol):
    """Executes one thing at a time and says how long it took, without what is done to set it up."""

    def reference(self) -> Taken: ...

    def reference_workload(self) -> Mapping[Point, Taken]: ...

    def time(self, point: Point) -> Taken: ...


class Progress(NamedTuple):
    """What a person who waits wants to know."""

    spent_s: float
    budget_s: float
    sure: int  # points that are done
    points: int


def measure(
    points: Sequence[Point],
    bench: Bench,
    log: TimingLog,
    now_ns: Callable[[], int],
    generator: np.random.Generator,
    *,
    budget_s: float,
    tell: Callable[[Progress], None] = lambda _: None,
) -> Findings:
    """Time all points again and again. What the log holds already counts, its time towards the budget too.

    The first round takes every point; a later one those, of the points that are not sure yet, that were
    timed least for what they cost, so that what is quick is timed more often.
    """
    session = _Session(bench, log, now_ns, budget_s)
    while unsure := [point for point in _unsure(points, log.timings) if session.affords(point)]:
        todo = _least_timed(unsure, log.timings)
        for index in generator.permutation(len(todo)).tolist():
            if session.affords(todo[index]):
                session.time(todo[index])
                tell(Progress(session.spent_s, budget_s, len(points) - len(unsure), len(points)))
    session.reference()
    return find_values(log.timings)


def _unsure(points: Sequence[Point], timings: Sequence[Timing]) -> list[Point]:
    if not timings:
        return list(points)
    values = find_values(timings).values
    return [point for point in points if point not in values or not _sure(values[point])]


def _least_timed(points: Sequence[Point], timings: Sequence[Timing]) -> list[Point]:
    """Those never timed, or else the half that is owed most.

    Where every timing is off by the same share, the mean of all points is surest for the time spent where
    counts go with one over the root of what a timing costs (Neyman's allocation, J. Royal Statistical
    Society 97, 1934): the product of a point's count and that root is the same for all.
    """
    counts, spent_ns = Counter[Point](), Counter[Point]()
    for timing in timings:
        counts[timing.point] += 1
        spent_ns[timing.point] += timing.ns
    never = [point for point in points if not counts[point]]
    paid = {point: (counts[point] * spent_ns[point]) ** 0.5 for point in points}
    return never or sorted(points, key=paid.__getitem__)[: -(-len(points) // 2)]


def _sure(value: Value) -> bool:
    enough = ENOUGH if value.ns < LONG_NS else ENOUGH_LONG
    return value.timings >= enough and value.interval <= SURE


class _Session:
    """One stretch of measuring."""

    def __init__(self, bench: Bench, log: TimingLog, now_ns: Callable[[], int], budget_s: float) -> None:
        self._bench = bench
        self._log = log
        self._now_ns = now_ns
        self._began_ns = now_ns()
        self._before_s = log.spent_s
        self._budget_s = budget_s
        self._reference_at_s = self._workload_at_s = float("-inf")
        self._costs_s: dict[Point, float] = {}
        self._most_s: dict[str, float] = {}  # that a point of this piece cost
        self._workload_s = 0.0

    @property
    def spent_s(self) -> float:
        return self._before_s + (self._now_ns() - self._began_ns) / NS_PER_S

    def affords(self, point: Point, first_s: float = 0.0) -> bool:
        """Whether the budget allows to time a point, after something else that takes ``first_s``.

        What the dearest of its kind cost counts for a point that was not timed yet.
        """
        cost_s = self._costs_s.get(point, self._most_s.get(point.piece, 0.0))
        return self.spent_s + first_s + cost_s < self._budget_s

    def reference(self) -> None:
        self._write(Point(REFERENCE, ()), self._bench.reference())
        self._reference_at_s = self.spent_s

    def _workload(self) -> None:
        began_s = self.spent_s
        found = self._bench.reference_workload()
        left_ns = sum(taken.ns for taken in found.values())
        for point, taken in found.items():
            left_ns -= taken.ns
            self._write(point, taken, left_ns)
        self._workload_at_s = self.spent_s
        self._workload_s = self._workload_at_s - began_s

    def time(self, point: Point) -> None:
        due = self.spent_s - self._workload_at_s >= WORKLOAD_S
        if due and self.affords(point, self._workload_s):
            self._workload()
        if self.spent_s - self._reference_at_s >= FRESH_S:
            self.reference()
        began_s = self.spent_s
        self._write(point, self._bench.time(point))
        cost_s = self._costs_s[point] = self.spent_s - began_s
        self._most_s[point.piece] = max(cost_s, self._most_s.get(point.piece, 0.0))

    def _write(self, point: Point, taken: Taken, ago_ns: int = 0) -> None:
        at_s = self.spent_s - ago_ns / NS_PER_S
        self._log.write(Timing(point.piece, point.at, taken.ns, taken.waited_ns, at_s))
