"""A comparison as one HTML file: the table, the distributions one over the other, and the frontier."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from simulator.compare_charts import distribution_charts, frontier_charts
from simulator.compare_words import MARK, Words, failures, headline, notes, speed, table_rows, warnings
from simulator.comparison import Comparison
from simulator.page import card, grid, listing, noted, page_of, section, table_of, write_page


def write_compare_report(path: Path, comparison: Comparison, scenarios: Sequence[tuple[str, str]]) -> None:
    """Write the page. ``scenarios``: name and YAML of each alternative that could be read."""
    write_page(path, compare_page(comparison, scenarios))


def compare_page(comparison: Comparison, scenarios: Sequence[tuple[str, str]]) -> str:
    """The whole page as text."""
    first_run = " of the first seed's runs" if comparison.repeats > 1 else ""
    body = (
        section("Side by side", card(_table(comparison)), *noted([*notes(comparison), speed(comparison)])),
        section("Throughput and latency", grid(frontier_charts(comparison), "grid tall")),
        section(f"Latency distributions{first_run}", grid(distribution_charts(comparison), "grid tall")),
        section("Scenarios", *(_scenario(name, text) for name, text in scenarios)) if scenarios else "",
    )
    alarms = [*failures(comparison), *warnings(comparison)]
    return page_of(comparison.title, headline(comparison), alarms, body)


def _table(comparison: Comparison) -> str:
    rows = [(label, *map(_cell, cells)) for label, cells in table_rows(comparison)]
    caption = f"{MARK} best of its row; differences are to the first column, pt are percentage points."
    return table_of(caption, ("", *(outcome.name for outcome in comparison.ran)), rows)


def _cell(word: Words) -> str:
    figure = f"{word.figure}{MARK}" if word.best else word.figure
    return f"{figure} ({word.difference})" if word.difference else figure


def _scenario(name: str, text: str) -> str:
    return f"<details><summary>{escape(name)}</summary>{listing(name, text)}</details>"
