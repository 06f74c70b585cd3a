"""How long prompts and outputs are: samplers that draw whole chunks.

A sampler draws a fixed number of variates per request, in the order of requests, so what it yields
depends neither on chunk sizes nor on how many requests follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]

REACH = 6.0  # standard deviations of a component that its part of a quantile table spans
POINTS_PER_COMPONENT = 241


class Lengths(NamedTuple):
    """Prompt and output tokens of as many requests as the arrays are long."""

    prompt_tokens: Counts
    output_tokens: Counts


Sampler: TypeAlias = Callable[[Generator, int], Lengths]
"""Draws lengths for up to `count` requests; fewer where it rejects some of what it drew."""


@dataclass(frozen=True, slots=True, eq=False)
class Marginal:
    """A length distribution as the monotone map from a standard normal variate to ln(tokens).

    Linear between knots, constant outside. Drawing through the normal scale is what a Gaussian copula
    asks for, and it leaves no distribution function to be inverted while requests are drawn.
    """

    normal_scores: Floats
    log_tokens: Floats

    def tokens(self, normal: Floats) -> Floats:
        """Unrounded lengths for standard normal variates."""
        return np.exp(np.interp(normal, self.normal_scores, self.log_tokens))


def lognormal_mixture(*components: tuple[float, float, float]) -> Marginal:
    """A mixture of lognormals, each given as weight, mean and standard deviation of ln(tokens)."""
    reach = np.linspace(-REACH, REACH, POINTS_PER_COMPONENT)
    points = np.unique(np.concatenate([mu + sigma * reach for _, mu, sigma in components]))
    scores = np.array([_mixture_score(point, components) for point in points.tolist()])
    return Marginal(np.maximum.accumulate(scores), points)


def _mixture_score(point: float, components: Sequence[tuple[float, float, float]]) -> float:
    """Normal score of the mixture's distribution function, taken from the nearer tail for accuracy."""
    below = _tail(point, components, -1)
    above = _tail(point, components, 1)
    standard = NormalDist()
    return standard.inv_cdf(below) if below < above else -standard.inv_cdf(above)


def _tail(point: float, components: Sequence[tuple[float, float, float]], side: int) -> float:
    """Probability of lying below (side -1) or above (side 1) a point."""
    total = sum(weight for weight, _, _ in components)
    return sum(
        weight / total * math.erfc(side * (point - mu) / sigma / math.sqrt(2)) / 2
        for weight, mu, sigma in components
    )


def quantile_table(probabilities: Sequence[float], tokens: Sequence[float]) -> Marginal:
    """A distribution by its quantiles, ln(tokens) linear in the probability between them."""
    grid = np.linspace(-REACH, REACH, 2 * POINTS_PER_COMPONENT)
    knots = [NormalDist().inv_cdf(p) for p in probabilities if 0 < p < 1]
    scores = np.unique(np.concatenate([grid, knots]))
    at = [NormalDist().cdf(score) for score in scores.tolist()]
    return Marginal(scores, np.interp(at, probabilities, np.log(tokens)))


def scaled_beta(a: float, b: float, scale: float) -> Marginal:
    """`scale` times a beta variate with a, b > 1, its distribution function summed numerically."""
    points = np.linspace(0, 1, 4097)
    density = points ** (a - 1) * (1 - points) ** (b - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    below /= below[-1]
    inside = (below > 0) & (below < 1)
    scores = np.array([NormalDist().inv_cdf(p) for p in below[inside].tolist()])
    return Marginal(scores, np.log(scale * points[inside]))


def uniform_marginal(lowest: float, highest: float) -> Marginal:
    """Uniform between two bounds."""
    probabilities = np.linspace(0, 1, POINTS_PER_COMPONENT)
    tokens = lowest + (highest - lowest) * probabilities
    return quantile_table(probabilities.tolist(), tokens.tolist())


def lognormal_marginal(mean: float, cv: float) -> Marginal:
    """A lognormal by its own mean and coefficient of variation, before rounding."""
    sigma = math.sqrt(math.log1p(cv**2))
    mu = math.log(mean) - sigma**2 / 2
    span = np.array([-8.0, 8.0])  # standard normal variates beyond it do not occur
    return Marginal(span, mu + sigma * span)


def correlated(normal: Floats, rho: float) -> tuple[Floats, Floats]:
    """Two standard normal columns with correlation rho from two independent ones, shape (n, 2)."""
    return normal[:, 0], rho * normal[:, 0] + math.sqrt(1 - rho**2) * normal[:, 1]


def whole_tokens(tokens: Floats, lowest: int = 1, highest: int = 2**31 - 1) -> Counts:
    """Lengths rounded and kept within bounds."""
    return np.clip(np.rint(tokens), lowest, highest).astype(np.int64)


@dataclass(frozen=True, slots=True)
class CopulaSampler:
    """Prompt and output lengths with their own marginals, joined by a Gaussian copula."""

    prompt: Marginal
    output: Marginal
    rho: float = 0.0
    prompt_bounds: tuple[int, int] = (1, 2**31 - 1)
    output_bounds: tuple[int, int] = (1, 2**31 - 1)

    def __call__(self, generator: Generator, count: int) -> Lengths:
        """Lengths of `count` requests."""
        for_prompt, for_output = correlated(generator.standard_normal((count, 2)), self.rho)
        return Lengths(
            whole_tokens(self.prompt.tokens(for_prompt), *self.prompt_bounds),
            whole_tokens(self.output.tokens(for_output), *self.output_bounds),
        )


def fixed_lengths(prompt_tokens: int, output_tokens: int) -> Sampler:
    """Every request alike."""
    return lambda _, count: Lengths(
        np.full(count, prompt_tokens, np.int64), np.full(count, output_tokens, np.int64)
    )


def uniform_lengths(prompt_span: tuple[int, int], output_span: tuple[int, int]) -> Sampler:
    """Every whole number from the lowest to the highest, both included, equally likely."""
    lowest = np.array([prompt_span[0], output_span[0]])
    choices = np.array([prompt_span[1], output_span[1]]) - lowest + 1

    def sample(generator: Generator, count: int) -> Lengths:
        drawn = lowest + np.floor(generator.random((count, 2)) * choices).astype(np.int64)
        return Lengths(drawn[:, 0], drawn[:, 1])

    return sample


def empirical_lengths(observed: Lengths) -> Sampler:
    """Rows drawn with replacement: a prompt keeps its own output."""
    rows = len(observed.prompt_tokens)

    def sample(generator: Generator, count: int) -> Lengths:
        drawn = (generator.random(count) * rows).astype(np.int64)
        return Lengths(observed.prompt_tokens[drawn], observed.output_tokens[drawn])

    return sample


def capped(sampler: Sampler, prompt_cap: int | None, output_cap: int | None) -> Sampler:
    """The same requests, the longer ones cut to the caps; None does not cut."""

    def sample(generator: Generator, count: int) -> Lengths:
        lengths = sampler(generator, count)
        return Lengths(
            lengths.prompt_tokens if prompt_cap is None else np.minimum(lengths.prompt_tokens, prompt_cap),
            lengths.output_tokens if output_cap is None else np.minimum(lengths.output_tokens, output_cap),
        )

    return sample
