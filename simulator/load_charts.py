"""Charts of who carried the load and what was lost: replicas, padding, preemptions, latency over time."""

from __future__ import annotations

import numpy as np
from numpy import float64, int64
from numpy.typing import NDArray

from simulator.charts import BLUE, Chart, line_figure, time_chart
from simulator.metrics import NS_PER_MS, first_arrival_ns, run_end_ns
from simulator.run_tables import RunTables
from simulator.series import bin_edges_ns, over_time
from simulator.summary_words import milliseconds, three_digits

NAMED_REPLICAS = 40  # more of them are drawn by rank, and tabled as a few of the ranks
FEWEST = 20  # requests in a bin before its percentiles mean anything
LATENCY_BINS = 60


def load_charts(tables: RunTables, replicas: int) -> list[Chart]:
    """What is worth drawing of the following; nothing about one replica, or about waste that was none."""
    run = over_time(tables, replicas)
    charts = [ttft_over_time(tables)]
    if replicas > 1:
        charts.append(replica_chart(tables, replicas))
    if run.padding_share.any():
        told = "share of the computed positions that nobody asked for"
        charts.append(
            time_chart(run, "padding", "Padding", told, {"% of positions": 100 * run.padding_share})
        )
    if run.preempted_per_s.any():
        told = "requests evicted from the KV cache per second"
        charts.append(
            time_chart(run, "preemptions", "Preemptions", told, {"per second": run.preempted_per_s})
        )
    return [chart for chart in charts if chart is not None]


def ttft_over_time(tables: RunTables) -> Chart | None:
    """Median and p99 of TTFT by the time of arrival: rising for as long as a queue grows."""
    requests = tables.requests
    seen = requests["first_token_ns"] >= 0
    arrival = requests["arrival_ns"][seen]
    ttft_ms = (requests["first_token_ns"][seen] - arrival) / NS_PER_MS
    edges = bin_edges_ns(tables, min(LATENCY_BINS, max(1, len(arrival) // FEWEST)))
    bins, median, tail = _percentiles(arrival, ttft_ms, edges)
    if not bins.size:
        return None
    middle_s = (edges[bins] + edges[bins + 1] - 2 * edges[0]) / 2e9
    figure = line_figure("arrival in s", "TTFT in ms", {"p50": (middle_s, median), "p99": (middle_s, tail)})
    figure.update_yaxes(rangemode="tozero")
    rows = [
        (three_digits(at), milliseconds(half), milliseconds(most))
        for at, half, most in zip(middle_s.tolist(), median.tolist(), tail.tolist(), strict=True)
    ]
    told = "by arrival; level in a steady state, rising where the queue grows"
    return Chart(
        "ttft-over-time", "TTFT over time", told, figure.to_json(), ("arrival in s", "p50", "p99"), rows
    )


def _percentiles(
    times: NDArray[int64], values: NDArray[float64], edges: NDArray[int64]
) -> tuple[NDArray[int64], NDArray[float64], NDArray[float64]]:
    """The bins that hold enough values, and the median and p99 of each."""
    order = np.argsort(times, kind="stable")
    cuts = np.searchsorted(times[order], edges)
    ordered = values[order]
    full = np.flatnonzero(np.diff(cuts) >= FEWEST)
    found = [np.quantile(ordered[cuts[i] : cuts[i + 1]], (0.5, 0.99)) for i in full.tolist()]
    columns = np.array(found).reshape(-1, 2).T
    return full, columns[0], columns[1]


def replica_chart(tables: RunTables, replicas: int) -> Chart:
    """The busy share of each replica, by number, or by rank where there are many."""
    iterations = tables.iterations
    span = max(run_end_ns(tables) - first_arrival_ns(tables), 1)
    busy_ns = np.bincount(
        iterations["replica"], iterations["end_ns"] - iterations["start_ns"], minlength=replicas
    )
    served = np.bincount(tables.requests["replica"], minlength=replicas)
    share = 100 * busy_ns / span
    across = "replica"
    names = np.arange(replicas)
    if replicas > NAMED_REPLICAS:
        across, order = "rank by load", np.argsort(-share, kind="stable")
        share, served = share[order], served[order]
    figure = line_figure(across, "busy in %", {})
    figure.add_bar(x=names, y=share.astype("f4"), marker={"color": BLUE}, hovertemplate="%{x}: %{y:.1f} %")
    figure.update_yaxes(rangemode="tozero")
    shown = np.unique(np.linspace(0, replicas - 1, min(replicas, NAMED_REPLICAS)).astype(int)).tolist()
    rows = [(str(i), f"{share[i]:.1f} %", f"{int(served[i]):,}") for i in shown]
    told = "share of the run in which it computed something"
    return Chart(
        "replicas", "Load of the replicas", told, figure.to_json(), (across, "busy", "requests sent"), rows
    )
