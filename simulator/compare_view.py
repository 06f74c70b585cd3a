"""A comparison on the terminal: as many alternatives side by side as the width holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.compare_words import MARK, Words, failures, headline, notes, speed, table_rows, warnings
from simulator.comparison import Comparison

GAP = 2
WIDEST_NAME = 24
Row = tuple[str, Sequence[Words]]


def comparison_view(comparison: Comparison) -> RenderableType:
    """Title, what was done, the table, what could not run, and what one should know."""
    return Group(
        Text(comparison.title, style="bold"),
        Text(headline(comparison)),
        *_side_by_side(comparison),
        *(Text(line, style="red") for line in failures(comparison)),
        *(Text(f"warning: {line}", style="bold yellow") for line in warnings(comparison)),
        *(Text(f"note: {line}", style="yellow") for line in notes(comparison)),
        Text(speed(comparison)),
    )


def _side_by_side(comparison: Comparison) -> Iterator[RenderableType]:
    """The table, if any alternative answered anything at all."""
    rows = table_rows(comparison)
    if rows:
        yield _SideBySide([outcome.name for outcome in comparison.ran], rows)


@dataclass(frozen=True, slots=True)
class _SideBySide:
    names: Sequence[str]
    rows: Sequence[Row]

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        columns = [self._column(place) for place in range(len(self.names))]
        room = options.max_width - max(len(label) for label, _ in self.rows)
        for block in _blocks([_width(column) for column in columns], room):
            yield self._table(columns[block])

    def _column(self, place: int) -> list[Text]:
        """A name and its cells, figures and differences each aligned to the right."""
        words = [cells[place] for _, cells in self.rows]
        figures = max(len(word.figure) for word in words)
        differences = max(len(word.difference) for word in words)
        return [_name(self.names[place]), *(_cell(word, figures, differences) for word in words)]

    def _table(self, columns: Sequence[Sequence[Text]]) -> Table:
        table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, GAP, 0, 0))
        table.add_column("", no_wrap=True)
        for column in columns:
            table.add_column(column[0], justify="right", width=_width(column), overflow="fold")
        for number, (label, _) in enumerate(self.rows, start=1):
            table.add_row(Text(label), *(column[number] for column in columns))
        return table


def _name(name: str) -> Text:
    """A name over a column, too long for it: its values on lines of their own, rather than words in two."""
    return Text(name if len(name) <= WIDEST_NAME else name.replace("=", "=\n"))


def _cell(word: Words, figures: int, differences: int) -> Text:
    mark = MARK if word.best else " "
    cell = Text(f"{word.figure:>{figures}}{mark}", style="bold green" if word.best else "")
    if differences:
        cell.append(f" {word.difference:>{differences}}", style="not bold dim")
    return cell


def _width(column: Sequence[Text]) -> int:
    name, *cells = column
    longest = max(map(len, name.plain.splitlines()), default=0)
    return max(min(longest, WIDEST_NAME), *(len(cell) for cell in cells))


def _blocks(widths: Sequence[int], room: int) -> Iterator[slice]:
    """Runs of neighbouring columns that fit into the room, at least one each."""
    start, used = 0, 0
    for place, width in enumerate(widths):
        used += width + GAP + 1
        if used > room and place > start:
            yield slice(start, place)
            start, used = place, width + GAP + 1
    yield slice(start, len(widths))
