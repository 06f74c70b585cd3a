"""The machine's speed right now: a small fixed workload, timed the same way whenever it is asked for.

Machines drift by up to two times within minutes, so a profile keeps what this took when it was measured
(``reference_ns``), and whoever compares times asks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np

from backend.clock import WallClock
from backend.driver import Driver
from backend.executor import TorchExecutor
from backend.paged_kv import PagedKV
from simulator.engine.kv_cache import KVCache
from simulator.engine.vllm_v1 import VllmV1
from simulator.errors import ScenarioError
from simulator.recorder import IterationLog, RequestLog
from simulator.workloads.arrival import Arrival

ROWS, PROMPT_TOKENS, OUTPUT_TOKENS = 8, 64, 17
REQUEST_TOKENS = PROMPT_TOKENS + OUTPUT_TOKENS
PASSES = 5


def time_reference(executor: TorchExecutor, passes: int = PASSES) -> tuple[float, ...]:
    """Times in ns of the iteration with the prompts and of the decode iterations, medians over passes.

    Eight requests of 64 + 17 tokens, all there from the start. A KV cache too small for them runs one, and
    the result is one time, of the whole. The executor must be idle, and is left so.
    """
    rows = _rows(executor.kv)
    times = [_pass(executor, rows) for _ in range(passes)]
    middle = [median(column) for column in zip(*times, strict=True)]
    return tuple(middle) if rows == ROWS else (sum(middle),)


def all_fit(kv: PagedKV) -> bool:
    """Whether a KV cache holds all of the requests at once."""
    return kv.blocks >= ROWS * _blocks(kv)


def _blocks(kv: PagedKV) -> int:
    """Of one request."""
    return -(-REQUEST_TOKENS // kv.block_size)


def _rows(kv: PagedKV) -> int:
    """How many of the requests run at once."""
    blocks = _blocks(kv)
    if kv.blocks < blocks:
        raise ScenarioError(
            f"engine.kv_blocks: the reference iterations need {blocks} blocks of {kv.block_size} tokens, "
            f"there are {kv.blocks}"
        )
    return ROWS if all_fit(kv) else 1


def _pass(executor: TorchExecutor, rows: int) -> tuple[float, float]:
    """Times in ns of all iterations with prompts and of all others."""
    kv = executor.kv
    scheduler = VllmV1(
        KVCache(kv.blocks, kv.block_size),
        max_num_seqs=rows,
        max_num_batched_tokens=rows * PROMPT_TOKENS,
        max_model_len=REQUEST_TOKENS,
    )
    log = IterationLog(0, streams=True)
    Driver(scheduler, executor, WallClock(), RequestLog(), log).run(_requests(rows))
    table = log.columns()
    took_ns, prompts = table["end_ns"] - table["start_ns"], table["prefills"] > 0
    return float(np.sum(took_ns[prompts])), float(np.sum(took_ns[~prompts]))


def _requests(rows: int) -> Iterator[Arrival]:
    return (Arrival(0, PROMPT_TOKENS, OUTPUT_TOKENS, OUTPUT_TOKENS) for _ in range(rows))
