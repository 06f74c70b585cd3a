"""Many clients of one service: few send most of the requests, each in its own bursts, all by the hour.

The shape is ServeGen's (https://github.com/alibaba/ServeGen) without its data: rates and coefficients of
variation are lognormal over clients, gaps are gamma-distributed. A profile stretches and squeezes the time
of all clients alike, so that bursts keep their form while rates follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from simulator.workloads.arrivals import LATEST_NS, NS_PER_S, Times
from simulator.workloads.renewal import GapLaw, gamma_gaps

FIRST_GAPS = 16
MOST_GAPS = 4096


class ClientTimes:
    """Arrival times of all clients together; client ``i`` draws from the ``i``-th child of the seeds."""

    def __init__(
        self,
        rates_per_s: NDArray[np.float64],
        cvs: NDArray[np.float64],
        profile: Profile,
        seeds: SeedSequence,
    ) -> None:
        children = seeds.spawn(len(rates_per_s))
        streams = [
            _client(gamma_gaps(rate, cv**-2), profile, default_rng(child))
            for rate, cv, child in zip(rates_per_s.tolist(), cvs.tolist(), children, strict=True)
        ]
        self._times_ns = merge(*streams)

    def take(self, count: int) -> Times:
        """The next arrival times, ns."""
        return np.fromiter(islice(self._times_ns, count), np.int64)


def client_rates(
    clients: int, rate_per_s: float, sigma: float, generator: Generator
) -> NDArray[np.float64]:
    """Lognormal shares of a total rate; ``sigma`` 0: all alike."""
    shares = np.exp(sigma * generator.standard_normal(clients))
    rates: NDArray[np.float64] = rate_per_s * shares / shares.sum()
    return rates


class Profile:
    """How the rate goes up and down over a period, which then begins again; 1 is its mean.

    ``levels`` are relative rates of equal parts of the period. Clients live in a time of their own, in
    which rates are constant; `to_clock` says when that is.
    """

    def __init__(self, levels: Sequence[float], period_s: float) -> None:
        mean = sum(levels) / len(levels)
        self._period_ns = period_s * NS_PER_S
        self._clock_ns = np.linspace(0, self._period_ns, len(levels) + 1)
        steps = np.array(levels) / mean * self._period_ns / len(levels)
        self._own_ns = np.concatenate(([0.0], np.cumsum(steps)))
        self._own_ns[-1] = self._period_ns

    def to_clock(self, own_ns: Times) -> Times:
        """Times of the clock for times of the clients, both ns and in order."""
        periods, rest = np.divmod(own_ns, np.int64(self._period_ns))
        within = np.interp(rest.astype(np.float64), self._own_ns, self._clock_ns)
        times: Times = periods * np.int64(self._period_ns) + within.astype(np.int64)
        return times


FLAT = Profile([1.0], 86_400)


def _client(law: GapLaw, profile: Profile, generator: Generator) -> Iterator[int]:
    """One client's arrival times, ns, for as long as they can be told."""
    latest_ns = min(law.residual(generator) * NS_PER_S, float(LATEST_NS))
    own_ns, count = np.array([latest_ns], np.int64), FIRST_GAPS
    while own_ns[-1] < LATEST_NS:
        yield from profile.to_clock(own_ns).tolist()
        gaps_ns = np.minimum(np.rint(law.gaps(generator, count) * NS_PER_S), LATEST_NS)
        reached = own_ns[-1] + np.minimum(np.cumsum(gaps_ns), LATEST_NS).astype(np.int64)
        own_ns = reached[: 1 + np.searchsorted(reached, LATEST_NS)]
        count = min(2 * count, MOST_GAPS)
