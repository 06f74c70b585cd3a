"""Who is timed in ``live.py``: this engine, transformers' two ways to batch, and vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from backend.attention import choose
from backend.executor import TorchExecutor
from backend.models import LiveModel, load_live_model
from backend.paged_kv import PagedKV
from backend.prompts import Prompt
from simulator.engine.kv_cache import KVCache
from simulator.engine.request import Request
from simulator.engine.vllm_v1 import VllmV1

BLOCK_SIZE, BLOCKS, LONGEST = 16, 4096, 1024


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
