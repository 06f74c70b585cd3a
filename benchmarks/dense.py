"""The dense part of a decoder in C against torch's: CPU time of one thread, both in turn, medians of pairs.

python -m benchmarks.dense --model servetwin/llama-50m
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from backend.dense import Dense, TorchDense
from backend.linear import Linear
from backend.native_dense import load
from backend.weights import find_source

ROWS = (1, 8, 13, 24, 64, 256)


class Stack:
    """All layers of a model without their attention, so that weights come from memory as in a live run."""

    def __init__(self, name: str, dense: Dense) -> None:
        config = find_source(name).config
        self.dense = dense
        self.hidden: int = config.hidden_size
        inner: int = config.intermediate_size
        head_dim: int = getattr(config, "head_dim", None) or self.hidden // config.num_attention_heads
        query = config.num_attention_heads * head_dim
        packed = query + 2 * config.num_key_value_heads * head_dim
        shapes = (
            (packed, self.hidden),
            (self.hidden, query),
            (2 * inner, self.hidden),
            (self.hidden, inner),
        )
        self.query = query
        self.norm = torch.ones(self.hidden)
        self.layers: list[list[Linear]] = [
            [dense.linear(torch.randn(*shape) * shape[1] ** -0.5) for shape in shapes]
            for _ in range(config.num_hidden_layers)
        ]

    def __call__(self, hidden: Tensor) -> None:
        dense, addend = self.dense, torch.zeros_like(hidden)
        for qkv, output, gate_up, down in self.layers:
            attended = qkv(dense.add_norm(hidden, addend, self.norm, 1e-5))[:, : self.query]
            addend = output(attended.contiguous())
            addend = down(dense.gate(gate_up(dense.add_norm(hidden, addend, self.norm, 1e-5))))


def cpu_ms(run: Callable[[Tensor], None], rows: Tensor) -> float:
    fresh = rows.clone()
    began = time.thread_time_ns()
    run(fresh)
    return (time.thread_time_ns() - began) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="servetwin/llama-50m")
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    native = load()
    if native is None:
        raise SystemExit("this processor leaves the dense part to torch")
    ways = [Stack(options.model, dense) for dense in (TorchDense(), native)]
    with torch.inference_mode():
        for count in ROWS:
            rows = torch.randn(count, ways[0].hidden)
            pairs = [[cpu_ms(way, rows) for way in ways] for _ in range(options.pairs)]
            torch_ms, native_ms = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(theirs / ours for theirs, ours in pairs)
            print(f"{count:5} rows: torch {torch_ms:7.1f} ms, C {native_ms:7.1f} ms, {ratio:.2f}x")


if __name__ == "__main__":
    main()
