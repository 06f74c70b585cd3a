"""Paged attention from what torch has: each row's keys and values are gathered and attended to by SDPA.

Row by row, because torch splits a batch by its size: of 360 rows attended to in padded buckets, 34 differed
in some bit from the same row alone. Results may still depend on the number of threads. Queries that share a
key-value head are laid side by side as if they were consecutive tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from backend.attention.kernels import Kernels, write

PREFILL_TOKENS = 256  # queries at a time, which bounds the memory for masks and scores


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
    rows = zip(query.split(1), blocks, lengths.tolist(), strict=True)  # type: ignore[no-untyped-call]
    return torch.cat(
        [
            _prefill_part(q, keys, values, table, length - 1, scale, window, softcap, sinks)
            for q, table, length in rows
        ]
    )


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
    """See kernels.Prefill."""
    parts = []
    for begin in range(0, len(query), PREFILL_TOKENS):
        part = query[begin : begin + PREFILL_TOKENS]
        parts.append(
            _prefill_part(part, keys, values, blocks, start + begin, scale, window, softcap, sinks)
        )
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _prefill_part(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    start: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    tokens, heads, _ = query.shape
    kv_heads, group = keys.shape[2], heads // keys.shape[2]
    first = max(0, start + 1 - window) if window else 0
    positions = torch.arange(first, start + tokens, device=query.device)
    own = torch.arange(start, start + tokens, device=query.device)[:, None]
    seen = (positions <= own) & (positions > own - window) if window else positions <= own
    k, v = _gather(keys, values, blocks[None], positions[None])
    grouped = (
        query.reshape(tokens, kv_heads, group, -1)
        .permute(1, 2, 0, 3)
        .reshape(1, kv_heads, group * tokens, -1)
    )
    logits = None if sinks is None else sinks.view(kv_heads, group).repeat_interleave(tokens, dim=1)
    found = _attend(grouped, k, v, seen.repeat(group, 1)[None, None], scale, softcap, logits)
    return found.view(kv_heads, group, tokens, -1).permute(2, 0, 1, 3).reshape(tokens, heads, -1)


def _gather(keys: Tensor, values: Tensor, blocks: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Stored keys and values of positions [rows, width], as [rows, kv_heads, width, dim]."""
    size = keys.shape[1]
    slots = blocks.long().gather(1, positions // size) * size + positions % size
    return keys.flatten(0, 1)[slots].transpose(1, 2), values.flatten(0, 1)[slots].transpose(1, 2)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Tensor,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """query [rows, kv_heads, n, dim] on keys, values [rows, kv_heads, width, dim]; sinks [kv_heads, n]."""
    if not softcap and sinks is None:
        mask = seen.expand(query.shape[0], 1, query.shape[2], keys.shape[2])
        return functional.scaled_dot_product_attention(query, keys, values, mask, scale=scale)
    scores = query.float() @ keys.float().transpose(2, 3) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        column = sinks.float()[None, :, :, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=3)
    weights = scores.softmax(dim=3)[..., : keys.shape[2]]
    return (weights @ values.float()).to(query.dtype)


KERNELS = Kernels("sdpa row by row", write, decode, prefill)
