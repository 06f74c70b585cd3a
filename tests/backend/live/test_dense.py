"""The dense part in C is torch's, and a row of it never depends on its neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from backend.attention.build import BuildError
from backend.dense import TorchDense, choose_dense
from backend.native_dense import NativeDense, load

TORCH = TorchDense()


@pytest.fixture(scope="module")
def native() -> NativeDense:
    try:
        found = load()
    except BuildError as error:
        pytest.skip(str(error))
    if found is None:
        pytest.skip("this processor leaves the dense part to torch")
    return found


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 220),
    inputs=st.sampled_from([1, 7, 64, 255, 256, 257, 600]),
    outputs=st.sampled_from([1, 15, 16, 17, 48, 100, 272]),
    biased=st.booleans(),
)
def test_products_are_those_of_the_definition(
    native: NativeDense, rows: int, inputs: int, outputs: int, biased: bool
) -> None:
    x, weight = noise(rows, inputs), noise(outputs, inputs)
    bias = noise(outputs) if biased else None
    wanted = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(native.linear(weight, bias)(x).double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(192, 64), (64, 600), (2053, 128)])
def test_a_rows_product_is_the_same_bits_beside_any_neighbours(
    native: NativeDense, threads: int, shape: tuple[int, int]
) -> None:
    product = native.linear(noise(*shape))
    x = noise(200, shape[1])
    whole = product(x)
    for rows in (1, 2, 3, 7, 16, 33, 96, 97):
        assert torch.equal(product(x[:rows]), whole[:rows])
        assert torch.equal(product(x[-rows:]), whole[-rows:])


@pytest.mark.parametrize("rows", [1, 3, 700])
@pytest.mark.parametrize("width", [5, 64, 100])
def test_adding_and_normalising_are_torchs(
    native: NativeDense, threads: int, rows: int, width: int
) -> None:
    hidden, addend, weight = noise(rows, width), noise(rows, width) * 3, noise(width)
    sums = hidden + addend
    wanted = TORCH.add_norm(hidden.clone(), addend, weight, 1e-5)
    torch.testing.assert_close(native.add_norm(hidden, addend, weight, 1e-5), wanted)
    assert torch.equal(hidden, sums)


@pytest.mark.parametrize("rows", [1, 3, 700])
@pytest.mark.parametrize("dim", [10, 64])
def test_rotation_is_torchs_and_leaves_the_values_alone(
    native: NativeDense, threads: int, rows: int, dim: int
) -> None:
    packed, angles = noise(rows, 8, dim), noise(rows, 1, dim // 2)
    wanted, values = TORCH.rotate(packed[:, :6], angles.cos(), angles.sin()), packed[:, 6:].clone()
    torch.testing.assert_close(native.rotate(packed[:, :6], angles.cos(), angles.sin()), wanted)
    assert torch.equal(packed[:, 6:], values)


@pytest.mark.parametrize("rows", [1, 3, 700])
@pytest.mark.parametrize("width", [5, 64, 100])
def test_the_gate_is_torchs_far_from_zero_too(
    native: NativeDense, threads: int, rows: int, width: int
) -> None:
    gate_up = noise(rows, 2 * width) * 50
    torch.testing.assert_close(native.gate(gate_up), TORCH.gate(gate_up))


def test_half_precisions_with_arithmetic_and_other_devices_are_left_to_torch() -> None:
    assert isinstance(choose_dense(torch.float32, torch.device("meta")), TorchDense)
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert isinstance(choose_dense(torch.bfloat16, torch.device("cpu")), TorchDense)


def test_without_a_compiler_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert isinstance(choose_dense(torch.float32, torch.device("cpu")), TorchDense)
