"""Paged attention as plainly as it can be said, in float64: what every kernel is tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.attention.kernels import Kernels, write


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """The last token's query [heads, dim] over keys and values [tokens, kv_heads, dim]."""
    first = max(0, len(keys) - window) if window else 0
    group = query.shape[0] // keys.shape[1]
    k, v = (stored[first:].double().repeat_interleave(group, dim=1) for stored in (keys, values))
    scores = torch.einsum("hd,thd->ht", query.double(), k) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None]], dim=1)
    weights = scores.softmax(dim=1)[:, : len(k)]
    return torch.einsum("ht,thd->hd", weights, v).to(query.dtype)


def decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    scale: float,
    *,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """See kernels.Decode."""
    size, rows = keys.shape[1], []
    for q, table, length in zip(query, blocks, lengths.tolist(), strict=True):
        used = table[: -(-length // size)].long()
        k, v = (cache[used].flatten(0, 1)[:length] for cache in (keys, values))
        rows.append(attend(q, k, v, scale, window, softcap, sinks))
    return torch.stack(rows)


def prefill(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    start: int,
    scale: float,
    *,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """See kernels.Prefill: a decode of every token, each seeing the tokens up to its own."""
    lengths = torch.arange(start + 1, start + len(query) + 1, dtype=torch.int32)
    tables = blocks.expand(len(query), -1)
    return decode(query, keys, values, tables, lengths, scale, window=window, softcap=softcap, sinks=sinks)


KERNELS = Kernels("reference", write, decode, prefill)
