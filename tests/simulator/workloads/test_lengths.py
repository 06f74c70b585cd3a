"""Length distributions, against closed forms and independent implementations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simulator.workloads.lengths import (
    CopulaSampler,
    Lengths,
    Marginal,
    capped,
    empirical_lengths,
    fixed_lengths,
    lognormal_marginal,
    lognormal_mixture,
    quantile_table,
    scaled_beta,
    uniform_lengths,
    uniform_marginal,
)

SCORES = np.linspace(-4.5, 4.5, 901)
BELOW = stats.norm.cdf(SCORES)
MIXTURE = ((0.294, 6.099, 1.268), (0.706, 3.101, 0.944))


def mixture_below(log_tokens: np.ndarray, components: Sequence[tuple[float, float, float]]) -> np.ndarray:
    return sum(weight * stats.norm.cdf(log_tokens, mu, sigma) for weight, mu, sigma in components)


@pytest.mark.parametrize(
    "components", [MIXTURE, ((0.096, 6.809, 0.022), (0.904, 8.926, 1.072)), ((1, 5, 0.5),)]
)
def test_a_mixture_table_inverts_the_distribution_function(
    components: Sequence[tuple[float, float, float]],
) -> None:
    """Against scipy's normal distribution, to 0.02 % of probability, in both tails to 0.3 %."""
    log_tokens = np.log(lognormal_mixture(*components).tokens(SCORES))
    reached = mixture_below(log_tokens, components)
    assert reached == pytest.approx(BELOW, abs=2e-4)
    assert reached[:100] == pytest.approx(BELOW[:100], rel=3e-3)
    assert 1 - reached[-100:] == pytest.approx(1 - BELOW[-100:], rel=3e-3)


def test_a_lone_lognormal_is_a_straight_line_on_the_normal_scale() -> None:
    assert np.log(lognormal_mixture((1, 5.0, 0.5)).tokens(SCORES)) == pytest.approx(
        5 + 0.5 * SCORES, abs=1e-9
    )


def test_a_quantile_table_meets_its_knots_and_is_log_linear_between() -> None:
    probabilities, tokens = (0, 0.25, 0.5, 1), (2, 8, 32, 512)
    table = quantile_table(probabilities, tokens)
    at = [NormalDist().inv_cdf(p) for p in (0.25, 0.375, 0.5, 0.75)]
    assert table.tokens(np.array(at)) == pytest.approx([8, 16, 32, 128], rel=1e-4)
    assert table.tokens(np.array([-40.0, 40.0])) == pytest.approx([2, 512], rel=1e-6)


def test_a_beta_table_agrees_with_scipy() -> None:
    expected = 4096 * stats.beta(2.971, 1.578).ppf(BELOW)
    assert scaled_beta(2.971, 1.578, 4096).tokens(SCORES) == pytest.approx(expected, rel=2e-3)


def test_a_uniform_table_is_uniform() -> None:
    assert uniform_marginal(700, 4056).tokens(SCORES) == pytest.approx(700 + 3356 * BELOW, rel=1e-3)


def test_a_lognormal_is_given_by_its_own_mean_and_variation() -> None:
    tokens = lognormal_marginal(500, 0.8).tokens(np.random.default_rng(1).standard_normal(400_000))
    assert tokens.mean() == pytest.approx(500, rel=0.005)
    assert tokens.std() / tokens.mean() == pytest.approx(0.8, rel=0.02)


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.23])
def test_the_copula_correlates_ranks_as_theory_says(rho: float) -> None:
    """Spearman's correlation of a Gaussian copula is 6/pi * asin(rho/2)."""
    marginal = lognormal_marginal(10_000, 1)
    lengths = CopulaSampler(marginal, marginal, rho)(np.random.default_rng(2), 100_000)
    measured = stats.spearmanr(lengths.prompt_tokens, lengths.output_tokens).statistic
    assert measured == pytest.approx(6 / math.pi * math.asin(rho / 2), abs=4 / math.sqrt(100_000))


def test_uniform_lengths_reach_both_ends_equally_often() -> None:
    lengths = uniform_lengths((1, 4), (7, 7))(np.random.default_rng(3), 40_000)
    counts = np.bincount(lengths.prompt_tokens, minlength=6)
    assert counts[[0, 5]].tolist() == [0, 0]
    assert counts[1:5] == pytest.approx(np.full(4, 10_000), abs=400)
    assert set(lengths.output_tokens.tolist()) == {7}


def test_empirical_lengths_keep_pairs_together_and_draw_every_row() -> None:
    observed = Lengths(np.array([1, 2, 3]), np.array([10, 20, 30]))
    drawn = empirical_lengths(observed)(np.random.default_rng(4), 30_000)
    assert np.array_equal(drawn.output_tokens, drawn.prompt_tokens * 10)
    assert np.bincount(drawn.prompt_tokens)[1:] == pytest.approx(np.full(3, 10_000), abs=400)


def test_caps_cut_only_what_is_longer() -> None:
    observed = Lengths(np.array([5, 50]), np.array([7, 70]))
    drawn = capped(empirical_lengths(observed), 20, None)(np.random.default_rng(5), 100)
    assert set(zip(*(column.tolist() for column in drawn), strict=True)) == {(5, 7), (20, 70)}


STEEP = Marginal(np.array([-1.0, 1.0]), np.array([0.0, 9.0]))
SAMPLERS = {
    "fixed": fixed_lengths(3, 4),
    "uniform": uniform_lengths((1, 9), (2, 2**31)),
    "empirical": empirical_lengths(Lengths(np.arange(1, 8), np.arange(11, 18))),
    "copula": CopulaSampler(STEEP, STEEP, 0.4),
}


@pytest.mark.parametrize("name", SAMPLERS)
@given(pieces=st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_lengths_do_not_depend_on_the_pieces_they_are_drawn_in(name: str, pieces: Sequence[int]) -> None:
    def drawn(parts: Sequence[int]) -> list[tuple[int, ...]]:
        generator = np.random.default_rng(6)
        chunks = (SAMPLERS[name](generator, part) for part in parts)
        return [
            pair for chunk in chunks for pair in zip(*(column.tolist() for column in chunk), strict=True)
        ]

    assert drawn(pieces) == drawn([sum(pieces)])
