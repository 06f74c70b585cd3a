"""One iteration as a model sees it: flattened tokens, where their KV goes, and what each may look at."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class Chunk(NamedTuple):
    """A run of prompt tokens: rows ``[first, first + tokens)`` of the batch, positions from ``start``."""

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


class Attend(Protocol):
    """One iteration's attention: query [tokens, heads, dim], key and value [tokens, kv_heads, dim]."""

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
    ) -> Tensor: ...


class Forward(Protocol):
    """A model's pass over a batch: the logits of the wanted rows, [rows, vocabulary]."""

    def __call__(self, batch: Batch, attend: Attend) -> Tensor: ...
