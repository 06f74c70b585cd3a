"""Random paged caches: permuted block tables, and nothing but NaN wherever nobody stored anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from backend.attention.kernels import Kernels, write

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}  # of values of order one
NOWHERE = -1_000_000_000  # a block that nobody has: reading through it would crash or be seen


@dataclass(frozen=True)
class Shape:
    kv_heads: int
    group: int
    dim: int
    block_size: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Case:
    query: Tensor
    keys: Tensor
    values: Tensor
    blocks: Tensor
    lengths: Tensor
    options: dict[str, Any]

    def decode(self, kernels: Kernels) -> Tensor:
        scale = self.query.shape[-1] ** -0.5
        return kernels.decode(
            self.query, self.keys, self.values, self.blocks, self.lengths, scale, **self.options
        )

    def rows(self, chosen: Sequence[int]) -> Case:
        kept = list(chosen)
        return replace(
            self, query=self.query[kept], blocks=self.blocks[kept], lengths=self.lengths[kept].contiguous()
        )

    def prefill(self, kernels: Kernels, row: int, query: Tensor) -> Tensor:
        """The row's last tokens, one for each query."""
        start = int(self.lengths[row]) - len(query)
        return kernels.prefill(
            query, self.keys, self.values, self.blocks[row], start, query.shape[-1] ** -0.5, **self.options
        )


def make_case(shape: Shape, lengths: Sequence[int], options: Sequence[str], seed: int) -> Case:
    random = torch.Generator().manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=random).to(shape.dtype)

    heads = shape.kv_heads * shape.group
    needs = [-(-length // shape.block_size) for length in lengths]
    spare = 3
    sizes = (sum(needs) + spare, shape.block_size, shape.kv_heads, shape.dim)
    keys, values = (
        torch.full(sizes, torch.nan, dtype=shape.dtype),
        torch.full(sizes, torch.nan, dtype=shape.dtype),
    )
    shuffled = torch.randperm(sizes[0], generator=random).int()
    blocks = torch.full((len(lengths), max(needs) + 1), NOWHERE, dtype=torch.int32)
    given = 0
    for row, (length, need) in enumerate(zip(lengths, needs, strict=True)):
        blocks[row, :need] = shuffled[given : given + need]
        given += need
        positions = torch.arange(length)
        slots = blocks[row, positions // shape.block_size].long() * shape.block_size
        k, v = normal(length, shape.kv_heads, shape.dim), normal(length, shape.kv_heads, shape.dim)
        write(k, v, keys, values, slots + positions % shape.block_size)
    extras: dict[str, Any] = {"window": 37, "softcap": 2.0, "sinks": torch.randn(heads, generator=random)}
    chosen = {name: extras[name] for name in options}
    query = normal(len(lengths), heads, shape.dim)
    return Case(query, keys, values, blocks, torch.tensor(lengths, dtype=torch.int32), chosen)


shapes = st.builds(
    Shape,
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 3, 8]),
    dim=st.sampled_from([32, 64, 80, 96, 128, 20]),
    block_size=st.sampled_from([1, 16, 32, 128]),
    dtype=st.sampled_from(list(TOLERANCES)),
)
lengths = st.one_of(st.sampled_from([1, 15, 16, 17, 64, 65, 128, 255, 256, 257, 700]), st.integers(1, 300))
options = st.sets(st.sampled_from(["window", "softcap", "sinks"])).map(sorted)


@st.composite
def cases(draw: st.DrawFn, rows: int = 6) -> Case:
    chosen = draw(st.lists(lengths, min_size=1, max_size=rows))
    return make_case(draw(shapes), chosen, draw(options), draw(st.integers(0, 2**32)))
