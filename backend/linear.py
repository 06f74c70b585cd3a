"""Products with constant weights, packed once in the order that the CPU's matrix library wants.

oneDNN's packed product serves every number of rows with one pack. Seen on the processors tried (AVX2;
``test_linear.py`` looks at this one): a row's float32 result does not depend, bit for bit, on how many rows
are beside it, which the plain product of the CPU library does not offer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

Linear: TypeAlias = Callable[[Tensor], Tensor]

PACKED_ROWS = 64  # the typical number of rows that oneDNN packs for


def arithmetic(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype to compute in: float32 instead of a half precision that this CPU only emulates.

    Emulated bfloat16 products took eight times as long as float32 ones on two cores with AVX2.
    """
    if device.type != "cpu" or dtype == torch.float32:
        return dtype
    native = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype if native else torch.float32


def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """``x @ weight.T + bias``, x [rows, inputs], weight [outputs, inputs], in `arithmetic`'s dtype."""
    dtype = arithmetic(weight.dtype, weight.device)
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return lambda x: functional.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)
    product: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
    return lambda x: product(x, packed, bias, "none", [], "")
