"""Packed products are the plain ones, whatever stands beside a row."""

from __future__ import annotations

import pytest
import torch

from backend.linear import arithmetic, linear

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 3, 16, 65])
def test_equal_to_the_definition(dtype: torch.dtype, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(48, 40, generator=generator).to(dtype)
    bias = torch.randn(48, generator=generator).to(dtype)
    x = torch.randn(rows, 40, generator=generator).to(dtype)
    wanted = x.double() @ weight.double().T + bias.double()
    computed = arithmetic(dtype, CPU)
    found = linear(weight, bias)(x.to(computed))
    assert found.dtype == computed
    torch.testing.assert_close(
        found.double(), wanted, rtol=2e-2, atol=6e-2 if dtype != torch.float32 else 1e-4
    )


def test_a_half_precision_without_arithmetic_is_computed_in_float32() -> None:
    assert arithmetic(torch.float16, CPU) == torch.float32
    assert arithmetic(torch.float32, CPU) == torch.float32
    native = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert arithmetic(torch.bfloat16, CPU) == (torch.bfloat16 if native else torch.float32)


@pytest.mark.parametrize("shape", [(192, 64), (64, 96), (2048, 128)])
def test_a_rows_product_does_not_depend_on_its_neighbours(shape: tuple[int, int]) -> None:
    """Bit for bit on the processors seen; up to rounding on any."""
    generator = torch.Generator().manual_seed(0)
    product = linear(torch.randn(*shape, generator=generator))
    x = torch.randn(130, shape[1], generator=generator)
    whole = product(x)
    for rows in (1, 2, 3, 7, 16, 33, 64):
        torch.testing.assert_close(product(x[:rows].contiguous()), whole[:rows], rtol=1e-5, atol=1e-5)
