"""Differences between alternatives that met the same random numbers, and how sure one can be of them.

Replication r of every alternative is offered the same requests, so noise that both share cancels in the
difference; the interval is Student's for the mean of the paired differences (Law, Simulation Modeling and
Analysis, "paired-t confidence interval" and "common random numbers").
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

CONFIDENCE = 0.95
# Upper 0.975 critical values for 1 to 30 degrees of freedom: NIST/SEMATECH e-Handbook, 1.3.6.7.2
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class Difference(NamedTuple):
    """Mean over the replications of an alternative's figure minus the first one's, in its own unit.

    ``half_width``: of the 95 % confidence interval around it; None without replications.
    """

    mean: float
    half_width: float | None


def paired_difference(values: Sequence[float], first: Sequence[float]) -> Difference:
    """The difference to the first alternative, replication by replication."""
    differences = [value - other for value, other in zip(values, first, strict=True)]
    if len(differences) < 2:
        return Difference(fmean(differences), None)
    half_width = t_975(len(differences) - 1) * stdev(differences) / sqrt(len(differences))
    return Difference(fmean(differences), half_width)


def t_975(degrees: int) -> float:
    """The value that Student's t stays below with probability 0.975.

    Beyond the table the expansion around the normal quantile of Abramowitz and Stegun, 26.7.5.
    """
    if degrees <= len(T_975):
        return T_975[degrees - 1]
    x = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    first = (x**3 + x) / 4
    second = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    third = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    return x + first / degrees + second / degrees**2 + third / degrees**3
