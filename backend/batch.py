"""One iteration as a model sees it: flattened tokens, where their KV goes, and what each may look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from torch import Tensor


class Chunk(NamedTuple):
    """A run of prompt tokens: rows ``[first, first + tokens)`` of the batch, at positions from ``start``."""

    first: int
    tokens: int
    start: int
    blocks: Tensor  # int32 [blocks that hold the request's tokens up to the chunk's end]


class Padding(NamedTuple):
    """A left-padded static batch: ``rows`` prompts of ``width`` positions, or one decode token of each row.

    ``blocks``: int32 [rows, columns]; ``pads``: int64 [rows], padded positions before each prompt;
    ``stored``: KV slots written per row after this iteration, the padding included.
    """

    rows: int
    width: int  # positions of each row in this iteration
    blocks: Tensor
    pads: Tensor
    stored: int


class Batch(NamedTuple):
    """The tokens of one iteration, decode rows first, then the prompt chunks in order.

    A token's ``slot`` is ``block * block_size + offset`` in every layer's KV tensors. ``logit_rows`` names
    the tokens whose successor is wanted; None: all of them.
    """

    tokens: Tensor  # int64 [tokens]
    positions: Tensor  # int64 [tokens]
    slots: Tensor  # int64 [tokens]
    decodes: int
    blocks: Tensor  # int32 [decodes, columns]
    lengths: Tensor  # int32 [decodes]: stored tokens, the new one included
    chunks: tuple[Chunk, ...] = ()
    logit_rows: Tensor | None = None
    padding: Padding | None = None


# attend(layer, query [tokens, heads, dim], key and value [tokens, kv_heads, dim], scale, window, softcap, sinks)
Attend: TypeAlias = Callable[..., Tensor]
# The logits of the wanted rows, [rows, vocabulary].
Forward: TypeAlias = Callable[[Batch, Attend], Tensor]
