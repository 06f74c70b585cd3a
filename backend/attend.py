"""Attention over the paged cache: store the new keys and values, then let each token look at its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.attention import Kernels
from backend.batch import Batch
from backend.padded import attend_padded
from backend.paged_kv import PagedKV


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """The attention of one iteration. It travels as an argument, so that two models never share state."""

    kernels: Kernels
    kv: PagedKV
    batch: Batch

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Store the tokens' keys and values, then attend; ``[tokens, heads, dim]`` in and out.

        All is stored before anybody looks, since a chunk may read blocks that another one of the same
        iteration fills.
        """
        keys, values = self.kv.keys[layer], self.kv.values[layer]
        self.kernels.write(key, value, keys, values, self.batch.slots)
        return self.look(layer, query, scale=scale, window=window, softcap=softcap, sinks=sinks)

    def look(
        self,
        layer: int,
        query: Tensor,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend to what is stored already."""
        batch, kernels = self.batch, self.kernels
        keys, values = self.kv.keys[layer], self.kv.values[layer]
        if batch.padding is not None:
            return attend_padded(
                query, keys, values, batch.padding, scale=scale, window=window, softcap=softcap, sinks=sinks
            )
        parts = []
        if batch.decodes:
            rows = query[: batch.decodes]
            parts.append(
                kernels.decode(
                    rows,
                    keys,
                    values,
                    batch.blocks,
                    batch.lengths,
                    scale,
                    window=window,
                    softcap=softcap,
                    sinks=sinks,
                )
            )
        for first, tokens, start, blocks in batch.chunks:
            rows = query[first : first + tokens]
            parts.append(
                kernels.prefill(
                    rows, keys, values, blocks, start, scale, window=window, softcap=softcap, sinks=sinks
                )
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)
