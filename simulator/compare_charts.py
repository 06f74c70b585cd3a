"""The charts of a comparison: latency distributions one over the other, and latency against throughput."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simulator.charts import COLOURS, Chart, log_axis
from simulator.comparison import Comparison, Curve, Outcome, figures
from simulator.summary_words import LATENCIES, MEANINGS, milliseconds, three_digits

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px,1px")
TABLE_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
THROUGHPUT = "throughput.output_tokens_per_s"
LOADS = ("workload.arrivals.rate_per_s", "workload.arrivals.rate_scale", "workload.arrivals.concurrency")


class Point(NamedTuple):
    """An alternative as the frontier sees it: tokens/s, and a latency in ms."""

    name: str
    group: str
    tokens_per_s: float
    latency_ms: float


def distribution_charts(comparison: Comparison) -> list[Chart]:
    """One chart for each latency that somebody has: the share that saw at most so much, per alternative."""
    charts = []
    for latency in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        styled = [
            (outcome.name, outcome.curves[latency], style)
            for outcome, style in zip(comparison.ran, _styles(), strict=False)
            if latency in outcome.curves
        ]
        if styled:
            charts.append(_distribution(latency, styled))
    return charts


def _styles() -> Iterator[dict[str, str]]:
    """A look for every line: colours first, then dashes."""
    return ({"color": colour, "dash": dash} for dash in DASHES for colour in COLOURS)


def _distribution(latency: str, lines: Sequence[tuple[str, Curve, Mapping[str, str]]]) -> Chart:
    word, whose = LATENCIES[latency], "tokens" if latency == "itl_ms" else "requests"
    lowest = min(curve.values_ms[0] for _, curve, _ in lines)
    highest = max(curve.values_ms[-1] for _, curve, _ in lines)
    unit, divisor = ("s", 1e3) if highest > 10_000 else ("ms", 1.0)
    figure = _figure(f"{word} in {unit}", f"share of {whose} in %")
    for name, curve, style in lines:
        figure.add_scatter(
            x=np.asarray(curve.values_ms, "f4") / divisor,
            y=100 * np.asarray(curve.shares, "f4"),
            name=escape(name),
            mode="lines" if len(curve.shares) > 10 else "lines+markers",
            line={**style, "width": 2},
            hovertemplate=f"{escape(name)}: %{{y:.1f}} % within %{{x:.4g}} {unit}<extra></extra>",
        )
    if highest > 20 * max(lowest, highest / 1e6):
        figure.update_xaxes(log_axis(lowest, highest))
    return Chart(
        name=latency.removesuffix("_ms"),
        title=word,
        told=f"{MEANINGS[latency]}; share of {whose} that saw at most this",
        figure_json=figure.to_json(),
        columns=("at most", *(f"{100 * share:g} %" for share in TABLE_SHARES)),
        rows=[(name, *_quantiles(curve)) for name, curve, _ in lines],
    )


def _quantiles(curve: Curve) -> list[str]:
    """The latency at each share of the table; a dash below the lowest share that is known."""
    found = np.interp(TABLE_SHARES, curve.shares, curve.values_ms).tolist()
    return [
        milliseconds(value if share >= curve.shares[0] else None)
        for share, value in zip(TABLE_SHARES, found, strict=True)
    ]


def frontier_charts(comparison: Comparison) -> list[Chart]:
    """Latency against throughput: what each alternative gives and what it costs."""
    charts = (
        _frontier(comparison, "frontier", "Throughput and E2E", {"p50": "e2e_ms.p50", "p99": "e2e_ms.p99"}),
        _frontier(
            comparison,
            "frontier-per-token",
            "Throughput and E2E per token",
            {"mean": "normalized_ms_per_token.mean"},
        ),
    )
    return [chart for chart in charts if chart is not None]


def _frontier(comparison: Comparison, name: str, title: str, keys: Mapping[str, str]) -> Chart | None:
    points = {statistic: _points(comparison, key) for statistic, key in keys.items()}
    *_, last = points.values()
    if not last:
        return None
    seen = [point.latency_ms for found in points.values() for point in found]
    longest = max(seen)
    unit, divisor = ("s", 1e3) if longest > 10_000 else ("ms", 1.0)
    per_token = " per output token" if len(keys) == 1 else ""
    figure = _figure("output tokens per second", f"E2E{per_token} in {unit}")
    for statistic, symbol in zip(points, ("circle-open", "circle"), strict=False):
        _add_points(figure, points[statistic], divisor, statistic, symbol if len(keys) > 1 else "circle")
    best = frontier(last)
    figure.add_scatter(
        x=[point.tokens_per_s for point in best],
        y=[point.latency_ms / divisor for point in best],
        name=f"frontier ({list(keys)[-1]})",
        mode="lines",
        line={"color": "#7f8a99", "dash": "dot", "width": 1.5, "shape": "vh"},
        hoverinfo="skip",
    )
    figure.update_yaxes(log_axis(min(seen), longest))
    return Chart(
        name=name,
        title=title,
        told=f"{' and '.join(keys)}; right and down is better, and nobody beats those on the dotted line",
        figure_json=figure.to_json(),
        columns=("", "output tokens/s", *keys, "on the frontier"),
        rows=_frontier_rows(points, {point.name for point in best}),
    )


def _frontier_rows(points: Mapping[str, Sequence[Point]], best: Container[str]) -> list[tuple[str, ...]]:
    rows = []
    for row in zip(*points.values(), strict=True):
        name, rate = row[0].name, three_digits(row[0].tokens_per_s)
        latencies = (milliseconds(point.latency_ms) for point in row)
        rows.append((name, rate, *latencies, "yes" if name in best else "no"))
    return rows


def _points(comparison: Comparison, key: str) -> list[Point]:
    """Every alternative whose runs all have the figure, at its means over them."""
    found = []
    for outcome in comparison.ran:
        rates, latencies = figures(outcome, THROUGHPUT), figures(outcome, key)
        if rates and latencies:
            found.append(Point(outcome.name, _group(outcome), fmean(rates), fmean(latencies)))
    return found


def _group(outcome: Outcome) -> str:
    """What an alternative has in common with those that differ from it only in the load."""
    if not any(key in outcome.values for key in LOADS):
        return outcome.name
    return " ".join(value for key, value in outcome.values.items() if key not in LOADS) or "all loads"


def _add_points(
    figure: Figure, points: Sequence[Point], divisor: float, statistic: str, symbol: str
) -> None:
    """Points, joined where they are the same alternative under several loads."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.group, []).append(point)
    for (group, members), style in zip(groups.items(), _styles(), strict=False):
        names = [escape(point.name) for point in members]
        figure.add_scatter(
            x=[point.tokens_per_s for point in members],
            y=[point.latency_ms / divisor for point in members],
            name=escape(group),
            legendgroup=escape(group),
            showlegend=symbol == "circle",
            mode="lines+markers",
            text=names,
            line={**style, "width": 1},
            marker={"symbol": symbol, "size": 9},
            hovertemplate=f"%{{text}}: %{{x:.4g}} tokens/s, {statistic} %{{y:.4g}}<extra></extra>",
        )


def frontier(points: Sequence[Point]) -> list[Point]:
    """Those that no other one beats in throughput without losing in latency, by rising throughput."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (-point.tokens_per_s, point.latency_ms)):
        if not best or point.latency_ms < best[-1].latency_ms:
            best.append(point)
    return best[::-1]


def _figure(across: str, up: str) -> Figure:
    from plotly.graph_objects import Figure

    figure = Figure()
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 56, "r": 12, "t": 12, "b": 44},
        xaxis={"title": {"text": across}},
        yaxis={"title": {"text": up}},
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        font={"size": 12},
    )
    return figure
