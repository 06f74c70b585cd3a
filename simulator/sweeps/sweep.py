"""A sweep from its question to its table: which points are known, who computes the others, what is best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import UserError
from simulator.scenario_lines import plain_value
from simulator.sweeps.address import version
from simulator.sweeps.axes import Axis, combinations
from simulator.sweeps.front import (
    Objective,
    Prices,
    check_prices,
    cost_figures,
    first_of_equals,
    objectives_of,
    pareto_front,
    score,
    slo_shortfall,
)
from simulator.sweeps.points import Point, Question, refuse_hopeless
from simulator.sweeps.pools import Pool
from simulator.sweeps.store import FORMAT, Store, open_store
from simulator.sweeps.table import Row, columns_of, flat, write_table
from simulator.sweeps.work import Record

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep as asked for: the scenario, what varies, how many trials of a search (None: all the grid)."""

    question: Question
    axes: tuple[Axis, ...]
    trials: int | None = None
    latency: str = "e2e_ms.p99"
    prices: Prices | None = None

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return objectives_of(self.latency, self.prices)

    def definition(self) -> dict[str, Any]:
        """What ``sweep.json`` says: everything that makes this sweep another one than the next."""
        question = self.question
        return {
            "format": FORMAT,
            "version": version(),
            "name": question.draft.name,
            "scenario": question.values(),
            "overrides": list(question.overrides),
            "seed": question.seed,
            "vary": {axis.key: _span_or_values(axis) for axis in self.axes},
            "search": self.trials is not None and [list(objective) for objective in self.objectives],
            "trials": self.trials,
        }


def _span_or_values(axis: Axis) -> Any:
    return axis.span._asdict() if axis.span else list(axis.values)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep gives: a row for each point in order, and how many had to be computed for it.

    ``reused`` points were known already, or equal another one of this sweep.
    """

    name: str
    keys: tuple[str, ...]
    objectives: tuple[Objective, ...]
    rows: tuple[Row, ...]
    computed: int
    reused: int
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The table as numpy columns: NaN or None where a point has no such figure."""
        return {name: _array(values) for name, values in columns_of(self.rows).items()}

    @property
    def failed(self) -> tuple[Row, ...]:
        """Those that could not run; each says why."""
        return tuple(row for row in self.rows if row.reason)

    @property
    def misses_slo(self) -> tuple[Row, ...]:
        """Those that ran but miss the scenario's SLO, and are kept from the front for it."""
        return tuple(row for row in self.rows if row.meets_slo is False)

    @property
    def front(self) -> tuple[Row, ...]:
        """Those that nobody beats, the cheapest first; of points that score the same, the first."""
        best = [row for row in self.rows if row.front]
        return tuple(sorted(best, key=lambda row: (score(row.figures, self.objectives), row.number)))


def _array(values: Sequence[Any]) -> NDArray[Any]:
    """Numbers as numbers, anything else as objects."""
    kinds = {type(value) for value in values}
    if kinds <= {int, float, type(None)} and kinds & {int, float}:
        return np.array([np.nan if value is None else value for value in values])
    return np.array(values, dtype=None if kinds == {bool} else object)


class Run:
    """The points of a sweep as they are found: from the store, or computed by a pool and put there."""

    def __init__(self, question: Question, store: Store, pool: Pool, *, check_files: bool) -> None:
        self.question, self.store, self.pool = question, store, pool
        self.check_files = check_files
        self.points: list[Point] = []
        self.records: dict[str, Record] = {}
        self.computed = 0

    def add(self, points: Sequence[Point], progress: Callable[[int, int], None] | None = None) -> None:
        """Points with their records; progress is told of those that had to be computed."""
        self.points.extend(points)
        tasks = self.question.tasks(points, check_files=self.check_files)
        for address in tasks:
            known = self.records.get(address) or self.store.get(address)
            if known is not None:
                self.records[address] = known
        missing = {address: task for address, task in tasks.items() if address not in self.records}
        for done, (address, record) in enumerate(self.pool(missing), start=1):
            self.records[address] = record
            self.computed += 1
            if record.lasting:
                self.store.put(address, record)
            if progress is not None:
                progress(done, len(missing))

    @property
    def reused(self) -> int:
        """How many points needed no computing, though they could run."""
        return sum(bool(point.address) for point in self.points) - self.computed

    def figures(self, point: Point, prices: Prices | None) -> Mapping[str, Any]:
        """Costs and the summary of a point by dotted keys; empty where it could not run."""
        record = self.records.get(point.address)
        if record is None or record.summary is None:
            return {}
        return {**dict(flat(record.summary)), **cost_figures(record.summary, prices)}


def run_sweep(
    plan: Plan,
    directory: Path | None,
    pool: Pool,
    *,
    resume: bool = False,
    check_files: bool = False,
    progress: Progress | None = None,
    told: Callable[[str], None] | None = None,
) -> Sweep:
    """Every point of the grid, or the trials of a search, and the table of them in ``directory``.

    ``told``: is given what one should know before the work begins. ``check_files``: workers may see other
    files than this machine. Raises `UserError` where no point can run or the directory is another's.
    """
    points = [] if plan.trials is not None else plan.question.points(combinations(plan.axes))
    refuse_hopeless(points)
    check_prices(plan.prices, [point.scenario for point in points if point.scenario])
    addresses = {point.address: None for point in points if point.address}
    with open_store(directory, plan.definition(), addresses, resume=resume) as (store, notes):
        run = Run(plan.question, store, pool, check_files=check_files)
        for line in (*notes, *_early_failures(points)):
            if told is not None:
                told(line)
        if plan.trials is None:
            run.add(points, progress)
        else:
            from simulator.sweeps.search import search

            search(plan, run, progress)
        sweep = _sweep(plan, run, notes)
        if directory is not None:
            write_table(directory, sweep.rows)
    return sweep


def _early_failures(points: Sequence[Point]) -> Iterable[str]:
    """What is known to fail before anything runs: a mistake in a value shows at once."""
    reasons: dict[str, int] = {}
    for point in points:
        for line in point.reason.splitlines():
            reasons[line] = reasons.get(line, 0) + 1
    return (f"{count} of {len(points)} points cannot run: {reason}" for reason, count in reasons.items())


def _sweep(plan: Plan, run: Run, notes: tuple[str, ...]) -> Sweep:
    figures = [run.figures(point, plan.prices) for point in run.points]
    met = [_meets_slo(point, found) for point, found in zip(run.points, figures, strict=True)]
    scores = [
        None if kept is False else score(found, plan.objectives)
        for found, kept in zip(figures, met, strict=True)
    ]
    front = first_of_equals(scores, pareto_front(scores))
    told = zip(run.points, figures, front, met, strict=True)
    rows = tuple(
        _row(number, point, run.records.get(point.address), found, best, kept)
        for number, (point, found, best, kept) in enumerate(told, start=1)
    )
    if not any(row.figures for row in rows):
        lines = dict.fromkeys(line for row in rows for line in row.reason.splitlines())
        raise UserError("\n".join(f"no point of the sweep can run: {line}" for line in lines))
    keys = tuple(axis.key for axis in plan.axes)
    name = next(point.scenario.name for point in run.points if point.scenario)
    return Sweep(name, keys, plan.objectives, rows, run.computed, run.reused, notes)


def _meets_slo(point: Point, figures: Mapping[str, Any]) -> bool | None:
    shortfall = slo_shortfall(figures, point.scenario.slo if point.scenario else None)
    return None if shortfall is None else shortfall <= 0


def _row(
    number: int,
    point: Point,
    record: Record | None,
    figures: Mapping[str, Any],
    front: bool,
    meets_slo: bool | None,
) -> Row:
    values = {key: _value(text) for key, text in point.values.items()}
    reason = record.reason if record else point.reason
    notes = (*point.notes, *(record.notes if record else ()))
    return Row(number, values, front, figures, notes, reason, point.address, meets_slo)


def _value(text: str) -> Any:
    """A varied value as a table holds it: plain, or as written where it is a list, a mapping or null."""
    value = plain_value(text)
    return text if value is None else value
