"""Paged attention on the GPU in Triton: a decode split over the context, and a causal prefill.

Sizes of splits and steps are constants, so a row's result depends on its own length and nothing else. Grids
depend on shapes alone, never on values, so a decode can be captured in a CUDA graph.
"""

# Triton compiles what it decorates by rules and types of its own, so mypy cannot check those functions.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803 (compile-time constants are upper case, as everywhere in Triton)
from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]  # ships no types
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]
from torch import Tensor

from backend.attention.kernels import Kernels, write

SPLIT = 512  # keys of one program of a decode
STEP = 64  # keys at a time
PREFILL_ROWS = 64  # queries of one program of a prefill, heads of a group counted singly
SMALLEST_DOT = 16  # rows that tl.dot wants


@triton.jit
def _over_keys(
    query, keys, values, table, low, high, begin, end, scale, softcap,
    head, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Running softmax of query [rows, WIDTH] over keys begin .. end - 1; a row sees low .. high - 1."""
    rows: tl.constexpr = query.shape[0]
    maximum = tl.full([rows], -float("inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    summed = tl.zeros([rows, WIDTH], tl.float32)
    columns = tl.arange(0, WIDTH)
    for first in range(begin, end, STEP):
        at = first + tl.arange(0, STEP)
        stored = at < end
        block = tl.load(table + at // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
        offset = ((block * BLOCK_SIZE + at % BLOCK_SIZE) * KV_HEADS + head) * DIM
        inside = stored[:, None] & (columns < DIM)[None, :]
        key = tl.load(keys + offset[:, None] + columns[None, :], mask=inside, other=0.0)
        value = tl.load(values + offset[:, None] + columns[None, :], mask=inside, other=0.0)
        scores = tl.dot(query.to(DOT), tl.trans(key.to(DOT)), input_precision="ieee") * scale
        if softcap > 0.0:
            scores = (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0) * softcap
        seen = (at[None, :] >= low[:, None]) & (at[None, :] < high[:, None])
        scores = tl.where(seen, scores, -float("inf"))
        now = tl.maximum(maximum, tl.max(scores, axis=1))
        against = tl.where(now == -float("inf"), 0.0, now)
        shrink = tl.exp(maximum - against)
        weights = tl.exp(scores - against[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        summed = summed * shrink[:, None]
        summed += tl.dot(weights.to(DOT), value.to(DOT), input_precision="ieee")
        maximum = now
    return maximum, total, summed


@triton.jit
def _decode_split(
    query, keys, values, blocks, lengths, maxima, totals, sums, table_width, splits, scale, softcap, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, SPLIT: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    low = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    begin = tl.maximum(split * SPLIT, low // STEP * STEP)
    end = tl.minimum((split + 1) * SPLIT, length)
    member, columns = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    real = (member < GROUP)[:, None] & (columns < DIM)[None, :]
    to = (row * KV_HEADS + head) * GROUP + member
    q = tl.load(query + to[:, None] * DIM + columns[None, :], mask=real, other=0.0)
    limits = tl.zeros([ROWS], tl.int32)
    maximum, total, summed = _over_keys(
        q, keys, values, blocks + row * table_width, limits + low, limits + length, begin, end, scale,
        softcap, head, KV_HEADS, BLOCK_SIZE, DIM, WIDTH, STEP, DOT,
    )  # fmt: skip
    part = to * splits + split
    tl.store(maxima + part, maximum, mask=member < GROUP)
    tl.store(totals + part, total, mask=member < GROUP)
    tl.store(sums + part[:, None] * DIM + columns[None, :], summed, mask=real)


@triton.jit
def _merge_splits(
    out, maxima, totals, sums, lengths, sinks, splits, window,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length, columns, to = tl.load(lengths + row), tl.arange(0, WIDTH), row * HEADS + head
    low = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    maximum, total = -float("inf"), 0.0
    summed = tl.zeros([WIDTH], tl.float32)
    if SINKS:
        maximum, total = tl.load(sinks + head), 1.0
    for split in range(low // SPLIT, tl.cdiv(length, SPLIT)):
        part = to * splits + split
        other = tl.load(maxima + part)
        now = tl.maximum(maximum, other)
        keep, add = tl.exp(maximum - now), tl.exp(other - now)
        total = total * keep + tl.load(totals + part) * add
        summed = summed * keep + tl.load(sums + part * DIM + columns, mask=columns < DIM, other=0.0) * add
        maximum = now
    tl.store(out + to * DIM + columns, (summed / total).to(out.dtype.element_ty), mask=columns < DIM)


@triton.jit
def _prefill_rows(
    out, query, keys, values, table, sinks, tokens, start, scale, softcap, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, SINKS: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    index, columns = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    token, own_head = index // GROUP, head * GROUP + index % GROUP
    real = (token < tokens)[:, None] & (columns < DIM)[None, :]
    to = (token.to(tl.int64) * KV_HEADS * GROUP + own_head)[:, None] * DIM + columns[None, :]
    q = tl.load(query + to, mask=real, other=0.0)
    high = start + token + 1
    low = tl.where(window > 0, tl.maximum(high - window, 0), 0)
    begin, end = tl.min(low, axis=0) // STEP * STEP, tl.minimum(tl.max(high, axis=0), start + tokens)
    maximum, total, summed = _over_keys(
        q, keys, values, table, low, high, begin, end, scale, softcap,
        head, KV_HEADS, BLOCK_SIZE, DIM, WIDTH, STEP, DOT,
    )  # fmt: skip
    if SINKS:
        logit = tl.load(sinks + own_head)
        now = tl.maximum(maximum, logit)
        keep = tl.exp(maximum - now)
        total = total * keep + tl.exp(logit - now)
        summed = summed * keep[:, None]
    tl.store(out + to, (summed / total[:, None]).to(out.dtype.element_ty), mask=real)


def _dot_type(query: Tensor) -> tl.dtype:
    """What products are computed from. Triton's interpreter would multiply the bits of bfloat16 numbers."""
    kinds = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    return kinds[query.dtype] if query.is_cuda else tl.float32


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
    rows, heads, dim = query.shape
    _, block_size, kv_heads, _ = keys.shape
    query, blocks, width = query.contiguous(), blocks.contiguous(), triton.next_power_of_2(dim)
    splits = triton.cdiv(blocks.shape[1] * block_size, SPLIT)
    maxima = torch.empty((rows, heads, splits), dtype=torch.float32, device=query.device)
    totals, sums = torch.empty_like(maxima), maxima.new_empty((rows, heads, splits, dim))
    group = heads // kv_heads
    _decode_split[(rows, kv_heads, splits)](
        query, keys, values, blocks, lengths, maxima, totals, sums, blocks.shape[1], splits,
        scale, softcap, window,
        KV_HEADS=kv_heads, GROUP=group, ROWS=max(SMALLEST_DOT, triton.next_power_of_2(group)),
        BLOCK_SIZE=block_size, DIM=dim, WIDTH=max(SMALLEST_DOT, width), STEP=STEP, SPLIT=SPLIT,
        DOT=_dot_type(query),
    )  # fmt: skip
    out = torch.empty_like(query)
    logits = maxima if sinks is None else sinks.float().contiguous()
    _merge_splits[(rows, heads)](
        out, maxima, totals, sums, lengths, logits, splits, window,
        HEADS=heads, DIM=dim, WIDTH=width, SPLIT=SPLIT, SINKS=sinks is not None,
    )  # fmt: skip
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
    tokens, heads, dim = query.shape
    _, block_size, kv_heads, _ = keys.shape
    query, group = query.contiguous(), heads // kv_heads
    out = torch.empty_like(query)
    logits = query if sinks is None else sinks.float().contiguous()
    _prefill_rows[(triton.cdiv(tokens * group, PREFILL_ROWS), kv_heads)](
        out, query, keys, values, blocks.contiguous(), logits, tokens, start, scale, softcap, window,
        KV_HEADS=kv_heads, GROUP=group, ROWS=PREFILL_ROWS, BLOCK_SIZE=block_size, DIM=dim,
        WIDTH=max(SMALLEST_DOT, triton.next_power_of_2(dim)), STEP=STEP, SINKS=sinks is not None,
        DOT=_dot_type(query),
    )  # fmt: skip
    return out


KERNELS = Kernels("triton", write, decode, prefill)
