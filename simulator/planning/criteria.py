"""What an SLO asks of a service: percentiles of latencies, or a share of requests that keep them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from simulator.errors import ScenarioError
from simulator.scenario import SloSettings
from simulator.summary_words import LATENCIES

PERCENTILE = 99.0
MEDIAN = 50.0  # Sarathi-Serve's limit on the scheduling delay holds for its median
PER_REQUEST = ("ttft_ms", "tpot_ms", "e2e_ms")
OBSERVATIONS_BEYOND = 10  # that a stretch should have beyond a percentile for it to mean anything

Latencies: TypeAlias = dict[str, NDArray[float64]]
"""By name, ms, requests in order of arrival; infinite for what was rejected, failed or never ended."""


class Percentile(NamedTuple):
    """A percentile of one latency stays within a limit."""

    metric: str
    percentile: float
    limit_ms: float

    @property
    def words(self) -> str:
        """``p99 TTFT``."""
        name = "median" if self.percentile == MEDIAN else f"p{self.percentile:g}"
        return f"{name} {LATENCIES[self.metric]}"

    @property
    def promise(self) -> str:
        return f"{self.words} ≤ {self.limit_ms:,g} ms"

    @property
    def least_requests(self) -> int:
        """Below this many a percentile is a matter of one or two requests."""
        return round(OBSERVATIONS_BEYOND * 100 / min(100 - self.percentile, self.percentile))

    def strain(self, latencies: Latencies, slowdown: float = 1.0) -> float:
        """The percentile over its limit: kept up to 1."""
        return slowdown * quantile(latencies[self.metric], self.percentile / 100) / self.limit_ms


class Attainment(NamedTuple):
    """A share of the requests keeps every limit: goodput as DistServe counts it."""

    share: float
    limits: tuple[tuple[str, float], ...]

    @property
    def words(self) -> str:
        return "attainment"

    @property
    def promise(self) -> str:
        kept = " and ".join(f"{LATENCIES[name]} ≤ {limit:,g} ms" for name, limit in self.limits)
        return f"{self.share:.4g} of the requests keep {kept}"

    @property
    def least_requests(self) -> int:
        return round(OBSERVATIONS_BEYOND / (1 - self.share))

    def attained(self, latencies: Latencies, slowdown: float = 1.0) -> float:
        """Share of the requests that keep every limit."""
        kept = [latencies[name] * slowdown <= limit for name, limit in self.limits]
        return float(np.logical_and.reduce(kept).mean())

    def strain(self, latencies: Latencies, slowdown: float = 1.0) -> float:
        """Misses over those allowed: kept up to 1."""
        return (1 - self.attained(latencies, slowdown)) / (1 - self.share)


Criterion: TypeAlias = Percentile | Attainment


def criteria(slo: SloSettings | None, attainment: float | None = None) -> tuple[Criterion, ...]:
    """What a scenario's SLO asks; ``attainment`` stands in for its own form where given."""
    if slo is None:
        raise ScenarioError(
            "capacity needs an SLO: give the scenario one, such as slo: {ttft_ms: 500, tpot_ms: 50}, "
            "or --set 'slo={ttft_ms: 500, tpot_ms: 50}'"
        )
    share = attainment or slo.attainment
    limits = [(name, limit) for name in PER_REQUEST if (limit := getattr(slo, name)) is not None]
    percentile = slo.percentile or PERCENTILE
    found: list[Criterion] = []
    if share is None:
        found += [Percentile(name, percentile, limit) for name, limit in limits]
    elif limits:
        found.append(Attainment(share, tuple(limits)))
    else:
        raise ScenarioError("--attainment needs slo.ttft_ms, slo.tpot_ms or slo.e2e_ms to count by")
    if slo.itl_ms is not None:
        found.append(Percentile("itl_ms", percentile, slo.itl_ms))
    if slo.queue_ms is not None:
        found.append(Percentile("queue_ms", MEDIAN, slo.queue_ms))
    return tuple(found)


def promises(wanted: Sequence[Criterion]) -> str:
    """All of them in words."""
    return ", ".join(criterion.promise for criterion in wanted)


def quantile(values: NDArray[float64], share: float) -> float:
    """Between order statistics, as numpy does, where some of them may be infinite."""
    if not values.size:
        return float("nan")
    rank = share * (len(values) - 1)
    below = int(rank)
    above = min(below + 1, len(values) - 1)
    ordered = np.partition(values, (below, above))
    low, high = float(ordered[below]), float(ordered[above])
    return low if low == high or rank == below else low + (high - low) * (rank - below)
