"""The charts of a report as plotly figures in JSON, each with the same figures as a short table.

Colours and fonts are left to the page, which knows whether it is shown dark or light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from simulator.metrics import NS_PER_MS, Summary, replicas_seen, request_metrics, weighted_quantiles
from simulator.run_tables import RunTables
from simulator.series import Series, over_time
from simulator.summary_words import LATENCIES, MEANINGS, milliseconds, three_digits

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BLUE, ORANGE, RED = "#3b82d6", "#d97f1e", "#d64550"
COLOURS = (BLUE, ORANGE, "#2f9e6e", RED, "#9467bd", "#8c6d4f", "#d665b4", "#7f8a99", "#a3a124", "#1fa3b8")
TABLE_BINS = 20
TABLE_SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
SHARES = np.concatenate((np.linspace(0, 0.99, 298), np.linspace(0.99, 1.0, 102)[1:]))  # finer in the tail


Line = tuple[NDArray[float64], NDArray[float64]]  # across, up


class Chart(NamedTuple):
    """A drawing and the table that stands in for it. ``name`` is its anchor on the page."""

    name: str
    title: str
    told: str
    figure_json: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def latency_charts(tables: RunTables, summary: Summary) -> list[Chart]:
    """How many of the requests, or tokens, saw at most each latency; those that nobody had are left out."""
    found = {
        name: latency_quantiles_ms(tables, name, SHARES)
        for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
    }
    targets = summary["slo"]["targets"]
    return [
        _latency_chart(tables, name, values, targets.get(name))
        for name, values in found.items()
        if values.size and values[-1] > 0
    ]


def latency_quantiles_ms(tables: RunTables, name: str, shares: NDArray[float64]) -> NDArray[float64]:
    """Quantiles of a latency; empty when it is undefined throughout."""
    if name == "itl_ms":
        seen = bool(tables.gap_rows.any())
        return (
            weighted_quantiles(tables.gap_ns, tables.gap_rows, shares.tolist()) / NS_PER_MS
            if seen
            else np.empty(0)
        )
    metrics = request_metrics(tables.requests)
    values = {"ttft_ms": metrics.ttft_ns, "tpot_ms": metrics.tpot_ns, "e2e_ms": metrics.e2e_ns}[name]
    defined = values[~np.isnan(values)]
    return np.quantile(defined, shares) / NS_PER_MS if defined.size else np.empty(0)


def _latency_chart(
    tables: RunTables, name: str, values: NDArray[float64], target_ms: float | None
) -> Chart:
    word, whose = LATENCIES[name], "tokens" if name == "itl_ms" else "requests"
    unit, divisor = ("s", 1e3) if values[-1] > 10_000 else ("ms", 1.0)
    figure = line_figure(
        f"{word} in {unit}", f"share of {whose} in %", {"": (values / divisor, 100 * SHARES)}
    )
    figure.update_traces(hovertemplate=f"%{{y:.1f}} % within %{{x:.4g}} {unit}<extra></extra>")
    if target_ms is not None:
        side = "left" if target_ms > values[len(values) // 2] else "right"
        _mark(figure, target_ms / divisor, f" SLO {target_ms:,g} ms ", side)
    if values[0] > 0 and values[-1] > 20 * values[0]:
        figure.update_xaxes(log_axis(float(values[0]), float(values[-1])))
    table = latency_quantiles_ms(tables, name, np.array(TABLE_SHARES)).tolist()
    shares = [f"{100 * share:g} %" for share in TABLE_SHARES]
    return Chart(
        name=name.removesuffix("_ms"),
        title=word,
        told=f"{MEANINGS[name]}; share of {whose} that saw at most this",
        figure_json=figure.to_json(),
        columns=(f"share of {whose}", "at most"),
        rows=list(zip(shares, map(milliseconds, table), strict=True)),
    )


def time_charts(tables: RunTables, replicas: int | None) -> list[Chart]:
    """Throughput, batch, KV cache and queue over the run, as means over bins of time."""
    run = over_time(tables, replicas or replicas_seen(tables))
    rates = {"arrived": run.arrived_per_s, "completed": run.completed_per_s}
    queue = {"waiting": run.waiting, "in progress": run.in_progress}
    tokens, rows, kv = run.output_tokens_per_s, run.rows, 100 * run.kv_share
    charts = [
        time_chart(
            run, "tokens", "Output tokens per second", "all replicas together", {"tokens/s": tokens}
        ),
        time_chart(run, "rates", "Requests per second", "arrivals and completions", rates),
        time_chart(run, "batch", "Batch size", "rows per iteration of a working replica", {"rows": rows}),
        time_chart(
            run, "kv", "KV cache in use", "share of the blocks of all replicas", {"% of blocks": kv}
        ),
        time_chart(run, "queue", "Requests in the system", "before and after their first iteration", queue),
    ]
    return [chart for chart in charts if chart.name != "kv" or tables.kv_blocks]


def time_chart(
    run: Series, name: str, title: str, told: str, lines: Mapping[str, NDArray[float64]]
) -> Chart:
    unit, divisor = _clock(run.middle_s[-1])
    times, up = run.middle_s / divisor, next(iter(lines)) if len(lines) == 1 else ""
    figure = line_figure(f"time in {unit}", up, {line: (times, values) for line, values in lines.items()})
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(rangemode="tozero")
    figure.update_layout(hovermode="x unified")
    columns = (f"time in {unit}", *lines)
    rows = list(zip(*(_coarse(values) for values in (times, *lines.values())), strict=True))
    return Chart(name, title, f"{told}; means over {_width(run.width_s)}", figure.to_json(), columns, rows)


def _coarse(values: NDArray[float64]) -> list[str]:
    """Means of a few neighbouring bins each, for a table that can be read."""
    return [
        three_digits(float(part.mean())) for part in np.array_split(values, min(TABLE_BINS, len(values)))
    ]


def _width(width_s: float) -> str:
    return f"{width_s:g} s" if width_s >= 1 else f"{1e3 * width_s:g} ms"


def _clock(longest_s: float) -> tuple[str, float]:
    return next(
        ((unit, size) for unit, size in (("h", 3600.0), ("min", 60.0)) if longest_s > 5 * size), ("s", 1.0)
    )


def line_figure(
    across: str, up: str, lines: Mapping[str, tuple[NDArray[float64], NDArray[float64]]]
) -> Figure:
    """Lines with their names above them where there is more than one."""
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    for (name, (x, y)), colour in zip(lines.items(), (BLUE, ORANGE), strict=False):
        figure.add_trace(
            Scatter(
                x=x.astype("f4"),
                y=y.astype("f4"),
                name=name,
                mode="lines",
                line={"color": colour, "width": 2},
            )
        )
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 56, "r": 12, "t": 28 if len(lines) > 1 else 12, "b": 44},
        xaxis={"title": {"text": across}},
        yaxis={"title": {"text": up}},
        showlegend=len(lines) > 1,
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        font={"size": 12},
    )
    return figure


def log_axis(lowest: float, highest: float) -> dict[str, object]:
    """A logarithmic axis with as many numbers as can be read: all, those of 1, 2 and 5, or the decades.

    A plain one where the values are so near each other that hardly any number would stand between them.
    """
    ratio = highest / lowest if lowest > 0 else np.inf
    if ratio < 3:
        return {"type": "linear"}
    return {"type": "log", "dtick": "D1" if ratio < 10 else "D2" if ratio < 2000 else 1}


def _mark(figure: Figure, at: float, words: str, side: str) -> None:
    """A promise as a dashed upright line with its name on that side of it."""
    figure.add_scatter(
        x=[at, at, at],
        y=[0, 12, 100],
        mode="lines+text",
        text=["", words, ""],
        textposition=f"middle {side}",
        hoverinfo="skip",
        line={"color": RED, "dash": "dash", "width": 1.5},
    )
