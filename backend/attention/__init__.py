"""Attention over the paged cache: one interface, several kernels, and the choice between them."""

from __future__ import annotations

import torch

from backend.attention.kernels import Kernels

__all__ = ["Kernels", "choose"]

WIDEST_HEAD = 512  # MAX_WIDTH of native.c


def choose(device: torch.device, dtype: torch.dtype, head_dim: int) -> tuple[Kernels, tuple[str, ...]]:
    """The fastest kernels for this device, and what the user should know about the choice."""
    from backend.attention import native, sdpa
    from backend.attention.build import BuildError

    if device.type != "cpu":
        return sdpa.KERNELS, ()
    try:
        return native.load(), ()
    except BuildError as error:
        return sdpa.KERNELS, (f"attention by bucketed SDPA, several times slower: {error}",)
