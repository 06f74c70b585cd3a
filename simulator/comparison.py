"""What stands side by side: the outcome of every alternative, and how far it is from the first one's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from simulator.measures import Measure, measured
from simulator.metrics import Summary
from simulator.paired import CONFIDENCE, Difference, paired_difference


class Curve(NamedTuple):
    """A latency's distribution: ``shares[i]`` of the requests, or tokens, saw at most ``values_ms[i]``."""

    shares: Sequence[float]
    values_ms: Sequence[float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One alternative: a summary for each seed and the curves of the first run, or why it cannot run."""

    name: str
    values: Mapping[str, str] = field(default_factory=dict)
    summaries: tuple[Summary, ...] = ()
    curves: Mapping[str, Curve] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reason: str = ""


class Cell(NamedTuple):
    """A figure of one alternative: mean over its seeds, and how it differs from the first alternative's.

    ``mean`` is None where the figure is undefined in a run; ``best``: none is better and some are worse.
    """

    mean: float | None
    best: bool = False
    difference: Difference | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcomes side by side; differences are to the first of those that ran.

    Each ran with ``repeats`` seeds, counted up from ``seed``; None: whatever the kept results had.
    """

    title: str
    outcomes: tuple[Outcome, ...]
    repeats: int
    seed: int | None
    notes: tuple[str, ...] = ()

    @property
    def ran(self) -> tuple[Outcome, ...]:
        """Those that have figures, the one that others are measured against first."""
        return tuple(outcome for outcome in self.outcomes if outcome.summaries)

    def cells(self, measure: Measure) -> list[Cell]:
        """One figure of every outcome that ran."""
        rows = [figures(outcome, measure.key) for outcome in self.ran]
        means = [fmean(row) if row else None for row in rows]
        best = measure.best(means)
        return [
            Cell(mean, mean is not None and mean == best, _difference(row, rows[0]) if place else None)
            for place, (row, mean) in enumerate(zip(rows, means, strict=True))
        ]


def figures(outcome: Outcome, key: str) -> list[float]:
    """A figure in each of an outcome's runs; empty when one of them lacks it."""
    found = [measured(summary, key) for summary in outcome.summaries]
    values = [value for value in found if value is not None]
    return values if len(values) == len(found) else []


def _difference(values: Sequence[float], first: Sequence[float]) -> Difference | None:
    return paired_difference(values, first) if values and first else None


def as_json(comparison: Comparison, measures: Sequence[Measure]) -> dict[str, Any]:
    """The comparison for programs: every figure with its difference to the first that ran."""
    return {
        "scenario": comparison.title,
        "first": comparison.ran[0].name,
        "seeds": _seeds(comparison),
        "confidence": CONFIDENCE if comparison.repeats > 1 else None,
        "alternatives": _alternatives_json(comparison, measures),
        "notes": list(comparison.notes),
    }


def _alternatives_json(comparison: Comparison, measures: Sequence[Measure]) -> list[dict[str, Any]]:
    rows = {measure.key: comparison.cells(measure) for measure in measures}
    columns = iter(range(len(comparison.ran)))
    told = []
    for outcome in comparison.outcomes:
        place = next(columns) if outcome.summaries else None
        cells = {} if place is None else {key: _cell_json(row[place], row[0]) for key, row in rows.items()}
        told.append(
            {
                "name": outcome.name,
                "values": dict(outcome.values),
                "reason": outcome.reason or None,
                "notes": list(outcome.notes),
                "measures": cells,
                "summaries": list(outcome.summaries),
            }
        )
    return told


def _seeds(comparison: Comparison) -> list[int] | None:
    if comparison.seed is None:
        return None
    return list(range(comparison.seed, comparison.seed + comparison.repeats))


def _cell_json(cell: Cell, first: Cell) -> dict[str, Any]:
    told: dict[str, Any] = {"mean": cell.mean, "best": cell.best, "difference": None}
    if cell.difference is not None:
        mean, half_width = cell.difference
        relative = mean / first.mean if first.mean else None
        interval = None if half_width is None else [mean - half_width, mean + half_width]
        told["difference"] = {"mean": mean, "relative": relative, "interval": interval}
    return told
