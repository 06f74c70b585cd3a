"""How a run used its engine: which limit kept requests waiting, and what bounded its iterations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from simulator.engine_settings import batched_tokens
from simulator.hardware import load_hardware
from simulator.models import Model
from simulator.roofline import Roofline
from simulator.run_tables import RunTables
from simulator.scenario import Scenario
from simulator.sizing import longest_sequence

FULL = 0.95  # of the KV blocks: from here on the next prompt may not fit
SPENT = 0.98  # of the token budget


@dataclass(frozen=True, slots=True)
class Usage:
    """Shares between 0 and 1 unless said otherwise, of the settled part of a run.

    - ``busy``: of the time, over all replicas
    - ``waited_for_seats``, ``_tokens``, ``_blocks``, ``_batch``: of the time that requests waited, by the
      limit that the iteration under way had reached: max_num_seqs, the token budget, the KV cache, or none
      (the policy lets nobody join yet); the rest waited for an iteration to end
    - ``rows``: requests in an iteration; ``step_ms``: its length; both by busy time
    - ``kv_mean``, ``kv_peak``: of the KV blocks of a busy replica
    - ``budget_spent``: of the busy time, in iterations that used up the token budget
    - ``beside_prompts``: of the busy time, in iterations with prompt chunks
    - ``memory_bound``: of the busy time, in iterations that move bytes for longer than they calculate
    """

    busy: float
    waited_for_seats: float
    waited_for_tokens: float
    waited_for_blocks: float
    waited_for_batch: float
    rows: float
    step_ms: float
    kv_mean: float
    kv_peak: float
    budget_spent: float
    beside_prompts: float
    memory_bound: float


def usage_of(tables: RunTables, scenario: Scenario, model: Model, window_ns: tuple[int, int]) -> Usage:
    """The figures of the iterations that began within ``window_ns``."""
    table = tables.iterations
    inside = (table["start_ns"] >= window_ns[0]) & (table["start_ns"] <= window_ns[1])
    columns = {name: column[inside] for name, column in table.items()}
    busy_ns = (columns["end_ns"] - columns["start_ns"]).astype(float64)
    total_ns = float(busy_ns.sum())
    span_ns = max(1, window_ns[1] - window_ns[0]) * scenario.engines

    def share(chosen: NDArray[np.bool_]) -> float:
        return float(busy_ns[chosen].sum()) / total_ns if total_ns else 0.0

    def mean(values: NDArray[float64]) -> float:
        return float((values * busy_ns).sum()) / total_ns if total_ns else 0.0

    rows = columns["prefills"] + columns["decodes"]
    budget = batched_tokens(scenario.engine, longest_sequence(scenario, model))
    tokens = columns["prefill_tokens"] + columns["decodes"]
    spent = tokens >= SPENT * budget if budget else np.zeros(len(tokens), bool)
    kv = columns["kv_blocks_used"] / max(tables.kv_blocks, 1)
    waits = _waits(columns, busy_ns, rows >= scenario.engine.max_num_seqs, spent, kv >= FULL)
    waited = _waited_ns(tables, window_ns)
    for_seats, for_tokens, for_blocks, for_batch = (wait / waited if waited else 0.0 for wait in waits)
    return Usage(
        busy=min(1.0, total_ns / span_ns),
        waited_for_seats=for_seats,
        waited_for_tokens=for_tokens,
        waited_for_blocks=for_blocks,
        waited_for_batch=for_batch,
        rows=mean(rows.astype(float64)),
        step_ms=mean(busy_ns / np.maximum(columns["repeats"], 1)) / 1e6,
        kv_mean=mean(kv),
        kv_peak=float(kv.max()) if kv.size else 0.0,
        budget_spent=share(spent),
        beside_prompts=share(columns["prefills"] > 0),
        memory_bound=share(_memory_bound(columns, scenario, model)),
    )


def _waits(
    columns: dict[str, NDArray[np.int64]],
    busy_ns: NDArray[float64],
    seated: NDArray[np.bool_],
    spent: NDArray[np.bool_],
    full: NDArray[np.bool_],
) -> list[float]:
    """Time that requests waited for seats, tokens, blocks, and by the policy's choice; each once."""
    waits = columns["waiting"] * busy_ns
    blocked = full | (columns["preempted"] > 0)
    found = []
    for reached in (seated, spent, blocked, np.ones(len(waits), bool)):
        found.append(float(waits[reached].sum()))
        waits = np.where(reached, 0.0, waits)
    return found


def _waited_ns(tables: RunTables, window_ns: tuple[int, int]) -> float:
    requests = tables.requests
    inside = (requests["arrival_ns"] >= window_ns[0]) & (requests["arrival_ns"] <= window_ns[1])
    began = inside & (requests["scheduled_ns"] >= 0)
    return float((requests["scheduled_ns"] - requests["arrival_ns"])[began].sum())


def _memory_bound(
    columns: dict[str, NDArray[np.int64]], scenario: Scenario, model: Model
) -> NDArray[np.bool_]:
    """Iterations in which weights and KV take longer to read than the arithmetic takes, by data sheet."""
    tensor = scenario.parallel.tensor
    bounds = Roofline(model, load_hardware(scenario.hardware), scenario.dtype, tensor)
    tokens = (columns["prefill_tokens"] + columns["decodes"]).astype(float64)
    arithmetic = 2 * model.active_parameters() / tensor * tokens / bounds.flops_per_ns
    arithmetic += columns["prefill_pairs"] * bounds.pair_ns()
    keys = columns["context_tokens"] * model.kv_bytes_per_token(scenario.dtype, tensor)
    traffic = (model.weights_bytes(scenario.dtype, tensor) + keys) / bounds.bytes_per_ns
    bound: NDArray[np.bool_] = traffic > arithmetic
    return bound


def mean_usage(runs: Iterable[Usage]) -> Usage:
    """The mean of each figure over several runs."""
    rows = list(runs)
    return Usage(*(float(np.mean([getattr(one, f.name) for one in rows])) for f in fields(Usage)))
