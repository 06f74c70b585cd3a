"""A live side made of the live driver, a fake model and a fake clock: its truth is a cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from backend.driver import Driver
from simulator.cost_model import CostModel, load_cost_model
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.policies import make_scheduler
from simulator.recorder import IterationLog, RequestLog, tables
from simulator.run_tables import RunTables
from simulator.scenario import Scenario
from simulator.scenario_file import load_scenario
from simulator.validation import Progress, Simulator, Validation, validate
from simulator.validation_cost import ScaledCost
from simulator.workloads.workload import build_workload
from tests.laws.test_live_equals_simulated import FakeClock, FakeModel

REFERENCE_NS = (4e6, 9e6)
SCENARIO = """\
name: fake
model: servetwin/llama-tiny
hardware: cpu
profile: roofline
dtype: float32
engine: {policy: vllm-v1, max_num_seqs: 4, max_num_batched_tokens: 64, kv_blocks: 20, max_model_len: 128}
workload:
  arrivals: {process: burst}
  lengths: {uniform: {prompt: [2, 90], output: [1, 30]}}
  requests: 40
"""
POISSON = "workload.arrivals={process: poisson, rate_per_s: 1500}"


class Fake(NamedTuple):
    name: str = "a fake model"
    kind: str = "live"


@dataclass
class FakeLive:
    """``cost``: what iterations take. ``drifts``: how slow the machine is in each of the runs."""

    scenario: Scenario
    cost: CostModel
    drifts: Sequence[float] = (1.0, 1.0, 1.0)
    reference_ns: tuple[float, ...] = REFERENCE_NS
    runs: int = 0
    profile: Fake = field(default_factory=Fake)

    def _drift(self) -> float:
        return self.drifts[min(self.runs, len(self.drifts) - 1)]

    def time_reference(self) -> tuple[float, ...]:
        return tuple(self._drift() * time_ns for time_ns in self.reference_ns)

    def run(self, progress: Progress | None = None) -> RunTables:
        clock, settings = FakeClock(), self.scenario.engine
        workload = build_workload(self.scenario.workload, self.scenario.seed, Path())
        scheduler = make_scheduler(settings, settings.kv_blocks, settings.max_model_len, lambda: 128, 1)
        model = FakeModel(clock, ScaledCost(self.cost, self._drift()))
        requests, iterations = RequestLog(), IterationLog(0, streams=scheduler.streams)
        Driver(scheduler, model, clock, requests, iterations).run(workload.arrivals())
        self.runs += 1
        return tables(requests, [iterations], settings.kv_blocks)


def simulator_of(
    folder: Path, overrides: Sequence[str] = (), recorded: tuple[float, ...] = ()
) -> tuple[Simulator, CostModel]:
    """A scenario ready to be simulated, and what its profile says that iterations cost."""
    path = folder / "fake.yaml"
    path.write_text(SCENARIO)
    scenario = load_scenario(path, overrides)
    model = load_model(scenario.model)
    cost, profile = load_cost_model(
        "roofline", model, load_hardware(scenario.hardware), scenario.dtype, 1, Path()
    )
    known = type(profile)(profile.name, profile.kind, profile.notes, recorded)
    return Simulator(scenario, model, known), cost


def validated(
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    predicted: float = 1.0,
    drifts: Sequence[float] = (1.0, 1.0, 1.0),
    recorded: tuple[float, ...] = REFERENCE_NS,
) -> Validation:
    """A validation whose profile is ``predicted`` times as slow as the truth on a machine that drifts."""
    simulator, truth = simulator_of(folder, overrides, recorded)
    live = FakeLive(simulator.scenario, truth, drifts)
    return validate(simulator, ScaledCost(truth, predicted), live, repeats=len(drifts))
