"""Charts of load and waste draw what a plain count over the tables gives."""

from __future__ import annotations

import json

import numpy as np
import pytest

from simulator.load_charts import load_charts, replica_chart, ttft_over_time
from tests.simulator.run_examples import MS, SECOND, random_run, run_of


def request(arrival_s: float, ttft_ms: int, replica: int = 0) -> dict[str, int]:
    arrival = round(arrival_s * SECOND)
    first = arrival + ttft_ms * MS
    return {
        "arrival_ns": arrival,
        "scheduled_ns": arrival,
        "first_token_ns": first,
        "finished_ns": first,
        "replica": replica,
    }


def test_ttft_rises_where_the_queue_grows() -> None:
    chart = ttft_over_time(run_of([request(i / 10, i) for i in range(400)]))
    assert chart is not None
    median, tail = json.loads(chart.figure_json)["data"]
    assert median["name"] == "p50"
    seen = [float(value) for value in np.asarray(chart.rows)[:, 0]]
    for at, half in zip(seen, [row[1] for row in chart.rows], strict=True):
        assert float(half.split()[0]) == pytest.approx(10 * at, rel=0.05), (
            "ttft is 10 ms per second of arrival"
        )
    assert tail["name"] == "p99"


def test_too_few_requests_have_no_percentiles() -> None:
    assert ttft_over_time(run_of([request(i, i) for i in range(10)])) is None


@pytest.mark.parametrize(("replicas", "across"), [(3, "replica"), (50, "rank by load")])
def test_the_load_of_replicas_is_their_busy_time(replicas: int, across: str) -> None:
    steps = [{"replica": i, "start_ns": 0, "end_ns": (i + 1) * SECOND} for i in range(replicas)]
    requests = [request(0, 1, i) for i in range(replicas)] + [request(replicas, 0)]
    chart = replica_chart(run_of(requests, steps), replicas)
    assert chart.columns[0] == across
    busy = [float(row[1].split()[0]) for row in chart.rows]
    first, last = (100 / replicas, 100) if replicas == 3 else (100, 100 / replicas)
    assert (busy[0], busy[-1]) == pytest.approx((first, last), abs=0.06)
    assert sum(int(row[2]) for row in chart.rows[:3]) == (4 if replicas == 3 else 3)


def test_waste_is_drawn_only_where_there_is_some() -> None:
    def names(**step: int) -> list[str]:
        steps = [{"end_ns": SECOND, "decodes": 4} | step]
        return [chart.name for chart in load_charts(run_of([request(0, 1000)], steps), 1)]

    assert names() == []
    assert names(padding_tokens=1) == ["padding"]
    assert names(preempted=1) == ["preemptions"]


def test_one_replica_needs_no_chart_of_its_own() -> None:
    assert "replicas" not in [chart.name for chart in load_charts(random_run(100), 1)]
