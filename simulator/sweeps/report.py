"""A sweep as one HTML file: what was tried, the Pareto front as a drawing and a table, and every point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from simulator.charts import COLOURS, Chart, log_axis
from simulator.page import card, grid, listing, noted, page_of, section, table_of, write_page
from simulator.sweeps.front import THROUGHPUT
from simulator.sweeps.sweep import Sweep
from simulator.sweeps.table import Row
from simulator.sweeps.words import (
    MARK,
    cell,
    failures,
    headline,
    heads,
    label,
    notes,
    shown_columns,
    shown_rows,
    warnings,
)


class Unit(NamedTuple):
    """What an axis of latencies counts in."""

    name: str
    ms: float


MILLISECONDS, SECONDS = Unit("ms", 1.0), Unit("s", 1000.0)
FRONT = "Points that no other one beats in everything; figures that are the same everywhere are left out."
MOST_ROWS = 2000  # of the page's table; the drawing and the files have every point


def write_sweep_report(path: Path, sweep: Sweep, scenario_yaml: str) -> None:
    """Write the page; ``scenario_yaml``: the scenario before anything was varied."""
    write_page(path, sweep_page(sweep, scenario_yaml))


def sweep_page(sweep: Sweep, scenario_yaml: str) -> str:
    """The whole page as text."""
    ran = [row for row in sweep.rows if row.figures]
    left_out = len(ran) - MOST_ROWS
    kept = f"The first {MOST_ROWS:,} of {len(ran):,} that ran." if left_out > 0 else "All that ran."
    body = (
        section(
            "Pareto front", card(_table(sweep, sweep.front, FRONT)), grid([front_chart(sweep)], "grid tall")
        ),
        section("Every point", card(_table(sweep, ran[:MOST_ROWS], kept)), *noted(notes(sweep))),
        section("Scenario", listing("Scenario", scenario_yaml)),
    )
    alarms = [*(f"cannot run: {line}" for line in failures(sweep)), *warnings(sweep)]
    return page_of(sweep.name, headline(sweep), alarms, body)


def _table(sweep: Sweep, rows: Sequence[Row], caption: str) -> str:
    columns = shown_columns(sweep)
    return table_of(caption, heads(sweep.keys, columns), shown_rows(rows, sweep.keys, columns))


def front_chart(sweep: Sweep) -> Chart:
    """Latency against throughput, a colour for each cost, those that nobody beats filled and joined."""
    from plotly.graph_objects import Figure

    cost, _, latency = (objective.key for objective in sweep.objectives)
    seen = [found for row in sweep.rows if (found := row.figures.get(latency))]
    largest = max(seen, default=0.0)
    unit = SECONDS if largest >= SECONDS.ms else MILLISECONDS
    figure = Figure()
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 56, "r": 12, "t": 12, "b": 44},
        xaxis={"title": {"text": "output tokens per second"}},
        yaxis={
            "title": {"text": f"{label(latency)} in {unit.name}"},
            **log_axis(min(seen, default=0.0), largest),
        },
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        font={"size": 12},
    )
    for number, (level, rows) in enumerate(sorted(_by_cost(sweep, cost, latency).items())):
        name, colour = f"{label(cost)} {cell(cost, level)}", COLOURS[number % len(COLOURS)]
        best = sorted((row for row in rows if row.front), key=lambda row: row.figures[THROUGHPUT])
        others = [row for row in rows if not row.front]
        for kind, points in (("front", best), ("beaten", others)):
            if points:
                figure.add_scatter(**_trace(points, latency, unit, name, colour, kind))
    return Chart(
        name="front",
        title="Throughput and latency",
        told=f"right and down is better; filled: on the front ({MARK}); a colour for each cost",
        figure_json=figure.to_json(),
        columns=("#", label(cost), label(THROUGHPUT), label(latency)),
        rows=[
            (str(row.number), *(cell(key, row.figures[key]) for key in (cost, THROUGHPUT, latency)))
            for row in sweep.front
        ],
    )


def _by_cost(sweep: Sweep, cost: str, latency: str) -> dict[float, list[Row]]:
    levels: dict[float, list[Row]] = {}
    for row in sweep.rows:
        if row.figures.get(latency) is not None and row.figures.get(THROUGHPUT):
            levels.setdefault(row.figures[cost], []).append(row)
    return levels


def _trace(
    rows: Sequence[Row], latency: str, unit: Unit, name: str, colour: str, kind: str
) -> Mapping[str, object]:
    best = kind == "front"
    return {
        "x": [row.figures[THROUGHPUT] for row in rows],
        "y": [row.figures[latency] / unit.ms for row in rows],
        "text": ["<br>".join(_told(row)) for row in rows],
        "name": escape(name if best else f"{name}, {kind}"),
        "mode": "lines+markers" if best else "markers",
        "marker": {"size": 9, "color": colour, "symbol": "circle" if best else "circle-open"},
        "line": {"color": colour, "width": 1, "dash": "dot"},
        "hovertemplate": f"%{{text}}<br>%{{x:.4g}} tokens/s, %{{y:.4g}} {unit.name}<extra></extra>",
    }


def _told(row: Row) -> Iterator[str]:
    yield f"point {row.number}"
    for key, value in row.values.items():
        yield escape(f"{key}={value}")
