"""Paged attention by a C kernel (native.c), built here at first use and called through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from backend.attention.build import load_library
from backend.attention.kernels import Kernels, write

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class Call(ctypes.Structure):
    """`struct call` of native.c, field by field."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("query", "keys", "values", "out", "blocks", "lengths", "sinks")
        ),
        *(
            (name, ctypes.c_int64)
            for name in ("tokens", "heads", "kv_heads", "dim", "block_size", "table_width")
        ),
        *((name, ctypes.c_int64) for name in ("start", "window", "dtype", "out_dtype", "threads")),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


class Native(NamedTuple):
    """The loaded library's two functions as kernels."""

    compiled: ctypes.CDLL

    def decode(
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
    ) -> Tensor:
        """See kernels.Decode."""
        blocks, lengths = _int32(blocks), _int32(lengths)
        return _call(
            self.compiled.decode, query, keys, values, blocks, lengths, 0, scale, window, softcap, sinks
        )

    def prefill(
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
    ) -> Tensor:
        """See kernels.Prefill."""
        return _call(
            self.compiled.prefill,
            query,
            keys,
            values,
            _int32(blocks),
            None,
            start,
            scale,
            window,
            softcap,
            sinks,
        )


def _int32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int32).contiguous()


def _call(
    function: Callable[[Any], int],
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor | None,
    start: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Fills in the structure and calls; the kernel writes float16 results as float32."""
    query = query.contiguous()
    logits = None if sinks is None else sinks.float().contiguous()
    out = torch.empty_like(query, dtype=torch.float32 if query.dtype == torch.float16 else query.dtype)
    tokens, heads, dim = query.shape
    _, block_size, kv_heads, _ = keys.shape
    call = Call(
        query.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        out.data_ptr(),
        blocks.data_ptr(),
        None if lengths is None else lengths.data_ptr(),
        None if logits is None else logits.data_ptr(),
        tokens,
        heads,
        kv_heads,
        dim,
        block_size,
        blocks.shape[-1],
        start,
        window,
        DTYPES[query.dtype],
        DTYPES[out.dtype],
        torch.get_num_threads(),
        scale,
        softcap,
    )
    if function(ctypes.byref(call)):
        raise MemoryError("the attention kernel found no room for its partial sums")
    return out.to(query.dtype)


def load() -> Kernels:
    """Builds or finds the kernel; build.BuildError says why there is none."""
    library = load_library()
    for function in (library.decode, library.prefill):
        function.argtypes, function.restype = (ctypes.POINTER(Call),), ctypes.c_int
    library.isa.restype = ctypes.c_char_p
    native = Native(library)
    return Kernels(f"native {library.isa().decode()}", write, native.decode, native.prefill)
