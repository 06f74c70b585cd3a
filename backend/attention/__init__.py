"""Attention over the paged cache: one interface, several kernels, and the choice between them."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from backend.attention.kernels import Kernels

__all__ = ["Kernels", "choose"]

WIDEST_HEAD = 512  # MAX_WIDTH of native.c
KINDS = (torch.float32, torch.bfloat16, torch.float16)


def choose(device: torch.device, dtype: torch.dtype, head_dim: int) -> tuple[Kernels, tuple[str, ...]]:
    """The fastest kernels for this device, and what the user should know about the choice."""
    from backend.attention import sdpa

    if dtype not in KINDS or head_dim > WIDEST_HEAD:
        return sdpa.KERNELS, (f"attention by SDPA: no kernel of ours for {dtype} heads of {head_dim}",)
    if device.type == "cuda":
        return _for_cuda()
    if device.type == "cpu":
        return _for_cpu()
    return sdpa.KERNELS, (f"attention by SDPA: no kernel of ours for {device.type}",)


def _for_cuda() -> tuple[Kernels, tuple[str, ...]]:
    from backend.attention import sdpa

    if find_spec("triton") is None:
        return sdpa.KERNELS, ("attention by SDPA, several times slower: Triton is not installed",)
    from backend.attention import triton_kernels

    return triton_kernels.KERNELS, ()


def _for_cpu() -> tuple[Kernels, tuple[str, ...]]:
    from backend.attention import native, sdpa
    from backend.attention.build import BuildError

    try:
        return native.load(), ()
    except BuildError as error:
        return sdpa.KERNELS, (f"attention by SDPA, several times slower: {error}",)
