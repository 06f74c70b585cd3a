"""A sweep on the terminal: what was done, the table or its best part, and what could not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.sweeps.sweep import Sweep
from simulator.sweeps.table import Row
from simulator.sweeps.words import (
    MARK,
    failures,
    headline,
    heads,
    notes,
    shown_columns,
    shown_rows,
    warnings,
)

MOST_ROWS = 40  # beyond which the terminal shows the front only; the files have every row
WIDEST = 24  # characters of a column, unless a word of its head is longer
GAP = 2
SPARED = ("throughput.requests_per_s", "tpot_ms.p99", "ttft_ms.p99", "cost_per_million_output_tokens")
"""Figures that a narrow terminal goes without, the first of them first."""


def sweep_view(sweep: Sweep) -> RenderableType:
    """Every point, or the front alone where there are too many to read."""
    ran = [row for row in sweep.rows if row.figures]
    chosen: Sequence[Row] = ran if len(ran) <= MOST_ROWS else sweep.front[:MOST_ROWS]
    left_out = len(ran) - len(chosen)
    more = [Text(f"{left_out:,} further points are in the table only")] if left_out else []
    return Group(
        Text(sweep.name, style="bold"),
        Text(headline(sweep)),
        _Rows(sweep, chosen),
        *more,
        *(Text(f"cannot run: {line}", style="red") for line in failures(sweep)),
        *(Text(f"warning: {line}", style="bold yellow") for line in warnings(sweep)),
        *(Text(f"note: {line}", style="yellow") for line in notes(sweep)),
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Points as a table with as many figures as the width holds."""

    sweep: Sweep
    rows: Sequence[Row]

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        columns = shown_columns(self.sweep)
        spared = [key for key in SPARED if key in columns and key != self.sweep.objectives[-1].key]
        while sum(width + GAP for width in self._widths(columns)) > options.max_width and spared:
            columns.remove(spared.pop(0))
        yield self._table(columns)

    def _widths(self, columns: Sequence[str]) -> list[int]:
        lines = shown_rows(self.rows, self.sweep.keys, columns)
        return [
            max(*map(len, name.split()), min(WIDEST, max(map(len, cells))))
            for name, cells in zip(heads(self.sweep.keys, columns), zip(*lines, strict=True), strict=True)
        ]

    def _table(self, columns: Sequence[str]) -> Table:
        table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, GAP - 1, 0, 0))
        for name, width in zip(heads(self.sweep.keys, columns), self._widths(columns), strict=True):
            table.add_column(name, justify="right", width=width, overflow="fold")
        for line in shown_rows(self.rows, self.sweep.keys, columns):
            table.add_row(*line, style="bold green" if line[0].endswith(MARK) else "")
        return table
