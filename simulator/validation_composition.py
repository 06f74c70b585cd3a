"""What each iteration computed, live and simulated, one beside the other; and where they first part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy import int64
from numpy.typing import NDArray

from simulator.metrics import NS_PER_S
from simulator.run_tables import RunTables

COMPARED = (
    "prefills",
    "prefill_tokens",
    "prefill_pairs",
    "decodes",
    "context_tokens",
    "padding_tokens",
    "preempted",
)


class Sides(NamedTuple):
    """One figure of both sides."""

    live: float
    twin: float


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where the compositions part. ``iteration`` counts from 1.

    ``start_s``: when it began on either side; ``arrived``: how many requests had arrived by then, which
    differs where timing alone has let one side see a request that the other had not. ``fields``: what
    differs, by name; empty where one side has no such iteration, whose times are then its end.
    """

    iteration: int
    start_s: Sides
    arrived: Sides
    fields: dict[str, Sides]

    @property
    def by_timing(self) -> bool:
        """Whether the two had seen different requests by then."""
        return self.arrived.live != self.arrived.twin


@dataclass(frozen=True, slots=True)
class Composition:
    """How far a live run and its twin did the same; ``first_difference``: None where throughout."""

    live_iterations: int
    twin_iterations: int
    identical_iterations: int
    first_difference: FirstDifference | None


def compare_composition(live: RunTables, twin: RunTables) -> Composition:
    """Both sides iteration by iteration."""
    steps = unrolled(live), unrolled(twin)
    counts = [len(side["decodes"]) for side in steps]
    both = min(counts)
    differs = np.zeros(both, dtype=bool)
    for name in COMPARED:
        differs |= steps[0][name][:both] != steps[1][name][:both]
    identical = int(np.argmax(differs)) if differs.any() else both
    parted = identical < max(counts)
    first = _first_difference((live, twin), steps, identical) if parted else None
    return Composition(counts[0], counts[1], identical, first)


def unrolled(tables: RunTables) -> dict[str, NDArray[int64]]:
    """The iteration table with a row for every iteration, ``start_ns`` interpolated within repeats."""
    table, repeats = tables.iterations, tables.iterations["repeats"]
    run = np.arange(int(repeats.sum())) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    steps = {name: np.repeat(table[name], repeats) for name in COMPARED}
    steps["context_tokens"] = steps["context_tokens"] + run * steps["decodes"]
    each_ns = (table["end_ns"] - table["start_ns"]) / np.maximum(repeats, 1)
    within_ns = np.rint(run * np.repeat(each_ns, repeats)).astype(int64)
    steps["start_ns"] = np.repeat(table["start_ns"], repeats) + within_ns
    return steps


def _first_difference(
    tables: tuple[RunTables, RunTables], steps: tuple[dict[str, NDArray[int64]], ...], index: int
) -> FirstDifference:
    starts = Sides(*(_start_ns(*side, index) for side in zip(tables, steps, strict=True)))
    arrived = Sides(
        *(
            int((side.requests["arrival_ns"] <= start).sum())
            for side, start in zip(tables, starts, strict=True)
        )
    )
    fields = {}
    if all(index < len(side["decodes"]) for side in steps):
        values = {name: Sides(*(int(side[name][index]) for side in steps)) for name in COMPARED}
        fields = {name: sides for name, sides in values.items() if sides.live != sides.twin}
    return FirstDifference(index + 1, Sides(*(start / NS_PER_S for start in starts)), arrived, fields)


def _start_ns(tables: RunTables, steps: dict[str, NDArray[int64]], index: int) -> int:
    if index < len(steps["start_ns"]):
        return int(steps["start_ns"][index])
    ends = tables.iterations["end_ns"]
    return int(ends[-1]) if ends.size else 0
