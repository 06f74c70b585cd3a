"""What limits a run is told from simulations built so that the answer is known."""

from __future__ import annotations

from typing import Any

import pytest

import simulator
from simulator.limits import phases
from simulator.models import load_model

BASE: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": "h100-sxm",
    "workload": {"arrivals": {"process": "burst"}, "requests": 64},
}


def limits_of(engine: dict[str, Any], arrivals: dict[str, Any], prompt: int, output: int) -> list[str]:
    lengths = {"fixed": {"prompt": prompt, "output": output}}
    workload = {"arrivals": arrivals, "lengths": lengths, "requests": 64}
    scenario = simulator.load_scenario(BASE | {"engine": engine, "workload": workload})
    run = simulator.simulate(scenario)
    return [phase.limit for phase in phases(run.tables, scenario, load_model(scenario.model))]


@pytest.mark.parametrize(
    ("engine", "prompt", "output", "limit"),
    [
        ({"max_num_seqs": 4}, 100, 200, "queueing for seats (max_num_seqs)"),
        ({"kv_blocks": 64, "max_model_len": 512}, 200, 200, "queueing for KV memory"),
        ({"max_num_batched_tokens": 512, "max_num_seqs": 512}, 2000, 2, "queueing for token budget"),
        ({"policy": "static", "max_num_seqs": 4}, 100, 200, "queueing for seats (max_num_seqs)"),
        ({}, 16, 500, "memory bandwidth"),
        ({"max_num_batched_tokens": 32768}, 500, 1, "compute"),
    ],
)
def test_a_burst_is_limited_by_what_there_is_least_of(
    engine: dict[str, Any], prompt: int, output: int, limit: str
) -> None:
    assert limits_of(engine, {"process": "burst"}, prompt, output) == [limit]


def test_a_trickle_is_limited_by_demand_in_every_quarter() -> None:
    found = limits_of({}, {"process": "constant", "rate_per_s": 1}, 100, 10)
    assert found[:4] == ["demand"] * 4


def test_quarters_and_the_rest_cover_the_run() -> None:
    workload = BASE["workload"] | {"arrivals": {"process": "poisson", "rate_per_s": 5}}
    workload["lengths"] = {"preset": "sharegpt"}
    scenario = simulator.load_scenario(BASE | {"workload": workload})
    run = simulator.simulate(scenario)
    found = phases(run.tables, scenario, load_model(scenario.model))
    assert [phase.end_s for phase in found[:-1]] == [phase.start_s for phase in found[1:]]
    assert found[0].start_s == 0
    assert found[-1].end_s == pytest.approx(run.summary["duration_s"])
    waited = sum(phase.waiting * (phase.end_s - phase.start_s) for phase in found)
    requests = run.tables.requests
    assert waited == pytest.approx((requests["scheduled_ns"] - requests["arrival_ns"]).sum() / 1e9)
