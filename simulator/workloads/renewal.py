"""Renewal processes in equilibrium: seen from a time that knows nothing of their arrivals.

The first gap then is what is left of one that has been met by chance: longer gaps are met more often, in
proportion to their length (a gap of density t f(t) / mean), and met at a uniform place. Were the first gap
an ordinary one, processes with many short gaps and few long ones would all begin with a burst.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class GapLaw(NamedTuple):
    """Draws gaps, and gaps as met by chance, in seconds."""

    gaps: Callable[[Generator, int], Floats]
    met: Callable[[Generator], float]

    def residual(self, generator: Generator) -> float:
        """Time to the first arrival."""
        return self.met(generator) * generator.random()


def gamma_gaps(rate_per_s: float, shape: float) -> GapLaw:
    """Gamma gaps of mean 1/rate; coefficient of variation 1/sqrt(shape)."""
    scale = 1 / (rate_per_s * shape)
    return GapLaw(
        lambda generator, count: generator.standard_gamma(shape, count) * scale,
        lambda generator: float(generator.standard_gamma(shape + 1)) * scale,
    )


def weibull_gaps(rate_per_s: float, shape: float) -> GapLaw:
    """Weibull gaps of mean 1/rate. One met by chance is a power of a gamma variate."""
    scale = 1 / (rate_per_s * math.gamma(1 + 1 / shape))
    return GapLaw(
        lambda generator, count: generator.weibull(shape, count) * scale,
        lambda generator: float(generator.standard_gamma(1 + 1 / shape)) ** (1 / shape) * scale,
    )


def stationary_times_s(law: GapLaw, rate_per_s: float, length_s: float, generator: Generator) -> Floats:
    """Arrival times within a stretch of time, on average rate times length of them."""
    latest = law.residual(generator)
    parts = []
    while latest < length_s:
        count = 16 + int((length_s - latest) * rate_per_s * 1.1)
        times = latest + np.concatenate(([0.0], np.cumsum(law.gaps(generator, count))))
        parts.append(times[:-1])
        latest = float(times[-1])
    times = np.concatenate(parts) if parts else np.empty(0)
    return times[: np.searchsorted(times, length_s)]
