"""Live speed against transformers and vLLM: same requests, model, dtype and threads, interleaved rounds.

    python -m benchmarks.live
    SERVETWIN_VLLM_PYTHON=/path/to/vllm/bin/python python -m benchmarks.live --minutes 60

Each round runs every contender once, one after the other, so that a machine that drifts hits all alike;
ratios are medians over rounds of ratios within a round. Only useful output tokens count: what padded rows
compute beyond their own limit does not. All weights are random, all requests are there from the start.

The requests are 64, or as few as a slow machine has time for, which the output says; the padded batch size
that is best in the first round stands for all in the others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import torch

from backend.linear import arithmetic
from backend.weights import build_module, find_source
from benchmarks.live_contenders import Ask, Continuous, Ours, Run, Static, Vllm, requests

MODELS = ("servetwin/llama-50m", "servetwin/llama-250m")
REQUESTS, FEWEST = 64, 8
STATIC_BATCHES = (8, 16, 32, 64)
STATIC = "transformers generate, "
MOST_ROUNDS = 5
SLOWER = 5  # how many times our time a contender is given, when the number of requests is chosen

Contender: TypeAlias = Callable[[Sequence[Ask]], Run]
Round: TypeAlias = dict[str, Run]


def as_many_as_fit(ours: Ours, contenders: int, seconds: float) -> list[Ask]:
    """64 requests, halved until a round of ``contenders`` is expected to end within ``seconds``."""
    asked = requests(REQUESTS, 32000)
    a_request_s = ours(asked[:FEWEST]).seconds / FEWEST
    while len(asked) > FEWEST and len(asked) * a_request_s * SLOWER * contenders > seconds:
        asked = asked[: len(asked) // 2]
    return asked


def contenders(
    ours: Ours, model: str, dtype: str, threads: int, rows: int
) -> Iterator[tuple[str, Contender]]:
    """Everyone by name; ``rows``: how many requests there are to batch."""
    yield "servetwin", ours
    module = build_module(find_source(model), getattr(torch, dtype), torch.device("cpu"), 0, "sdpa")
    for batch in STATIC_BATCHES:
        if batch <= rows:
            yield f"{STATIC}{batch} rows", Static(module, batch)
    yield "transformers generate_batch", Continuous(module)
    if python := os.environ.get("SERVETWIN_VLLM_PYTHON"):
        folder = Path(tempfile.mkdtemp(prefix="servetwin-bench-"))
        module.save_pretrained(folder)
        yield "vllm", Vllm(python, folder, dtype, threads)


def compare(model: str, dtype: str, threads: int, seconds: float) -> None:
    ours = Ours(model, dtype)
    ours(requests(2, 32000))  # builds kernels, packs
    asked = as_many_as_fit(ours, len(STATIC_BATCHES) + 3, seconds)
    runners = dict(contenders(ours, model, dtype, threads, len(asked)))
    for run in runners.values():
        run(asked[:2])
    print(f"{model}, {dtype}, {threads} threads, {len(asked)} requests", flush=True)
    rounds = _rounds(runners, asked, seconds)
    output_tokens = sum(ask.output_tokens for ask in asked)
    for name in rounds[0]:
        print(f"  {_line(name, [found for found in rounds if name in found], output_tokens)}")
    shares = [found["servetwin"].shares for found in rounds]
    for name in shares[0]:
        print(f"  {name}: {statistics.median(share[name] for share in shares):.2%} of the time")


def _rounds(runners: dict[str, Contender], asked: list[Ask], seconds: float) -> list[Round]:
    """A round with everyone; as long as another should fit, one more without the slower batch sizes."""
    started, rounds = time.perf_counter(), list[Round]()
    while len(rounds) < MOST_ROUNDS:
        rounds.append({name: run(asked) for name, run in runners.items()})
        padded = {name: run for name, run in rounds[0].items() if name.startswith(STATIC)}
        best = min(padded, key=lambda name: padded[name].seconds)
        runners = {name: run for name, run in runners.items() if name not in padded or name == best}
        next_s = sum(rounds[-1][name].seconds for name in runners)
        if time.perf_counter() - started + next_s > seconds:
            break
    return rounds


def _line(name: str, rounds: list[Round], output_tokens: int) -> str:
    rate = statistics.median(output_tokens / found[name].seconds for found in rounds)
    ratios = sorted(found[name].seconds / found["servetwin"].seconds for found in rounds)
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}, rounds: {len(rounds)}"
    return f"{name:32} {rate:8.1f} tokens/s   servetwin is {statistics.median(ratios):.2f}x ({spread})"


def bound(model: str, dtype: str) -> None:
    """Decode iterations per batch size against reading weights and KV once at the measured bandwidth."""
    ours = Ours(model, dtype)
    widened = arithmetic(ours.model.dtype, ours.model.device).itemsize / ours.model.dtype.itemsize
    stored = ours.model.weights_bytes * widened
    token_bytes = ours.model.kv_shape.block_bytes(1, ours.model.dtype)
    context, outputs = 256, 32
    for rows in (1, 8, 64):
        bandwidth = _read_bytes_per_s()
        asked = [Ask(list(range(3, 3 + context)), outputs) for _ in range(rows)]
        whole = ours(asked).seconds - ours([ask._replace(output_tokens=1) for ask in asked]).seconds
        iteration_s = whole / (outputs - 1)
        least_s = (stored + rows * (context + outputs / 2) * token_bytes) / bandwidth
        print(
            f"  decode, {rows:2} rows: {1e3 * iteration_s:7.2f} ms an iteration, "
            f"bound {1e3 * least_s:6.2f} ms at {bandwidth / 1e9:.1f} GB/s: "
            f"{least_s / iteration_s:.0%} of the bound"
        )


def _read_bytes_per_s() -> float:
    """The best of a few sums over 512 MiB."""
    data = torch.ones(1 << 27)
    best = 1e9
    for _ in range(5):
        started = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - started)
    return 4 * len(data) / best


def main() -> None:
    native = arithmetic(torch.bfloat16, torch.device("cpu"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", nargs="*", default=MODELS)
    parser.add_argument(
        "--dtype",
        default=str(native).removeprefix("torch."),
        choices=("bfloat16", "float32"),
        help="default: bfloat16 on a CPU that computes in it, else float32",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=15, help="for the rounds of a model; default: 15")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if "SERVETWIN_VLLM_PYTHON" not in os.environ:
        print("note: without vLLM: SERVETWIN_VLLM_PYTHON is not set (tests/differential/make_vllm_env.sh)")
    for model in options.model:
        compare(model, options.dtype, options.threads, 60 * options.minutes)
        bound(model, options.dtype)


if __name__ == "__main__":
    main()
