"""When requests arrive: processes that draw times in chunks, and what is done to recorded times.

Gaps are rounded to ns one by one and summed as integers, so times depend neither on chunk sizes nor on
how many requests follow. No gap is clipped and no sum is rescaled: the rate comes out as asked for on
average, and a run varies around it as the process does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby, islice, pairwise
from typing import Protocol, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from simulator.errors import ScenarioError
from simulator.workloads.arrival import Arrival

NS_PER_S = 1_000_000_000
SAMPLED_TICKS = 256
LATEST_NS = 2**62  # 146 years; int64 still holds what is added to it later

Times: TypeAlias = NDArray[np.int64]
Gaps: TypeAlias = Callable[[int], NDArray[np.float64]]


class ArrivalTimes(Protocol):
    """A stream of arrival times that is taken in pieces."""

    def take(self, count: int) -> Times:
        """The next arrival times, ns, non-decreasing; fewer than `count` when the stream ends."""
        ...


class RenewalTimes:
    """Independent gaps of one distribution; the first request comes one gap after time 0."""

    def __init__(self, gaps_ns: Gaps) -> None:
        self._gaps_ns = gaps_ns
        self._latest_ns = 0

    def take(self, count: int) -> Times:
        """The next arrival times, ns."""
        gaps_ns = np.rint(self._gaps_ns(count))
        _refuse_beyond_reach(self._latest_ns + float(gaps_ns.sum()))
        times: Times = self._latest_ns + np.cumsum(gaps_ns.astype(np.int64))
        if count:
            self._latest_ns = int(times[-1])
        return times


def poisson_times(rate_per_s: float, generator: Generator) -> RenewalTimes:
    """Exponential gaps."""
    mean_ns = NS_PER_S / rate_per_s
    return RenewalTimes(lambda count: generator.standard_exponential(count) * mean_ns)


def gamma_times(rate_per_s: float, cv: float, generator: Generator) -> RenewalTimes:
    """Gamma-distributed gaps with coefficient of variation `cv`: shape 1/cv², mean 1/rate."""
    shape = cv**-2
    scale_ns = NS_PER_S / rate_per_s / shape
    return RenewalTimes(lambda count: generator.standard_gamma(shape, count) * scale_ns)


class ConstantTimes:
    """Equal gaps; like the random processes, the first request comes one gap after time 0."""

    def __init__(self, rate_per_s: float) -> None:
        self._gap_ns = NS_PER_S / rate_per_s
        self._taken = 0

    def take(self, count: int) -> Times:
        """The next arrival times, ns: multiples of the gap, each rounded, so that none drifts."""
        numbers = np.arange(self._taken + 1, self._taken + count + 1)
        self._taken += count
        _refuse_beyond_reach(self._taken * self._gap_ns)
        times: Times = np.rint(numbers * self._gap_ns).astype(np.int64)
        return times


class BurstTimes:
    """Every request at time 0."""

    def take(self, count: int) -> Times:
        """Zeros."""
        return np.zeros(count, np.int64)


class RecordedTimes:
    """The times of recorded requests, without their lengths."""

    def __init__(self, rows: Iterable[Arrival]) -> None:
        self._times_ns = (row.arrival_ns for row in rows)

    def take(self, count: int) -> Times:
        """The next recorded times, ns; fewer when the recording ends."""
        return np.fromiter(islice(self._times_ns, count), np.int64)


def rescale(rows: Iterable[Arrival], rate_scale: float) -> Iterator[Arrival]:
    """The same requests at `rate_scale` times the rate: every gap is divided by it."""
    for row in rows:
        arrival_ns = round(row.arrival_ns / rate_scale)
        _refuse_beyond_reach(arrival_ns)
        yield Arrival(arrival_ns, *row[1:])


def _refuse_beyond_reach(time_ns: float) -> None:
    if time_ns > LATEST_NS:
        raise ScenarioError(
            "workload.arrivals: requests would arrive more than 146 years after the start; raise the rate"
        )


def spread_ticks(rows: Iterable[Arrival], generator: Generator) -> Iterator[Arrival]:
    """Requests that share a time, spread uniformly over the tick that the time stands for.

    A tick lasts as long as the shortest step between the first times, and never beyond the next time.
    Requests keep their order. Holds the requests of as many ticks as are looked at for that.
    """
    ticks = (list(tick) for _, tick in groupby(rows, _arrival_ns))
    head = list(islice(ticks, SAMPLED_TICKS))
    tick_ns = shortest_step_ns(tick[0].arrival_ns for tick in head)
    for tick, following in pairwise(chain(head, ticks, [[]])):
        length_ns = min(tick_ns, following[0].arrival_ns - tick[0].arrival_ns) if following else tick_ns
        yield from _spread(tick, length_ns, generator)


def tick_length_ns(rows: Iterable[Arrival]) -> int:
    """How long a tick lasts for `spread_ticks`, ns."""
    times_ns = (time_ns for time_ns, _ in groupby(rows, _arrival_ns))
    return shortest_step_ns(islice(times_ns, SAMPLED_TICKS))


def _arrival_ns(row: Arrival) -> int:
    return row.arrival_ns


def _spread(tick: list[Arrival], length_ns: int, generator: Generator) -> Iterator[Arrival]:
    offsets_ns = np.sort(np.floor(generator.random(len(tick)) * length_ns)).astype(np.int64).tolist()
    for row, offset_ns in zip(tick, offsets_ns, strict=True):
        yield Arrival(row.arrival_ns + offset_ns, *row[1:])


def shortest_step_ns(times_ns: Iterable[int]) -> int:
    """Shortest step between neighbouring, different times, ns; 0 if there is none."""
    return min((after - before for before, after in pairwise(times_ns)), default=0)
