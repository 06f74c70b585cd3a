"""A validation as one HTML file: the errors, what they are made of, and the distributions overlaid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator.compare import curves_of
from simulator.compare_charts import distribution_charts
from simulator.comparison import Comparison, Outcome
from simulator.page import (
    Row,
    card,
    definitions,
    grid,
    listing,
    noted,
    page_of,
    section,
    table_of,
    write_page,
)
from simulator.scenario_file import to_yaml
from simulator.validation import Run, Validation
from simulator.validation_errors import FigureError
from simulator.validation_words import (
    COLUMNS,
    LEGEND,
    composition_words,
    cost_words,
    drift_words,
    failures,
    headline,
    table_lines,
    verdict,
    warnings,
)


def write_validation_report(
    path: Path,
    validation: Validation,
    found: Sequence[FigureError],
    max_error: float | None,
    notes: Sequence[str] = (),
) -> None:
    """Write the page, aside first and then renamed."""
    write_page(path, validation_page(validation, found, max_error, notes))


def validation_page(
    validation: Validation,
    found: Sequence[FigureError],
    max_error: float | None,
    notes: Sequence[str] = (),
) -> str:
    """The whole page as text."""
    rows = [(line.label, *line.cells) for line in table_lines(found)]
    body = (
        section("Errors", card(table_of(LEGEND, ("", *COLUMNS), rows))),
        section("What they are made of", card(definitions(_parts(validation))), *noted(notes)),
        section("Latency distributions", grid(distribution_charts(_overlaid(validation)), "grid tall")),
        section("Scenario", listing("Scenario", to_yaml(validation.scenario))),
    )
    alarms = [*failures(found), *warnings(validation)]
    told = f"{headline(validation)} {verdict(found, max_error)}"
    return page_of(f"{validation.scenario.name}: live and twin", told, alarms, body)


def _parts(validation: Validation) -> Iterator[Row]:
    yield "Machine", drift_words(validation)
    for told in cost_words(validation):
        yield "Iteration cost", told
    for told in composition_words(validation):
        yield "Composition", told


def _overlaid(validation: Validation) -> Comparison:
    """The live runs and their twins as lines of the same charts."""
    runs: list[tuple[str, Run]] = [("twin", validation.twin)]
    for number, repetition in enumerate(validation.repetitions, start=1):
        runs.append((f"live {number}", repetition.live))
    middle = sorted(validation.repetitions, key=lambda one: one.drift)[len(validation.repetitions) // 2]
    runs.append(("twin at machine speed", middle.at_drift))
    outcomes = tuple(
        Outcome(name, summaries=(run.summary,), curves=curves_of(run.tables)) for name, run in runs
    )
    return Comparison(validation.scenario.name, outcomes, 1, validation.scenario.seed)
