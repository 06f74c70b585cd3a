"""The scenarios of the twin's benchmark are read, and are what their names say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.twin import POLICIES, WORKLOADS, scenario
from simulator.scenario_file import load_scenario


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_scenario_is_what_it_is_named_after(policy: str, workload: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(scenario(policy, workload), encoding="utf-8")
    found = load_scenario(file)
    assert found.engine.policy == policy
    assert (found.workload.arrivals.process == "burst") == (workload == "burst")
    assert found.workload.requests == WORKLOADS[workload][1]
