"""Attention of left-padded static batches, as Hugging Face's pipelines compute it: padding and all."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from backend.batch import Padding


def attend_padded(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    padding: Padding,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Every row attends to all its stored positions under one mask that hides padding and the future.

    ``query``: [rows * width, heads, dim], row by row; ``keys``, ``values``: one layer's blocks.
    """
    rows, width, stored = padding.rows, padding.width, padding.stored
    heads = query.shape[1]
    packed = query.view(rows, width, heads, -1).transpose(1, 2)
    key, value = (_gather(cache, padding.blocks, stored, heads) for cache in (keys, values))
    mask = _visible(padding, window)
    if softcap or sinks is not None:
        found = _explicit(packed, key, value, mask, scale, softcap, sinks)
    else:
        found = functional.scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scale)
    return found.transpose(1, 2).reshape(rows * width, heads, -1)


def _gather(cache: Tensor, blocks: Tensor, stored: int, heads: int) -> Tensor:
    """[rows, heads, stored, dim], KV heads repeated for the heads that share them."""
    rows, columns = len(blocks), -(-stored // cache.shape[1])
    wanted = blocks[:, :columns].flatten().long()
    found = cache[wanted].view(rows, columns * cache.shape[1], *cache.shape[2:])[:, :stored]
    return found.transpose(1, 2).repeat_interleave(heads // cache.shape[2], dim=1)


def _visible(padding: Padding, window: int) -> Tensor:
    """[rows, 1, width, stored]: a padded position sees itself, so that no row of the softmax is empty."""
    keys = torch.arange(padding.stored, device=padding.pads.device)
    queries = torch.arange(padding.stored - padding.width, padding.stored, device=padding.pads.device)
    mask = (keys <= queries[:, None]) & (keys >= padding.pads[:, None, None])
    if window:
        mask = mask & (keys > queries[:, None] - window)
    return (mask | (keys == queries[:, None]))[:, None]


def _explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    scores = (query.float() @ key.float().transpose(2, 3)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        column = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[2]]
    return (weights @ value.float()).to(query.dtype)
