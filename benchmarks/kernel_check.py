"""Attention kernels of a device against the reference, in bfloat16 and float32, over uneven batches.

    python -m benchmarks.kernel_check --device cuda --output kernels.json

Errors are relative to the largest value of the reference's result. The exit code is 1 where one is larger
than its dtype's rounding allows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from backend.attention import choose, reference

ALLOWED = {torch.bfloat16: 2e-2, torch.float32: 2e-5}
BLOCK_SIZE, BLOCKS = 16, 512
SHAPES = ((8, 4, 64), (32, 8, 128))  # heads, KV heads, head size: llama-50m, Llama 3.1 8B


def errors(device: torch.device, dtype: torch.dtype) -> Iterator[dict[str, object]]:
    """The error of each case."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(dtype)

    for heads, kv_heads, dim in SHAPES:
        kernels, _ = choose(device, dtype, dim)
        keys, values = (drawn(BLOCKS, BLOCK_SIZE, kv_heads, dim) for _ in range(2))
        shuffled = torch.randperm(BLOCKS, generator=generator).int()
        lengths = torch.tensor([1, 15, 16, 17, 255, 600, 1024], dtype=torch.int32)
        tables = shuffled[: 7 * 64].view(7, 64)
        query, scale = drawn(7, heads, dim), dim**-0.5
        wanted = reference.decode(query, keys, values, tables, lengths, scale)
        sent = [tensor.to(device) for tensor in (query, keys, values, tables, lengths)]
        yield case("decode", kernels.name, dtype, heads, wanted, kernels.decode(*sent, scale))
        for tokens, start in ((1, 0), (64, 0), (100, 333)):
            query, blocks = drawn(tokens, heads, dim), shuffled[: -(-(start + tokens) // BLOCK_SIZE)]
            wanted = reference.prefill(query, keys, values, blocks, start, scale)
            sent = [tensor.to(device) for tensor in (query, keys, values, blocks)]
            found = kernels.prefill(*sent, start, scale)
            yield case(f"prefill of {tokens} from {start}", kernels.name, dtype, heads, wanted, found)


def case(
    what: str, kernels: str, dtype: torch.dtype, heads: int, wanted: torch.Tensor, found: torch.Tensor
) -> dict[str, object]:
    difference = (found.cpu().float() - wanted.float()).abs().max() / wanted.float().abs().max()
    return {
        "case": what,
        "kernels": kernels,
        "dtype": str(dtype).removeprefix("torch."),
        "heads": heads,
        "error": float(difference),
        "right": bool(difference <= ALLOWED[dtype]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    cases = [found for dtype in ALLOWED for found in errors(torch.device(options.device), dtype)]
    options.output.write_text(json.dumps(cases, indent=1) + "\n", encoding="utf-8")
    wrong = [found for found in cases if not found["right"]]
    print(f"{len(cases)} cases, {len(wrong)} wrong", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
