"""Sampling follows the distribution asked for and depends on a request's own logits and seed alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from backend.sampling import Draw, Sampling, next_tokens, uniforms


def draws(sampling: Sampling, count: int) -> list[Draw]:
    return [Draw(row, sampling._replace(seed=row), 0) for row in range(count)]


def expected(logits: torch.Tensor, sampling: Sampling) -> np.ndarray:
    """By the definition: temperature, then the k likeliest, then the smallest set that reaches p."""
    chances = torch.softmax(logits.double() / sampling.temperature, 0).numpy()
    order = np.argsort(-chances, kind="stable")
    kept = order[: sampling.top_k or len(order)]
    total, nucleus = chances[kept].sum(), []
    for token in kept:
        nucleus.append(token)
        if chances[nucleus].sum() / total >= sampling.top_p:
            break
    found = np.zeros(len(chances))
    found[nucleus] = chances[nucleus] / chances[nucleus].sum()
    return found


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1.0), Sampling(0.5), Sampling(1.7, top_k=5), Sampling(1.0, top_p=0.8), Sampling(1.0, 6, 0.7)],
)
def test_frequencies_follow_the_definition(sampling: Sampling) -> None:
    logits = torch.tensor([2.0, 1.5, 1.5, 0.3, -0.2, 1.9, -1.0, 0.8, 0.0, -3.0])
    count = 20_000
    found = next_tokens(logits.expand(count, -1).clone(), draws(sampling, count))
    chances = expected(logits, sampling)
    counts = np.bincount(found.numpy(), minlength=len(chances))
    assert counts[chances == 0].sum() == 0, "a token that was cut"
    seen = chances > 0
    assert chisquare(counts[seen], chances[seen] * count).pvalue > 1e-4


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(40, 300, generator=generator)
    wanted = [Draw(row, Sampling(0.9, 50, 0.9, seed=row), row) for row in range(40)]
    together = next_tokens(logits, wanted)
    for row in range(40):
        alone = next_tokens(logits[row : row + 1], [wanted[row]._replace(row=0)])
        assert alone.item() == together[row].item()


def test_greedy_rows_stay_greedy_beside_sampled_ones() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(2))
    found = next_tokens(logits, [Draw(1, Sampling(5.0, seed=9), 0)])
    assert found[0] == logits[0].argmax()
    assert found[2] == logits[2].argmax()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equal_logits_the_first_is_chosen(dtype: torch.dtype) -> None:
    logits = torch.zeros(3, 70, dtype=dtype)
    logits[1, [5, 40]] = 1.0
    logits[2, 69] = 1.0
    assert next_tokens(logits, []).tolist() == [0, 5, 69]
    assert next_tokens(logits[:0], []).tolist() == []


def test_top_1_is_greedy() -> None:
    logits = torch.randn(30, 50, generator=torch.Generator().manual_seed(3))
    assert torch.equal(next_tokens(logits, draws(Sampling(2.0, top_k=1), 30)), logits.argmax(-1))
    assert torch.equal(next_tokens(logits, draws(Sampling(2.0, top_p=1e-9), 30)), logits.argmax(-1))


def test_uniforms_are_uniform_over_seeds_and_over_indices() -> None:
    count = 20_000
    for found in (uniforms(range(count), [0] * count), uniforms([7] * count, range(count))):
        assert found.min() >= 0
        assert found.max() < 1
        assert chisquare(np.histogram(found, bins=50, range=(0, 1))[0]).pvalue > 1e-4
        assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.03


def test_splitmix64_gives_its_published_first_outputs() -> None:
    """Vigna's splitmix64.c from state 1234567: 6457827717110365317, 3203168211198807973."""
    from backend.sampling import GOLDEN, mix

    state = np.array([1234567], np.uint64)
    with np.errstate(over="ignore"):
        assert int(mix(state + GOLDEN)[0]) == 6457827717110365317
        assert int(mix(state + GOLDEN + GOLDEN)[0]) == 3203168211198807973
