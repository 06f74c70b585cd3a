"""The KV cache's memory: a pair of tensors per layer, cut into the blocks that the scheduler hands out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class KVShape(NamedTuple):
    """What one token stores: ``layers`` pairs of ``kv_heads`` vectors of ``head_dim``."""

    layers: int
    kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        return 2 * self.layers * block_size * self.kv_heads * self.head_dim * dtype.itemsize


class Saved(NamedTuple):
    """Host copies of some blocks, a tensor per layer."""

    keys: list[Tensor]
    values: list[Tensor]


class PagedKV:
    """Keys and values per layer, ``[blocks + 1, block_size, kv_heads, head_dim]``.

    The last block is scratch: rows that only fill up a captured graph write there. Memory starts as
    zeros, since a masked key still meets its value in a product, and NaN times nothing is NaN.
    """

    def __init__(
        self, shape: KVShape, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.blocks = blocks
        self.block_size = block_size
        size = (blocks + 1, block_size, shape.kv_heads, shape.head_dim)
        self.keys = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy blocks within the cache; no target is a source."""
        pair = torch.tensor((sources, targets), dtype=torch.int64, device=self.keys[0].device)
        source, target = pair[0], pair[1]
        for cache in (*self.keys, *self.values):
            cache[target] = cache[source]

    def save(self, blocks: Sequence[int]) -> Saved:
        """Copies of these blocks in host memory, for a request that makes way."""
        wanted = torch.tensor(blocks, dtype=torch.int64, device=self.keys[0].device)
        keys, values = ([cache[wanted].cpu() for cache in side] for side in (self.keys, self.values))
        return Saved(keys, values)

    def restore(self, saved: Saved, blocks: Sequence[int]) -> None:
        """Put copies back, into the first of these blocks."""
        device = self.keys[0].device
        wanted = torch.tensor(blocks[: len(saved.keys[0])], dtype=torch.int64, device=device)
        for side, copies in ((self.keys, saved.keys), (self.values, saved.values)):
            for cache, copy in zip(side, copies, strict=True):
                cache[wanted] = copy.to(device)
