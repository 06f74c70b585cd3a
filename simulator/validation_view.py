"""A validation on the terminal: complete at 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.validation import Validation
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


def validation_view(
    validation: Validation,
    found: Sequence[FigureError],
    max_error: float | None,
    notes: Sequence[str] = (),
) -> RenderableType:
    """What was compared, the errors, what they are made of, and whether they are small enough."""
    failed = list(failures(found))
    return Group(
        Text(validation.scenario.name, style="bold"),
        Text(headline(validation)),
        _errors(found),
        Text(LEGEND, style="dim"),
        _parts(validation),
        *(Text(f"warning: {line}", style="bold yellow") for line in warnings(validation)),
        *(Text(f"note: {line}", style="yellow") for line in notes),
        Text(verdict(found, max_error), style="bold red" if failed else ""),
        *(Text(f"  {line}", style="red") for line in failed),
    )


def _errors(found: Sequence[FigureError]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for line in table_lines(found):
        table.add_row(line.label, *line.cells, style="red" if line.failed else "")
    return table


def _parts(validation: Validation) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, told in _lines(validation):
        table.add_row(Text(label, style="bold"), Text(told))
    return table


def _lines(validation: Validation) -> Iterator[tuple[str, str]]:
    yield "Machine", drift_words(validation)
    for number, told in enumerate(cost_words(validation)):
        yield "" if number else "Cost", told
    for number, told in enumerate(composition_words(validation)):
        yield "" if number else "Composition", told
