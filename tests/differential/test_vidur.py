"""Our policies against Vidur's schedulers, driven by the same lookup tables: same steps, same durations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulator.engine.plan import Plan
from simulator.workloads.arrival import Arrival
from tests.differential.vidur import NS_PER_S, EndOfRecord, Step, StepTimes, kv_blocks, read_rows, replay

GOLDEN = Path(__file__).parents[1] / "golden" / "vidur" / "steps.json"
RUNS = (
    "fixed32_t0__vllm",
    "fixed32_t0__sarathi",
    "poisson1000_q8__vllm",
    "poisson1000_q8__sarathi",
    "poisson1000_q8__orca",
)


def test_the_cache_is_as_large_as_vidurs() -> None:
    assert kv_blocks("fixed32_t0") == 7424


@pytest.mark.parametrize("name", RUNS)
def test_every_step_and_every_request_of_vidur_is_ours(name: str, shared: Callable[..., Path]) -> None:
    folder = shared("data", "simulators", "vidur")
    workload, _ = name.split("__")
    times = StepTimes.read(folder / "predictor_tables")
    arrivals = [
        Arrival(
            round(float(row["arrived_at"]) * NS_PER_S),
            int(row["num_prefill_tokens"]),
            int(row["num_decode_tokens"]),
            int(row["num_decode_tokens"]),
        )
        for row in read_rows(folder / f"workload_{workload}.csv")
    ]
    steps, run = replay(name, arrivals, lambda plan: round(times.iteration_s(plan) * NS_PER_S))
    theirs = read_rows(folder / f"steps_{name}.csv.gz")
    columns = Step._fields[:-1]
    assert [step[:-1] for step in steps] == [tuple(int(row[name]) for name in columns) for row in theirs]
    durations_s = np.array([step.duration_ns for step in steps]) / NS_PER_S
    np.testing.assert_allclose(durations_s, [float(row["duration_s"]) for row in theirs], rtol=1e-6)
    requests, answers = run.requests, read_rows(folder / f"requests_{name}.csv")
    for ours, column in (("first_token_ns", "ttft_s"), ("finished_ns", "e2e_s")):
        latency_s = (requests[ours] - requests["arrival_ns"]) / NS_PER_S
        np.testing.assert_allclose(latency_s, [float(row[column]) for row in answers], atol=1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_the_recorded_beginning_of_each_run_is_ours(name: str) -> None:
    """The record carries the durations, so this holds without the tables."""
    record = json.loads(GOLDEN.read_text())["runs"][name]
    arrivals = [Arrival(arrival, prompt, output, output) for arrival, prompt, output in record["requests"]]
    expected = [Step(*row) for row in record["steps"]]
    durations_ns = iter([step.duration_ns for step in expected])

    def recorded_ns(_: Plan) -> int:
        duration_ns = next(durations_ns, None)
        if duration_ns is None:
            raise EndOfRecord
        return duration_ns

    steps, run = replay(name, arrivals, recorded_ns)
    assert steps == expected
    if record["complete"]:
        assert run.requests["output_tokens"].tolist() == [arrival.output_tokens for arrival in arrivals]
