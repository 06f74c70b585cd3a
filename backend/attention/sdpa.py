"""Paged attention from what torch has: rows of like length are gathered, padded and attended to together.

A row's padded width depends on its own length alone, so that its result does not depend on its batch mates;
it may depend on the number of threads, since torch splits the work by it.
Queries that share a key-value head are laid side by side as if they were consecutive tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from backend.attention.kernels import Kernels, write

SMALLEST_BUCKET = 64  # tokens
PREFILL_TOKENS = 256  # queries at a time, which bounds the memory for masks and scores


def bucket(length: int) -> int:
    """The padded width for a length: the next of 64, 96, 128, 192, 256, 384, ... tokens."""
    power = max(SMALLEST_BUCKET, 1 << (length - 1).bit_length())
    between = power * 3 // 4
    return between if power > SMALLEST_BUCKET and length <= between else power


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
    out = torch.empty_like(query)
    buckets: dict[int, list[int]] = {}
    for row, length in enumerate(lengths.tolist()):
        buckets.setdefault(bucket(min(length, window) if window else length), []).append(row)
    for width, members in buckets.items():
        rows = torch.tensor(members, device=query.device)
        ends = lengths[rows].long()[:, None]
        firsts = (ends - window).clamp(min=0) if window else torch.zeros_like(ends)
        positions = firsts + torch.arange(width, device=query.device)
        k, v = _gather(keys, values, blocks[rows], positions.minimum(ends - 1))
        seen = (positions < ends)[:, None, None, :]
        grouped = query[rows].view(len(members), keys.shape[2], -1, query.shape[2])
        logits = None if sinks is None else sinks.view(keys.shape[2], -1)
        out[rows] = _attend(grouped, k, v, seen, scale, softcap, logits).flatten(1, 2)
    return out


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


KERNELS = Kernels("bucketed sdpa", write, decode, prefill)
