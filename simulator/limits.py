"""What held a run back, phase by phase: demand, queueing for a resource, memory bandwidth or arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from simulator.metrics import NS_PER_S, first_arrival_ns, run_end_ns
from simulator.models import Model
from simulator.run_tables import RunTables
from simulator.scenario import Scenario
from simulator.summary_words import milliseconds, percent, three_digits
from simulator.usage import Usage, usage_of

QUARTERS = 4  # of the time in which requests arrived; what comes after is a phase of its own
QUEUED = 1.0  # requests waiting on average from which a queue is what holds a replica back
CAUSE = 0.2  # of the waiting that one resource must account for
IDLE = 0.3  # of the time without work from which there was simply not more to do
WAITS = (
    ("waited_for_blocks", "KV memory"),
    ("waited_for_seats", "seats (max_num_seqs)"),
    ("waited_for_tokens", "token budget"),
    ("waited_for_batch", "the batch under way"),
)
COLUMNS = ("phase", "limited by", "busy", "rows", "step", "KV used", "waiting", "reading", "beside prompts")


class Phase(NamedTuple):
    """A stretch of the run. ``waiting``: requests in the queue of a replica, on average."""

    start_s: float
    end_s: float
    usage: Usage
    waiting: float

    @property
    def limit(self) -> str:
        """The one thing of which more would have helped most."""
        usage = self.usage
        if not usage.busy:
            return "nothing to do"
        share, name = max((getattr(usage, key), name) for key, name in WAITS)
        if self.waiting >= QUEUED and share >= CAUSE:
            return f"queueing for {name}"
        if usage.busy < 1 - IDLE:
            return "demand"
        return "memory bandwidth" if usage.memory_bound >= 0.5 else "compute"

    @property
    def row(self) -> tuple[str, ...]:
        """What a table says about it, one cell per `COLUMNS`."""
        usage = self.usage
        return (
            f"{three_digits(self.start_s)} to {three_digits(self.end_s)} s",
            self.limit,
            percent(usage.busy),
            three_digits(usage.rows),
            milliseconds(usage.step_ms),
            percent(usage.kv_mean),
            three_digits(self.waiting),
            percent(usage.memory_bound),
            percent(usage.beside_prompts),
        )


def phases(tables: RunTables, scenario: Scenario, model: Model) -> Sequence[Phase]:
    """The quarters of the time in which requests arrived, and the rest; none without any iteration."""
    if not len(tables.iterations["replica"]):
        return ()
    start = first_arrival_ns(tables)
    return tuple(
        Phase(
            (first - start) / NS_PER_S,
            (last - start) / NS_PER_S,
            usage_of(tables, scenario, model, (first, last)),
            _waiting(tables, scenario.engines, (first, last)),
        )
        for first, last in _windows(tables, start)
    )


def _windows(tables: RunTables, start: int) -> Iterator[tuple[int, int]]:
    arrived, end = int(tables.requests["arrival_ns"].max()), run_end_ns(tables)
    if arrived > start:
        yield from pairwise(start + (arrived - start) * i // QUARTERS for i in range(QUARTERS + 1))
    if end > arrived:
        yield arrived, end


def _waiting(tables: RunTables, replicas: int, window_ns: tuple[int, int]) -> float:
    """Little's law over one window: time spent waiting in it, over its length, per replica."""
    requests, (first, last) = tables.requests, window_ns
    left = requests["scheduled_ns"].copy()
    left[left < 0] = requests["arrival_ns"][left < 0]  # turned away at once
    inside = left.clip(first, last) - requests["arrival_ns"].clip(first, last)
    return float(inside.sum()) / max(1, last - first) / replicas
