"""What an attention kernel over a paged cache offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor


class Decode(Protocol):
    """Attention of one new token per row over what that row has stored, its own token included.

    query [rows, heads, dim]; keys and values [blocks, block_size, kv_heads, dim]; blocks [rows, widest] and
    lengths [rows] int32 (entries beyond a row's length are never read). Returns [rows, heads, dim].
    `window` > 0 shows only the last so many tokens; `softcap` > 0 bounds scores s by
    softcap * tanh(s / softcap); `sinks` [heads] are logits that join the softmax and carry no value.
    """

    def __call__(
        self,
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
    ) -> Tensor: ...


class Prefill(Protocol):
    """Causal attention of consecutive tokens of one request, the first at position `start`.

    query [tokens, heads, dim]; blocks [n] int32; keys of positions 0 .. start + tokens - 1 are stored
    already. The rest as in Decode.
    """

    def __call__(
        self,
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
    ) -> Tensor: ...


class Kernels(NamedTuple):
    """A matching set, and the name it goes by in the output."""

    name: str
    write: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    decode: Decode
    prefill: Prefill


def write(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Stores k and v [tokens, kv_heads, dim] at slots = block * block_size + offset, int64 [tokens]."""
    keys.view(-1, *k.shape[1:]).index_copy_(0, slots, k)
    values.view(-1, *v.shape[1:]).index_copy_(0, slots, v)
