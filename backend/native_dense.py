"""The dense part of a decoder layer in float32 by C code (products.c, elementwise.c), through ctypes."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from backend.attention.build import load_library
from backend.linear import Linear

POINTER, COUNT = ctypes.c_void_p, ctypes.c_int64
SLACK_FLOATS = 64  # a packed weight begins at a whole cache line


class Product(ctypes.Structure):
    """`struct product` of products.c, field by field."""

    _fields_ = (
        *((name, POINTER) for name in ("x", "packed", "bias", "out")),
        *((name, COUNT) for name in ("rows", "inputs", "outputs", "threads")),
    )


class NativeDense(NamedTuple):
    """See dense.Dense."""

    compiled: ctypes.CDLL

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        weight = weight.float().contiguous()
        offset = None if bias is None else bias.float().contiguous()
        (outputs, inputs), compiled = weight.shape, self.compiled
        packed = _aligned(compiled.packed_floats(inputs, outputs))
        compiled.pack(weight.data_ptr(), packed.data_ptr(), inputs, outputs)

        def product(x: Tensor) -> Tensor:
            x = x.contiguous()
            out = torch.empty(len(x), outputs)
            call = Product(
                x.data_ptr(),
                packed.data_ptr(),
                None if offset is None else offset.data_ptr(),
                out.data_ptr(),
                len(x),
                inputs,
                outputs,
                torch.get_num_threads(),
            )
            compiled.multiply_all(ctypes.byref(call))
            return out

        return product

    def add_norm(self, hidden: Tensor, addend: Tensor, weight: Tensor, eps: float) -> Tensor:
        """All three are contiguous: ``hidden`` is changed where it lies."""
        out = torch.empty_like(hidden)
        width = hidden.shape[-1]
        self.compiled.add_norm(
            hidden.data_ptr(),
            addend.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            hidden.numel() // width,
            width,
            eps,
            torch.get_num_threads(),
        )
        return out

    def rotate(self, heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """In place; the heads of a token lie side by side."""
        tokens, count, dim = heads.shape
        self.compiled.rotate(
            heads.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            tokens,
            count,
            dim,
            heads.stride(0),
            torch.get_num_threads(),
        )
        return heads

    def gate(self, gate_up: Tensor) -> Tensor:
        rows, columns = gate_up.shape
        out = torch.empty(rows, columns // 2)
        self.compiled.gate(gate_up.data_ptr(), out.data_ptr(), rows, columns // 2, torch.get_num_threads())
        return out


def _aligned(floats: int) -> Tensor:
    room = torch.empty(floats + SLACK_FLOATS)
    return room[-room.data_ptr() % 64 // room.itemsize :][:floats]


def load() -> NativeDense | None:
    """The compiled code; None on processors where torch's libraries do better or nobody has measured."""
    library = load_library()
    library.isa.restype = ctypes.c_char_p
    if library.isa() != b"avx2":
        return None
    library.packed_floats.argtypes, library.packed_floats.restype = (COUNT, COUNT), COUNT
    library.pack.argtypes, library.pack.restype = (POINTER, POINTER, COUNT, COUNT), None
    library.multiply_all.argtypes, library.multiply_all.restype = (ctypes.POINTER(Product),), None
    library.add_norm.argtypes = (*(POINTER,) * 4, COUNT, COUNT, ctypes.c_float, COUNT)
    library.rotate.argtypes = (*(POINTER,) * 3, *(COUNT,) * 5)
    library.gate.argtypes = (POINTER, POINTER, COUNT, COUNT, COUNT)
    for function in (library.add_norm, library.rotate, library.gate):
        function.restype = None
    return NativeDense(library)
