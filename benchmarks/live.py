"""Live speed against transformers and vLLM: same requests, model, dtype and threads, interleaved rounds.

    python -m benchmarks.live --model servetwin/llama-50m
    python -m benchmarks.live --model servetwin/llama-250m --requests 16 --rounds 1
    SERVETWIN_VLLM_PYTHON=/path/to/vllm/bin/python python -m benchmarks.live

Each round runs every contender once, one after the other, so that a machine that drifts hits all alike;
ratios are medians over rounds of ratios within a round. Only useful output tokens count: what padded rows
compute beyond their own limit does not. All weights are random, all requests are there from the start.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from backend.attention import choose
from backend.executor import TorchExecutor
from backend.models import LiveModel, load_live_model
from backend.paged_kv import PagedKV
from backend.prompts import Prompt
from backend.weights import build_module, find_source
from simulator.engine.kv_cache import KVCache
from simulator.engine.request import Request
from simulator.engine.vllm_v1 import VllmV1

BLOCK_SIZE, BLOCKS, LONGEST = 16, 4096, 1024
STATIC_BATCHES = (8, 16, 32, 64)


class Ask(NamedTuple):
    """A prompt and how many tokens its answer has."""

    tokens: list[int]
    output_tokens: int


class Run(NamedTuple):
    """One contender's time for all requests; ``shares``: host work as parts of an iteration, ours only."""

    seconds: float
    shares: dict[str, float]


def requests(count: int, vocabulary: int) -> list[Ask]:
    """Prompts of 16 to 512 tokens, answers of 16 to 256, both uniform."""
    generator = np.random.default_rng(0)
    return [
        Ask(
            generator.integers(3, vocabulary, generator.integers(16, 513)).tolist(),
            int(generator.integers(16, 257)),
        )
        for _ in range(count)
    ]


class Ours:
    """The live engine under vLLM V1's policy."""

    def __init__(self, name: str, dtype: str) -> None:
        self.model: LiveModel = load_live_model(name, dtype)
        shape = self.model.kv_shape
        self.kernels, notes = choose(self.model.device, self.model.dtype, shape.head_dim)
        self.kv = PagedKV(shape, BLOCKS, BLOCK_SIZE, self.model.dtype, self.model.device)
        for note in (*self.model.notices, *notes):
            print(f"note: {note}")

    def __call__(self, asked: Sequence[Ask]) -> Run:
        executor = TorchExecutor(self.model, self.kv, self.kernels)
        scheduler = VllmV1(
            KVCache(BLOCKS, BLOCK_SIZE),
            max_num_seqs=256,
            max_num_batched_tokens=2048,
            max_model_len=LONGEST,
        )
        started, scheduling_ns = time.perf_counter(), 0
        for i, ask in enumerate(asked):
            request = Request(i, 0, len(ask.tokens), ask.output_tokens)
            scheduler.add(request)
            executor.admit(request, Prompt(ask.tokens, output_tokens=ask.output_tokens))
        while True:
            began = time.perf_counter_ns()
            plan = scheduler.plan()
            scheduling_ns += time.perf_counter_ns() - began
            if plan is None:
                break
            executor.begin(plan)
            stopped = executor.finish(plan)
            began = time.perf_counter_ns()
            scheduler.commit(plan, stopped)
            scheduling_ns += time.perf_counter_ns() - began
        seconds = time.perf_counter() - started
        host = {"scheduler": scheduling_ns, "bookkeeping": executor.bookkeeping_ns}
        return Run(seconds, {name: spent / 1e9 / seconds for name, spent in host.items()})


class Static:
    """transformers' generate over left-padded batches, first come first served."""

    def __init__(self, module: Any, rows: int) -> None:
        self.module, self.rows = module, rows

    def __call__(self, asked: Sequence[Ask]) -> Run:
        started = time.perf_counter()
        for first in range(0, len(asked), self.rows):
            self._batch(asked[first : first + self.rows])
        return Run(time.perf_counter() - started, {})

    def _batch(self, batch: Sequence[Ask]) -> None:
        width = max(len(ask.tokens) for ask in batch)
        tokens = torch.tensor([[0] * (width - len(ask.tokens)) + ask.tokens for ask in batch])
        mask = torch.tensor([[0] * (width - len(a.tokens)) + [1] * len(a.tokens) for a in batch])
        longest = max(ask.output_tokens for ask in batch)
        with torch.inference_mode():
            self.module.generate(
                tokens,
                attention_mask=mask,
                max_new_tokens=longest,
                min_new_tokens=longest,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )


class Continuous:
    """transformers' own continuous batching, each request with its own limit."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, asked: Sequence[Ask]) -> Run:
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        settings = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=256, pad_token_id=0)
        pages = ContinuousBatchingConfig(
            page_size=32, num_blocks=1024, max_batch_tokens=512, allow_block_sharing=False
        )
        started = time.perf_counter()
        with self.module.continuous_batching_context_manager(
            generation_config=settings, continuous_batching_config=pages
        ) as manager:
            for ask in asked:
                manager.add_request(ask.tokens, max_new_tokens=ask.output_tokens, eos_token_id=-1)
            done = tokens = 0
            while done < len(asked):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    done += 1
                    tokens += len(result.generated_tokens)
                elif result is None and not manager.is_running():
                    raise RuntimeError("transformers' continuous batching stopped early")
            seconds = time.perf_counter() - started
        assert tokens == sum(ask.output_tokens for ask in asked)
        return Run(seconds, {})


class Vllm:
    """vLLM in its own environment and process: compiled, in-process engine, no prefix cache."""

    def __init__(self, python: str, folder: Path, dtype: str, threads: int) -> None:
        settings = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        script = Path(__file__).with_name("live_vllm.py")
        self.process = subprocess.Popen(
            [python, str(script), str(folder), dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **settings},
        )

    def __call__(self, asked: Sequence[Ask]) -> Run:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("SECONDS "):
                return Run(float(line.split()[1]), {})
        raise RuntimeError(f"vLLM ended with code {self.process.wait()}")


def contenders(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[Sequence[Ask]], Run]]]:
    yield "servetwin", Ours(options.model, options.dtype)
    dtype = getattr(torch, options.dtype)
    module = build_module(find_source(options.model), dtype, torch.device("cpu"), 0, "sdpa")
    if "static" in options.against:
        for rows in options.static_batches:
            yield f"transformers generate, {rows} rows", Static(module, rows)
    if "continuous" in options.against:
        yield "transformers generate_batch", Continuous(module)
    python = os.environ.get("SERVETWIN_VLLM_PYTHON")
    if python and "vllm" in options.against:
        folder = Path(tempfile.mkdtemp(prefix="servetwin-bench-"))
        module.save_pretrained(folder)
        yield "vllm", Vllm(python, folder, options.dtype, options.threads)


def compare(options: argparse.Namespace) -> None:
    asked = requests(options.requests, 32000)
    output_tokens = sum(ask.output_tokens for ask in asked)
    runners = dict(contenders(options))
    for run in runners.values():
        run(asked[:2])  # builds kernels, packs, compiles
    rounds = []
    for number in range(options.rounds):
        rounds.append({name: run(asked) for name, run in runners.items()})
        print(f"round {number + 1}: {_rates(rounds[-1], output_tokens)}", flush=True)
    print(f"{options.model}, {options.dtype}, {options.threads} threads, {len(asked)} requests")
    for name in runners:
        rate = statistics.median(output_tokens / found[name].seconds for found in rounds)
        ratios = sorted(found[name].seconds / found["servetwin"].seconds for found in rounds)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(
            f"  {name:32} {rate:8.1f} tokens/s   servetwin is {statistics.median(ratios):.2f}x ({spread})"
        )
    shares = [found["servetwin"].shares for found in rounds]
    for name in shares[0]:
        print(f"  {name}: {statistics.median(share[name] for share in shares):.2%} of the time")


def _rates(found: dict[str, Run], output_tokens: int) -> str:
    return ", ".join(f"{name} {output_tokens / run.seconds:.1f}" for name, run in found.items())


def bound(options: argparse.Namespace) -> None:
    """Decode iterations per batch size against reading weights and KV once at the measured bandwidth."""
    ours = Ours(options.model, options.dtype)
    stored = ours.model.weights_bytes * (2 if ours.model.dtype.itemsize == 2 and _widened(ours) else 1)
    token_bytes = ours.model.kv_shape.block_bytes(1, ours.model.dtype)
    context = 256
    for rows in (1, 8, 64):
        bandwidth = _read_bytes_per_s()
        asked = [Ask(list(range(3, 3 + context)), 32) for _ in range(rows)]
        whole = ours(asked).seconds - ours([ask._replace(output_tokens=1) for ask in asked]).seconds
        least = (stored + rows * (context + 16) * token_bytes) / bandwidth
        print(
            f"  {rows:3} rows: {1e3 * whole / 31:7.2f} ms an iteration, bound {1e3 * least:6.2f} ms "
            f"at {bandwidth / 1e9:.1f} GB/s: {least / (whole / 31):.0%} of the bound"
        )


def _widened(ours: Ours) -> bool:
    from backend.linear import arithmetic

    return arithmetic(ours.model.dtype, ours.model.device) != ours.model.dtype


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="servetwin/llama-50m")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--static-batches", type=int, nargs="*", default=STATIC_BATCHES)
    parser.add_argument(
        "--against",
        nargs="*",
        default=("static", "continuous", "vllm"),
        choices=("static", "continuous", "vllm"),
    )
    parser.add_argument("--bound", action="store_true", help="decode against the bandwidth bound instead")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bound(options) if options.bound else compare(options)


if __name__ == "__main__":
    main()
