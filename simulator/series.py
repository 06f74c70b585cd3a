"""A run over time in few enough points to draw: means over equal bins, however many iterations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    - ``output_tokens_per_s``: every request's first token, and one per useful decode row, an iteration's
      spread evenly over its time
    - ``arrived_per_s``, ``completed_per_s``: requests
    - ``rows``: rows per iteration of a replica, mean by busy time; 0 where idle
    - ``kv_share``: KV blocks in use, of those of all replicas; zero where there are none
    - ``waiting``: requests that wait for their first iteration; ``in_progress``: those after it; means
    - ``padding_share``: positions computed for nobody, of all that were computed
    - ``preempted_per_s``: requests evicted
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
    padding_share: NDArray[float64]
    preempted_per_s: NDArray[float64]


def over_time(tables: RunTables, replicas: int, most_bins: int = MOST_BINS) -> Series:
    """Cut a run into bins of a round width, at most ``most_bins`` and fewer where requests are few."""
    edges = bin_edges_ns(tables, most_bins)
    width_ns = int(edges[1] - edges[0])
    width_s = width_ns / NS_PER_S
    requests, iterations = tables.requests, tables.iterations
    start_ns, end_ns = iterations["start_ns"], iterations["end_ns"]
    busy_ns, work = end_ns - start_ns, _accrual(start_ns, end_ns, edges)
    decodes, repeats = iterations["decodes"], iterations["repeats"]
    padding, prefill = iterations["padding_tokens"], iterations["prefill_tokens"]
    busy = work.per_bin(busy_ns)
    rows = work.per_bin((iterations["prefills"] + decodes) * busy_ns)
    blocks = work.per_bin(iterations["kv_blocks_used"] * busy_ns)
    computed, wasted = work.per_bin(repeats * (prefill + decodes)), work.per_bin(repeats * padding)
    decoded = work.per_bin((decodes - np.maximum(padding - prefill, 0)) * repeats)
    first = requests["first_token_ns"]
    departures = departures_ns(tables)
    scheduled = np.where(requests["scheduled_ns"] >= 0, requests["scheduled_ns"], departures)
    return Series(
        width_s=width_s,
        middle_s=(edges[:-1] - edges[0]) / NS_PER_S + width_s / 2,
        output_tokens_per_s=(decoded + _count(first[first >= 0], edges)) / width_s,
        arrived_per_s=_count(requests["arrival_ns"], edges) / width_s,
        completed_per_s=_count(requests["finished_ns"][requests["status"] == 0], edges) / width_s,
        rows=rows / np.maximum(busy, 1.0),
        kv_share=blocks / max(tables.total_kv_blocks(replicas) * width_ns, 1),
        waiting=_present(requests["arrival_ns"], scheduled, edges) / width_ns,
        in_progress=_present(scheduled, departures, edges) / width_ns,
        padding_share=wasted / np.maximum(computed, 1.0),
        preempted_per_s=work.per_bin(iterations["preempted"]) / width_s,
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


class _Accrual(NamedTuple):
    """How far each row of the iteration table is through at each edge.

    ``complete``: the first edge by which all of a row has accrued. ``row``, ``edge``, ``share``: rows that
    are under way at an edge, and which share of their time has passed.
    """

    edges: int
    complete: NDArray[int64]
    row: NDArray[int64]
    edge: NDArray[int64]
    share: NDArray[float64]

    def per_bin(self, amounts: NDArray[int64]) -> NDArray[float64]:
        """Sum over all replicas of amounts that accrue evenly during each row."""
        whole = np.cumsum(np.bincount(self.complete, amounts, self.edges + 1)[: self.edges])
        parts = np.bincount(self.edge, amounts[self.row] * self.share, self.edges)
        return np.diff(whole + parts)


def _accrual(starts: NDArray[int64], ends: NDArray[int64], edges: NDArray[int64]) -> _Accrual:
    begun = np.searchsorted(edges, starts, side="right")
    complete = np.maximum(np.searchsorted(edges, ends), begun)
    crossed = complete - begun
    row = np.flatnonzero(crossed)
    times = crossed[row]
    edge = np.arange(times.sum()) + np.repeat(begun[row] - (np.cumsum(times) - times), times)
    row = np.repeat(row, times)
    share = (edges[edge] - starts[row]) / (ends[row] - starts[row])
    return _Accrual(len(edges), complete, row, edge, share)


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
