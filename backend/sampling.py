"""From logits to tokens, each request by its own rules and its own random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))


class Sampling(NamedTuple):
    """How a next token is chosen. Temperature 0: the likeliest; ``top_k`` 0 and ``top_p`` 1: no cut."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


GREEDY = Sampling()


class Draw(NamedTuple):
    """A row that is sampled, and how many tokens its answer has already."""

    row: int
    sampling: Sampling
    generated: int


def next_tokens(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """int64 [rows]: the likeliest token of each row of [rows, vocabulary], or a random one where asked.

    A random one depends on its row's logits, its seed and its place in the answer alone, so neither
    neighbours nor a preemption change it.
    """
    tokens = _likeliest(logits)
    if draws:
        rows = torch.tensor([draw.row for draw in draws], device=logits.device)
        tokens[rows] = _sample(logits[rows].float(), draws)
    return tokens


def _likeliest(logits: Tensor) -> Tensor:
    """The first of the largest in each row; NumPy finds it ten times as fast as torch on a CPU."""
    if logits.device.type != "cpu" or logits.dtype != torch.float32 or not logits.numel():
        return logits.argmax(dim=-1)
    return torch.from_numpy(logits.numpy().argmax(axis=-1))


def _sample(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Invert the distribution function of the tokens that are left after both cuts, likeliest first."""
    settings = [draw.sampling for draw in draws]
    column = torch.tensor(
        [[s.temperature, s.top_k or logits.shape[1], s.top_p] for s in settings],
        dtype=torch.float64,
        device=logits.device,
    )
    ordered, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    chances = torch.softmax(ordered.double() / column[:, :1], dim=-1)
    rank = torch.arange(logits.shape[1], device=logits.device)
    chances = chances.masked_fill(rank >= column[:, 1:2], 0.0)
    chances = chances / chances.sum(dim=-1, keepdim=True)
    before = chances.cumsum(dim=-1) - chances
    chances = chances.masked_fill((before >= column[:, 2:3]) & (rank > 0), 0.0)
    reached = chances.cumsum(dim=-1)
    uniform = torch.from_numpy(uniforms([s.seed for s in settings], [draw.generated for draw in draws]))
    goal = uniform.to(logits.device)[:, None] * reached[:, -1:]
    last = (chances > 0).sum(dim=-1, keepdim=True) - 1
    chosen = torch.minimum(torch.searchsorted(reached, goal, right=True), last)
    return order.gather(1, chosen).squeeze(1)


def uniforms(seeds: Sequence[int], indices: Sequence[int]) -> NDArray[np.float64]:
    """One number in [0, 1) for each seed and index.

    Source: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014); its state is a counter, so any index of any
    stream is one evaluation.
    """
    with np.errstate(over="ignore"):
        start = mix(np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], np.uint64) + GOLDEN)
        mixed = mix(start + GOLDEN * (np.array(indices, np.uint64) + np.uint64(1)))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function; products wrap around."""
    for shift, factor in MIX:
        state = (state ^ (state >> shift)) * factor
    return state ^ (state >> np.uint64(31))
