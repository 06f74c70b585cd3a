"""A run over time in few enough points to draw: means over equal bins, however many iterations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import float64, int64
from numpy.typing import NDArray

from simulator.metrics import NS_PER_S, departures_ns, first_arrival_ns, run_end_ns
from simulator.run_tables import RunTables

MOST_BINS = 400


@dataclass(frozen=True, slots=True)
class Series:
    """A run in bins of ``width_s``; every array holds one value per bin, counted from the first arrival.

    - ``middle_s``: middle of the bin
    - ``output_tokens_per_s``: tokens generated, an iteration's spread evenly over its time
    - ``arrived_per_s``, ``completed_per_s``: requests
    - ``rows``: rows per iteration of a replica, mean by busy time; 0 where idle
    - ``kv_share``: KV blocks in use, of those of all replicas; zero where there are none
    - ``waiting``: requests that wait for their first iteration; ``in_progress``: those after it; means
    """

    width_s: float
    middle_s: NDArray[float64]
    output_tokens_per_s: NDArray[float64]
    arrived_per_s: NDArray[float64]
    completed_per_s: NDArray[float64]
    rows: NDArray[float64]
    kv_share: NDArray[float64]
    waiting: NDArray[float64]
    in_progress: NDArray[float64]


def over_time(tables: RunTables, replicas: int, most_bins: int = MOST_BINS) -> Series:
    """Cut a run into bins of a round width, at most ``most_bins`` and fewer where requests are few."""
    edges = bin_edges_ns(tables, most_bins)
    width_ns = int(edges[1] - edges[0])
    width_s = width_ns / NS_PER_S
    requests, iterations = tables.requests, tables.iterations
    busy_ns = iterations["end_ns"] - iterations["start_ns"]
    busy = _per_bin(tables, busy_ns, edges)
    rows = _per_bin(tables, (iterations["prefills"] + iterations["decodes"]) * busy_ns, edges)
    blocks = _per_bin(tables, iterations["kv_blocks_used"] * busy_ns, edges)
    departures = departures_ns(tables)
    scheduled = np.where(requests["scheduled_ns"] >= 0, requests["scheduled_ns"], departures)
    return Series(
        width_s=width_s,
        middle_s=(edges[:-1] - edges[0]) / NS_PER_S + width_s / 2,
        output_tokens_per_s=_tokens(tables, edges) / width_s,
        arrived_per_s=_count(requests["arrival_ns"], edges) / width_s,
        completed_per_s=_count(requests["finished_ns"][requests["status"] == 0], edges) / width_s,
        rows=rows / np.maximum(busy, 1.0),
        kv_share=blocks / max(tables.kv_blocks * replicas * width_ns, 1),
        waiting=_present(requests["arrival_ns"], scheduled, edges) / width_ns,
        in_progress=_present(scheduled, departures, edges) / width_ns,
    )


def bin_edges_ns(tables: RunTables, most_bins: int) -> NDArray[int64]:
    """From the first arrival to the end of the run or just after, in steps of 1, 2 or 5 x 10^n ns."""
    start, end = first_arrival_ns(tables), run_end_ns(tables)
    wanted = min(max(20, len(tables.requests["id"]) // 20), most_bins)
    width = _round_up(max(end - start, 1) / wanted)
    return start + width * np.arange((end - start) // width + 2, dtype=int64)


def _round_up(value: float) -> int:
    power = 1
    while value > 10 * power:
        power *= 10
    return next(power * step for step in (1, 2, 5, 10) if power * step >= value)


def _tokens(tables: RunTables, edges: NDArray[int64]) -> NDArray[float64]:
    """Tokens generated in each bin: one per useful decode row, and every request's first."""
    iterations = tables.iterations
    decode_padding = np.maximum(iterations["padding_tokens"] - iterations["prefill_tokens"], 0)
    decoded = (iterations["decodes"] - decode_padding) * iterations["repeats"]
    first = tables.requests["first_token_ns"]
    return _per_bin(tables, decoded, edges) + _count(first[first >= 0], edges)


def _per_bin(tables: RunTables, amounts: NDArray[int64], edges: NDArray[int64]) -> NDArray[float64]:
    """Sum over replicas of amounts that accrue evenly during each row of the iteration table."""
    iterations = tables.iterations
    bounds = np.flatnonzero(np.diff(iterations["replica"], prepend=-1, append=-1))
    total = np.zeros(len(edges))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = slice(first, last)
        total += _accrued(edges, iterations["start_ns"][rows], iterations["end_ns"][rows], amounts[rows])
    return np.diff(total)


def _accrued(
    times: NDArray[int64], starts: NDArray[int64], ends: NDArray[int64], amounts: NDArray[int64]
) -> NDArray[float64]:
    """What has accrued by each time, of amounts that accrue evenly over disjoint intervals in order."""
    before = np.concatenate(([0.0], np.cumsum(amounts, dtype=float64)))
    row = np.maximum(np.searchsorted(starts, times, side="right") - 1, 0)
    share = (times - starts[row]) / np.maximum(ends[row] - starts[row], 1)
    accrued: NDArray[float64] = before[row] + amounts[row] * np.clip(share, 0, 1)
    return accrued


def _present(entered: NDArray[int64], left: NDArray[int64], edges: NDArray[int64]) -> NDArray[float64]:
    """Time in each bin, in ns, summed over everything present between entering and leaving."""
    return np.diff(_elapsed(entered, edges) - _elapsed(left, edges))


def _elapsed(since: NDArray[int64], times: NDArray[int64]) -> NDArray[float64]:
    """At each time, the sum of the time since each earlier event."""
    relative = np.sort(since - times[0]).astype(float64)
    now = (times - times[0]).astype(float64)
    passed = np.searchsorted(relative, now, side="right")
    elapsed: NDArray[float64] = passed * now - np.concatenate(([0.0], np.cumsum(relative)))[passed]
    return elapsed


def _count(times: NDArray[int64], edges: NDArray[int64]) -> NDArray[float64]:
    return np.histogram(times, edges)[0].astype(float64)
