"""One run of a scenario, boiled down in the process that made it to what capacity is judged by."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from simulator.fleet_summary import extrapolated_share
from simulator.metrics import NS_PER_MS, Columns, departures_ns, request_metrics, weighted_quantiles
from simulator.planning.criteria import Latencies
from simulator.planning.steady_state import warm_up
from simulator.run_tables import RunTables
from simulator.scenario import Scenario
from simulator.simulation import run
from simulator.usage import Usage, usage_of

DRAINED = 0.99  # share of the answers that take no longer than the end of a run that is left out


class Trial(NamedTuple):
    """A scenario to run. ``itl_share``: which quantile of the time between tokens is asked for."""

    scenario: Scenario
    folder: Path
    itl_share: float = 0.99


class Digest(NamedTuple):
    """What is kept of a run. Arrays hold the requests in order of arrival, without those near the end.

    ``population``: how many others each found in the system. ``finished_s``: when the answers were
    complete, sorted; ``queue_empty_s``: when the last waiting request began. ``service_s``: mean time from
    the first iteration to the last token. ``itl_ms``: of the settled part. ``offered``: requests simulated,
    those near the end included.
    """

    arrival_s: NDArray[float64]
    latencies: Latencies
    population: NDArray[float64]
    finished_s: NDArray[float64]
    queue_empty_s: float
    service_s: float
    itl_ms: float
    prompt_tokens: float
    output_tokens: float
    preemptions: float
    offered: int
    extrapolated: float
    usage: Usage


def run_trial(trial: Trial) -> Digest:
    """Simulate; raises `UserError` where the scenario cannot run."""
    ran = run(trial.scenario, folder=trial.folder)
    tables = ran.tables
    requests = tables.requests
    arrival, left = requests["arrival_ns"], departures_ns(tables)
    kept = _undisturbed(arrival, left)
    population = _population(arrival, left)[:kept]
    first = warm_up(population).cut
    since, until = int(arrival[first]), int(arrival[kept - 1])
    if since == until:  # a backlog: everything is there from the start
        since, until = _while_waiting(requests)
    gaps, rows = (
        np.concatenate(part) for part in zip(*(log.gaps(since, until) for log in ran.logs), strict=True)
    )
    done = requests["status"] == 0
    return Digest(
        arrival_s=arrival[:kept] / 1e9,
        latencies=_latencies(tables, kept),
        population=population,
        finished_s=np.sort(requests["finished_ns"][done]) / 1e9,
        queue_empty_s=float(requests["scheduled_ns"].max()) / 1e9,
        service_s=float((requests["finished_ns"] - requests["scheduled_ns"])[done].mean()) / 1e9
        if done.any()
        else 0.0,
        itl_ms=_quantile_ms(gaps, rows, trial.itl_share),
        prompt_tokens=float(requests["prompt_tokens"].mean()),
        output_tokens=float(requests["output_tokens"].mean()),
        preemptions=float(requests["preemptions"].mean()),
        offered=len(arrival),
        extrapolated=extrapolated_share(tables, ran.cost),
        usage=usage_of(tables, trial.scenario, ran.model, (since, until)),
    )


def _undisturbed(arrival: NDArray[np.int64], left: NDArray[np.int64]) -> int:
    """How many requests had others arriving behind them for as long as nearly all answers take."""
    longest = np.quantile(left - arrival, DRAINED)
    return max(1, int(np.searchsorted(arrival, arrival[-1] - longest, side="right")))


def _while_waiting(requests: Columns) -> tuple[int, int]:
    """From a tenth of the admissions on to the last."""
    return int(np.quantile(requests["scheduled_ns"], 0.1)), int(requests["scheduled_ns"].max())


def _population(arrival: NDArray[np.int64], left: NDArray[np.int64]) -> NDArray[float64]:
    gone = np.searchsorted(np.sort(left), arrival, side="right")
    return (np.arange(len(arrival)) - gone).astype(float64)


def _latencies(tables: RunTables, kept: int) -> Latencies:
    metrics = request_metrics(tables.requests)
    one_token = tables.requests["output_tokens"] == 1
    done = tables.requests["status"] == 0
    found = {
        "ttft_ms": metrics.ttft_ns,
        "tpot_ms": np.where(one_token, 0.0, metrics.tpot_ns),
        "e2e_ms": metrics.e2e_ns,
        "queue_ms": metrics.queue_ns,
    }
    return {name: np.where(done, ns, np.inf)[:kept] / NS_PER_MS for name, ns in found.items()}


def _quantile_ms(gaps: NDArray[np.int64], rows: NDArray[np.int64], share: float) -> float:
    if not rows.sum():
        return 0.0
    return float(weighted_quantiles(gaps, rows, [share])[0]) / NS_PER_MS
