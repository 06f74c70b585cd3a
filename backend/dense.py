"""What a decoder layer computes beside attention: by torch anywhere, by our own C code where faster."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from backend.linear import Linear, arithmetic, linear


class Dense(Protocol):
    """One way to compute the dense part, in `arithmetic`'s dtype."""

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """``x @ weight.T + bias`` as a function of x [rows, inputs], the weight packed once."""

    def add_norm(self, hidden: Tensor, addend: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add to ``hidden`` in place; the sum over its root mean square, times the weight."""

    def rotate(self, heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Rotary position embedding of [tokens, heads, dim], first half against second half.

        ``heads`` may be overwritten. Cosines and sines: [tokens, 1, dim / 2].
        """

    def gate(self, gate_up: Tensor) -> Tensor:
        """SiLU of the first half of the columns, times the second half."""


class TorchDense:
    """By torch's own operations."""

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return linear(weight, bias)

    def add_norm(self, hidden: Tensor, addend: Tensor, weight: Tensor, eps: float) -> Tensor:
        hidden += addend
        return functional.rms_norm(hidden, weight.shape, weight, eps)

    def rotate(self, heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        first, second = heads.chunk(2, dim=-1)
        return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)

    def gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up


def choose_dense(stored: torch.dtype, device: torch.device) -> Dense:
    """Our own code for float32 arithmetic on processors with AVX2 alone, where it was measured; else torch.

    Processors with AVX-512 leave it to oneDNN, and so does a machine without a C compiler.
    """
    if device.type != "cpu" or arithmetic(stored, device) != torch.float32:
        return TorchDense()
    from backend.attention.build import BuildError
    from backend.native_dense import load

    try:
        return load() or TorchDense()
    except BuildError:
        return TorchDense()
