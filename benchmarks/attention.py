"""Paged decode and prefill on this CPU against what memory allows: python -m benchmarks.attention

Every round reads a large array (the bandwidth), then runs each kernel once, so that drift of the machine
hits all alike. A decode's bound is its bytes of keys and values over the median bandwidth. Medians.

On a machine that others use, `--threads 1 --cpu-time` counts only the time that this process had a core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from backend.attention import choose, sdpa

LAYERS = 8  # caches taken in turn, so that the next one is seldom still in the processor's cache
STREAM_FLOATS = 64 * 2**20


class Decode(NamedTuple):
    name: str
    heads: int
    kv_heads: int
    dim: int
    lengths: Sequence[int]


MIXED = tuple(64 + 64 * row for row in range(16))
DECODES = (
    Decode("16 rows of 64-1024", 8, 4, 64, MIXED),
    Decode("32 rows of 64", 8, 4, 64, (64,) * 32),
    Decode("32 rows of 256", 8, 4, 64, (256,) * 32),
    Decode("32 rows of 1024", 8, 4, 64, (1024,) * 32),
    Decode("16 rows of 512, group of 3", 9, 3, 64, (512,) * 16),
    Decode("4 rows of 2048, heads of 128", 32, 8, 128, (2048,) * 4),
    Decode("1 row of 4096", 8, 4, 64, (4096,)),
)
PREFILLS = ((8, 4, 64, 64, 0), (8, 4, 64, 512, 0), (9, 3, 64, 512, 1536), (32, 8, 128, 256, 0))


Clock = Callable[[], float]


def timed(work: Callable[[], object], clock: Clock) -> float:
    begin = clock()
    work()
    return clock() - begin


def cache(
    lengths: Sequence[int], kv_heads: int, dim: int, dtype: torch.dtype, layers: int
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Filled layers and block tables in shuffled order, 16 tokens a block."""
    needs = [-(-length // 16) for length in lengths]
    shuffled, blocks = (
        torch.randperm(sum(needs)).int(),
        torch.zeros(len(needs), max(needs), dtype=torch.int32),
    )
    for row, part in enumerate(torch.split(shuffled, needs)):
        blocks[row, : len(part)] = part
    sizes = (sum(needs), 16, kv_heads, dim)
    return [(torch.randn(sizes).to(dtype), torch.randn(sizes).to(dtype)) for _ in range(layers)], blocks


def rounds(works: Mapping[str, Callable[[], object]], seconds: float, clock: Clock) -> dict[str, float]:
    """Median time of each piece of work, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times[next(iter(works))]) < 3:
        for name, work in works.items():
            times[name].append(timed(work, clock))
    return {name: statistics.median(found) for name, found in times.items()}


def decode_line(case: Decode, dtype: torch.dtype, stream: Tensor, seconds: float, clock: Clock) -> str:
    layers, blocks = cache(case.lengths, case.kv_heads, case.dim, dtype, LAYERS)
    query = torch.randn(len(case.lengths), case.heads, case.dim).to(dtype)
    lengths = torch.tensor(case.lengths, dtype=torch.int32)
    native, _ = choose(torch.device("cpu"), dtype, case.dim)

    def run(decode: Callable[..., Tensor]) -> None:
        for keys, values in layers:
            decode(query, keys, values, blocks, lengths, case.dim**-0.5)

    found = rounds(
        {"stream": stream.sum, "native": lambda: run(native.decode), "sdpa": lambda: run(sdpa.decode)},
        seconds,
        clock,
    )
    bandwidth = stream.nbytes / found["stream"]
    held_bytes = 2 * sum(case.lengths) * case.kv_heads * case.dim * dtype.itemsize
    bound, ours, theirs = held_bytes / bandwidth, found["native"] / LAYERS, found["sdpa"] / LAYERS
    return (
        f"| {case.name} | {str(dtype)[6:]} | {bandwidth / 1e9:.1f} | {bound * 1e6:.0f} | "
        f"{ours * 1e6:.0f} | {ours / bound:.2f} | {theirs / bound:.2f} |"
    )


def prefill_line(
    case: tuple[int, int, int, int, int], dtype: torch.dtype, seconds: float, clock: Clock
) -> str:
    heads, kv_heads, dim, tokens, start = case
    (layer,), blocks = cache([start + tokens], kv_heads, dim, dtype, 1)
    query, scale = torch.randn(tokens, heads, dim).to(dtype), dim**-0.5
    native, _ = choose(torch.device("cpu"), dtype, dim)
    found = rounds(
        {
            "native": lambda: native.prefill(query, *layer, blocks[0], start, scale),
            "sdpa": lambda: sdpa.prefill(query, *layer, blocks[0], start, scale),
        },
        seconds,
        clock,
    )
    ratio = found["sdpa"] / found["native"]
    return (
        f"| {tokens} tokens after {start}, {heads}/{kv_heads} heads of {dim} | {str(dtype)[6:]} | "
        f"{found['native'] * 1e3:.2f} | {found['sdpa'] * 1e3:.2f} | {ratio:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Paged attention against the memory's bandwidth.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=3.0, help="per line of the table")
    parser.add_argument("--cpu-time", action="store_true")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    torch.set_num_threads(arguments.threads)
    kernels, notices = choose(torch.device("cpu"), torch.float32, 64)
    print(f"{kernels.name}, {arguments.threads} threads {' '.join(notices)}\n")
    stream = torch.ones(STREAM_FLOATS)
    print("| decode | dtype | read GB/s | bound us | native us | native / bound | sdpa / bound |")
    print("|---|---|---|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        for case in DECODES:
            print(decode_line(case, dtype, stream, arguments.seconds, clock), flush=True)
    print("\n| prefill | dtype | native ms | sdpa ms | sdpa / native |\n|---|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        for shape in PREFILLS:
            print(prefill_line(shape, dtype, arguments.seconds, clock), flush=True)


if __name__ == "__main__":
    main()
