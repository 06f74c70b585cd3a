"""What a comparison with Vidur needs: its step-time formula over its own tables, a replay of its inputs.

Source: microsoft/vidur at commit 7d47513 (MIT), run for Llama-2-7B on one A100 80 GB; the README beside the
reference data gives the formula and the semantics.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import NamedTuple

from backend.driver import Driver
from simulator.engine.buddy import BuddyAllocator
from simulator.engine.kv_cache import KVCache
from simulator.engine.orca import Orca
from simulator.engine.plan import Plan
from simulator.engine.request import Request
from simulator.engine.sarathi import Sarathi
from simulator.engine.scheduler import Scheduler
from simulator.engine.vllm_v0 import VllmV0
from simulator.recorder import IterationLog, RequestLog, tables
from simulator.run_tables import RunTables
from simulator.workloads.arrival import Arrival
from tests.laws.test_live_equals_simulated import FakeClock
from tests.laws.worlds import CountingModel

NS_PER_S = 1e9
LAYERS = 32
BATCH_CAP = 128
LONGEST_TOKENS = {"fixed32_t0": 4096, "poisson1000_q8": 1024}  # Vidur's max_tokens, see `kv_blocks`
KV_BYTES_PER_TOKEN = 2 * 2 * LAYERS * 4096
WEIGHT_BYTES = 2 * LAYERS * (4 * 4096**2 + 3 * 4096 * 11008)  # without embeddings and head, as Vidur counts


def kv_blocks(workload: str) -> int:
    """Vidur's cache: as many whole requests of the longest length as fit 0.9 x 80 GiB less the weights.

    7,424 blocks at 4,096 tokens. The longest request of the Poisson workload has 1,023 tokens and its Orca
    run decodes 30 requests at once, which 29 reservations of 4,096 tokens would not allow: there the
    longest length was 1,024, hence 119 requests.
    """
    longest = LONGEST_TOKENS[workload]
    requests = int((0.9 * 80 * 2**30 - WEIGHT_BYTES) // (longest * KV_BYTES_PER_TOKEN))
    return longest // 16 * requests


def scheduler(workload: str, policy: str) -> Scheduler:
    """Our policy with the settings of a Vidur run.

    Vidur's ``vllm`` counts a batch of prompts as rows times longest row, as vLLM did up to 0.2.
    """
    blocks, longest = kv_blocks(workload), LONGEST_TOKENS[workload]
    if policy == "orca":
        slots = BuddyAllocator(blocks, 16)
        return Orca(slots, max_num_seqs=BATCH_CAP, max_model_len=longest, reservation="max")
    kv = KVCache(blocks, 16)
    if policy == "sarathi":
        return Sarathi(kv, max_num_seqs=BATCH_CAP, token_budget=512, max_model_len=longest)
    return VllmV0(
        kv,
        max_num_seqs=BATCH_CAP,
        max_num_batched_tokens=4096,
        max_model_len=longest,
        padded_budget=True,
    )


@dataclass(frozen=True)
class StepTimes:
    """Vidur's time of an iteration: the sum of its operators, each looked up in a table (ms per layer)."""

    token_ops: dict[int, float]  # tokens -> all operators whose time depends on the token count alone
    kv_save: dict[int, float]
    decode: dict[tuple[int, int], float]  # (rows, keys per row)
    prefill: dict[tuple[int, int], float]  # (keys stored before, tokens)

    @classmethod
    def read(cls, folder: Path) -> StepTimes:
        ops = read_rows(folder / "token_ops_a100_llama2-7b_tp1.csv.gz")
        decode = read_rows(folder / "attn_decode_a100_llama2-7b_tp1.csv.gz")
        prefill = read_rows(folder / "attn_prefill_a100_llama2-7b_tp1.csv.gz")
        per_tokens = {
            int(row.pop("num_tokens")): {name: float(ms) for name, ms in row.items()} for row in ops
        }
        return cls(
            {n: sum(row.values()) - row["attn_kv_cache_save_ms"] for n, row in per_tokens.items()},
            {n: row["attn_kv_cache_save_ms"] for n, row in per_tokens.items()},
            {(int(r["batch_size"]), int(r["kv_cache_size"])): float(r["attn_decode_ms"]) for r in decode},
            {
                (int(r["kv_cache_size"]), int(r["prefill_chunk_size"])): float(r["attn_prefill_ms"])
                for r in prefill
            },
        )

    def iteration_s(self, plan: Plan) -> float:
        """Token counts are rounded up to 8 (except for storing KV), keys to 64; several chunks count as one
        whose square is the sum of their squares."""
        shape = plan.shape()
        tokens = shape.prefill_tokens + shape.decodes
        per_layer_ms = self.token_ops[round_up(tokens, 8)] + self.kv_save[tokens]
        if shape.decodes:
            mean = shape.context_tokens // shape.decodes
            per_layer_ms += self.decode[shape.decodes, round_up(mean, 64)]
        if shape.prefills:
            keys = sum(round_up(chunk.start, 64) for chunk in plan.prefills)
            squares = sum(chunk.tokens**2 for chunk in plan.prefills)
            per_layer_ms += self.prefill[keys, round(sqrt(squares))]
        return LAYERS * per_layer_ms / 1e3


class Step(NamedTuple):
    """One iteration in the columns of Vidur's step files."""

    batch_size: int
    num_tokens: int
    num_prefill_tokens: int
    num_prefill_seqs: int
    duration_ns: int

    @classmethod
    def of(cls, plan: Plan, duration_ns: int) -> Step:
        """A last chunk of a single token counts as a decode in Vidur's columns."""
        shape = plan.shape()
        prompts = [chunk.tokens for chunk in plan.prefills if chunk.tokens > 1 or not chunk.start]
        rows, tokens = shape.prefills + shape.decodes, shape.prefill_tokens + shape.decodes
        return cls(rows, tokens, sum(prompts), len(prompts), duration_ns)


class TimedModel(CountingModel):
    """Counts tokens to find the stops, lets the clock pass by each iteration's time, and keeps the steps.

    ``duration_ns`` may raise `EndOfRecord` before an iteration to end the run there.
    """

    def __init__(self, clock: FakeClock, duration_ns: Callable[[Plan], int]) -> None:
        super().__init__()
        self.clock = clock
        self.duration_ns = duration_ns
        self.steps: list[Step] = []

    def finish(self, plan: Plan) -> Sequence[Request]:
        step = Step.of(plan, self.duration_ns(plan))
        self.steps.append(step)
        self.clock.time_ns += step.duration_ns
        return super().finish(plan)


class EndOfRecord(Exception):
    """The recorded beginning of a longer run is over."""


def replay(
    name: str, arrivals: Sequence[Arrival], duration_ns: Callable[[Plan], int]
) -> tuple[list[Step], RunTables]:
    """Serve the arrivals of a run named ``workload__policy`` until all is answered or the record ends."""
    workload, policy = name.split("__")
    clock = FakeClock()
    model = TimedModel(clock, duration_ns)
    requests, iterations = RequestLog(), IterationLog(0, streams=True)
    with suppress(EndOfRecord):
        driver = Driver(scheduler(workload, policy), model, clock, requests, iterations)
        driver.run(iter(arrivals))
    return model.steps, tables(requests, [iterations], kv_blocks(workload))


def read_rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        return list(csv.DictReader(lines))


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
