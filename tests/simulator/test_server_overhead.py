"""Time in the server outside the engine: part of TTFT and E2E, never of the engine's clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.errors import ScenarioError
from simulator.profile import ProfileInfo
from simulator.scenario import Scenario
from simulator.simulation import Simulation, server_overhead_ms, simulate

OPEN: dict[str, Any] = {"process": "poisson", "rate_per_s": 8}
CLOSED: dict[str, Any] = {"process": "closed", "concurrency": 4}


def scenario(arrivals: dict[str, Any], **keys: object) -> Scenario:
    lengths = {"fixed": {"prompt": 200, "output": 50}}
    workload = {"arrivals": arrivals, "lengths": lengths, "requests": 60}
    fields = {"model": "meta-llama/Llama-3.1-8B", "hardware": "h100-sxm", "workload": workload}
    return Scenario.model_validate(fields | keys)


def run(arrivals: dict[str, Any], **keys: object) -> Simulation:
    return simulate(scenario(arrivals, **keys))


def test_ttft_and_e2e_hold_it_and_the_engine_does_not_see_it() -> None:
    without, with_it = run(OPEN), run(OPEN, server_overhead_ms=12.5)
    before, after = without.tables.requests, with_it.tables.requests
    assert np.array_equal(after["arrival_ns"], before["arrival_ns"])
    for name in ("scheduled_ns", "first_token_ns", "finished_ns"):
        assert np.array_equal(after[name], before[name] + 12_500_000)
    for name, column in without.tables.iterations.items():
        shift = 12_500_000 if name in ("start_ns", "end_ns") else 0
        assert np.array_equal(with_it.tables.iterations[name], column + shift)
    for figure in ("ttft_ms", "e2e_ms"):
        assert with_it.summary[figure]["mean"] - without.summary[figure]["mean"] == pytest.approx(12.5)
    assert with_it.summary["tpot_ms"]["mean"] == pytest.approx(without.summary["tpot_ms"]["mean"])


def test_clients_of_a_closed_loop_send_that_much_less_often() -> None:
    without, with_it = run(CLOSED), run(CLOSED, server_overhead_ms=100)
    cycles = 60 / 4
    longer_s = with_it.summary["duration_s"] - without.summary["duration_s"]
    assert longer_s == pytest.approx(cycles * 0.1, rel=0.05)
    assert with_it.tables.requests["arrival_ns"].min() == 0


def test_a_note_says_so_only_where_it_is_applied() -> None:
    assert any("12.5 ms of server overhead" in note for note in run(OPEN, server_overhead_ms=12.5).notes)
    assert not any("server overhead" in note for note in run(OPEN).notes)


def test_the_scenario_overrules_the_profile() -> None:
    info = ProfileInfo("p", "measured", server_overhead_ns=7_000_000)
    assert server_overhead_ms(scenario(OPEN), info) == 7
    assert server_overhead_ms(scenario(OPEN, server_overhead_ms=0), info) == 0
    assert server_overhead_ms(scenario(OPEN), replace(info, server_overhead_ns=0)) == 0


@pytest.mark.parametrize("value", [-1, "much", True, float("nan"), 1e9])
def test_anything_but_auto_or_milliseconds_is_refused(value: object) -> None:
    with pytest.raises(
        (ScenarioError, ValueError), match="auto or a number of milliseconds from 0 to 60000"
    ):
        scenario(OPEN, server_overhead_ms=value)
