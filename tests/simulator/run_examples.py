"""Small runs written by hand, and one of any size at random, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulator.metrics import Summary, summarise
from simulator.results import ITERATION_COLUMNS
from simulator.run_tables import RunTables

MS = 1_000_000
SECOND = 1_000_000_000

REQUEST = {
    "id": 0,
    "arrival_ns": 0,
    "prompt_tokens": 100,
    "output_tokens": 1,
    "output_limit": 1,
    "replica": 0,
    "status": 0,
    "scheduled_ns": 0,
    "first_token_ns": 1,
    "finished_ns": 1,
    "preemptions": 0,
    "cached_tokens": 0,
}
ITERATION = dict.fromkeys((name.replace("_s", "_ns") for name in ITERATION_COLUMNS[:3]), 0) | dict.fromkeys(
    ITERATION_COLUMNS[3:], 0
)
NEVER = {"scheduled_ns": -1, "first_token_ns": -1, "finished_ns": -1, "output_tokens": 0}


class Slo(NamedTuple):
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


class Profile(NamedTuple):
    name: str = "h100-sxm/llama"
    kind: str = "imported"


def run_of(
    requests: Sequence[dict[str, int]] = (),
    iterations: Sequence[dict[str, int]] = (),
    *,
    gaps: dict[int, int] | None = None,
    reasons: dict[int, str] | None = None,
    kv_blocks: int = 100,
) -> RunTables:
    """A run from what differs from ``REQUEST`` and ``ITERATION``; ids count up; ``gaps``: ns -> tokens."""
    gaps = gaps or {}
    rows = [REQUEST | {"id": number} | given for number, given in enumerate(requests)]
    steps = [ITERATION | {"repeats": 1} | given for given in iterations]
    return RunTables(
        requests={name: np.array([row[name] for row in rows], np.int64) for name in REQUEST},
        reasons=reasons or {},
        iterations={name: np.array([step[name] for step in steps], np.int64) for name in ITERATION},
        gap_ns=np.array(list(gaps), np.int64),
        gap_rows=np.array(list(gaps.values()), np.int64),
        kv_blocks=kv_blocks,
    )


def random_run(requests: int, seed: int = 1, replicas: int = 2) -> RunTables:
    """A plausible run: some rejected, failed or unfinished, on replicas that work most of the time."""
    rng = np.random.default_rng(seed)
    status = rng.choice(4, requests, p=(0.94, 0.02, 0.02, 0.02))
    arrival = np.sort(rng.integers(0, requests * SECOND // 20 + 1, requests))
    scheduled = arrival + rng.integers(0, 50 * MS, requests)
    first = scheduled + rng.integers(1, 200 * MS, requests)
    tokens = rng.integers(1, 300, requests)
    finished = first + (tokens - 1) * rng.integers(5 * MS, 30 * MS, requests)
    ended, started = status == 0, status != 1
    columns = {name: np.zeros(requests, np.int64) for name in REQUEST} | {
        "id": np.arange(requests),
        "arrival_ns": arrival,
        "prompt_tokens": rng.integers(1, 4000, requests),
        "output_tokens": np.where(started, tokens, 0),
        "output_limit": tokens,
        "replica": rng.integers(0, replicas, requests),
        "status": status,
        "scheduled_ns": np.where(started, scheduled, -1),
        "first_token_ns": np.where(started, first, -1),
        "finished_ns": np.where(ended, finished, -1),
    }
    span = (int(arrival[0]), int(finished.max()))
    reasons = {int(i): f"needs {i} 'blocks' <b>" for i in np.flatnonzero(~ended)}
    steps = [_random_steps(rng, replica, 3 * requests, *span) for replica in range(replicas)]
    iterations = {name: np.concatenate([step[name] for step in steps]) for name in ITERATION}
    gap_ns, gap_rows = rng.integers(1, 60 * MS, 500), rng.integers(0, 40, 500)
    return RunTables(columns, reasons, iterations, gap_ns, gap_rows, kv_blocks=1000)


def _random_steps(
    rng: np.random.Generator, replica: int, count: int, start_ns: int, end_ns: int
) -> dict[str, np.ndarray]:
    bounds = np.sort(rng.integers(start_ns, end_ns, 2 * count))
    prompts = rng.integers(0, 2, count)
    return {name: np.zeros(count, np.int64) for name in ITERATION} | {
        "replica": np.full(count, replica),
        "start_ns": bounds[::2],
        "end_ns": bounds[1::2] + 1,
        "prefills": prompts,
        "prefill_tokens": 512 * prompts,
        "decodes": rng.integers(1, 64, count),
        "kv_blocks_used": rng.integers(0, 1000, count),
        "repeats": np.where(prompts, 1, rng.integers(1, 9, count)),
    }


def summary_of(tables: RunTables, **facts: object) -> Summary:
    """``summarise`` with facts that a test need not name."""
    given: dict[str, object] = {
        "scenario_name": "chat",
        "seed": 7,
        "policy": "vllm-v1",
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": "h100-sxm",
        "profile": Profile(),
        "extrapolated": 0.0,
        "slo": Slo(),
        "wall_s": 0.5,
    }
    return summarise(tables, **(given | facts))  # type: ignore[arg-type]
