"""One scenario live and simulated by the same scheduler: how far the twin is from what it is a twin of.

Three questions are kept apart. *Raw error*: what the twin says against what the live runs showed. *Without
drift*: the same after the simulated clock of each run was set to the machine's speed around that run, as
fixed reference iterations tell it. *At the live cost*: the same with every iteration's cost scaled so that
they add up to what that run's took; what remains comes from the composition of the iterations and from
how the cost varies between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Protocol

from simulator.cost_model import CostModel
from simulator.fleet_summary import extrapolated_share
from simulator.hardware import load_hardware
from simulator.metrics import ProfileName, Summary, summarise
from simulator.models import Model
from simulator.profile import ProfileInfo
from simulator.run_tables import RunTables
from simulator.scenario import Scenario, SloSettings
from simulator.simulation import make_fleet, run_fleet
from simulator.validation_composition import Composition, compare_composition
from simulator.validation_cost import IterationCost, ScaledCost, drifts, iteration_cost
from simulator.workloads.workload import build_workload

STEPS_PER_RUN = 1000  # of the progress bar

Progress = Callable[[int, int | None], None]


class LiveSide(Protocol):
    """A loaded engine that runs one scenario as often as it is asked to."""

    @property
    def profile(self) -> ProfileName:
        """What stands where a simulation names its cost profile."""
        ...

    def time_reference(self) -> tuple[float, ...]:
        """How long fixed reference iterations take right now, in ns."""
        ...

    def run(self, progress: Progress | None = None) -> RunTables:
        """Run the scenario once, from its first arrival to its last answer."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """What the scheduler did, live or on simulated time, and the figures of it."""

    tables: RunTables
    summary: Summary


@dataclass(frozen=True, slots=True)
class Repetition:
    """One live run beside its twins.

    ``drift``: how much slower the machine was around it than in the drift's base; ``at_drift``: the twin on
    a machine so slow; ``at_cost``: the twin whose iterations cost as much in all as the live ones.
    """

    live: Run
    cost: IterationCost
    drift: float
    at_drift: Run
    at_cost: Run
    composition: Composition


@dataclass(frozen=True, slots=True)
class Validation:
    """The twin, the live runs, and the reference times around them (in ns, one round more than runs).

    ``drift_from``: ``profile`` where the profile knows what the reference took when it was measured,
    ``session`` where drift is told against the median of this session's own rounds.
    """

    scenario: Scenario
    model: str
    profile: ProfileInfo
    twin: Run
    repetitions: tuple[Repetition, ...]
    reference_ns: tuple[tuple[float, ...], ...]
    drift_from: str


@dataclass(frozen=True, slots=True)
class Simulator:
    """Simulates one scenario, all of whose sizes are settled, at whatever cost."""

    scenario: Scenario
    model: Model
    profile: ProfileInfo
    folder: Path = Path()

    def twin(self, cost: CostModel) -> Run:
        """The scenario on simulated time."""
        started = perf_counter()
        scenario = self.scenario
        workload = build_workload(scenario.workload, scenario.seed, self.folder)
        fleet = make_fleet(scenario, self.model, cost, workload)
        _, tables = run_fleet(fleet, workload, scenario.workload.duration_s)
        share = extrapolated_share(tables, cost)
        return self.described(tables, perf_counter() - started, self.profile, share)

    def described(
        self, tables: RunTables, wall_s: float, profile: ProfileName, extrapolated: float = 0.0
    ) -> Run:
        """A run's tables with their figures."""
        scenario = self.scenario
        summary = summarise(
            tables,
            scenario_name=scenario.name,
            seed=scenario.seed,
            policy=scenario.engine.policy,
            model=self.model.name,
            hardware=load_hardware(scenario.hardware).name,
            profile=profile,
            extrapolated=extrapolated,
            slo=scenario.slo or SloSettings.model_construct(),
            wall_s=wall_s,
            replicas=1,
            seats=scenario.engine.max_num_seqs,
        )
        return Run(tables, summary)


def validate(
    simulator: Simulator,
    cost: CostModel,
    live: LiveSide,
    *,
    repeats: int = 3,
    progress: Progress | None = None,
) -> Validation:
    """Run a scenario live ``repeats`` times, reference iterations before and after each, and simulate it.

    ``progress`` is told how much is done, of how much.
    """
    profile, twin = simulator.profile, simulator.twin(cost)
    rounds, runs = [live.time_reference()], []
    for number in range(repeats):
        started = perf_counter()
        tables = live.run(progress and _within(progress, number, repeats))
        runs.append(simulator.described(tables, perf_counter() - started, live.profile))
        rounds.append(live.time_reference())
    recorded = len(profile.reference_ns) == len(rounds[0])
    base = profile.reference_ns if recorded else [median(times) for times in zip(*rounds, strict=True)]
    return Validation(
        simulator.scenario,
        simulator.model.name,
        profile,
        twin,
        tuple(
            _beside(simulator, cost, run, slower)
            for run, slower in zip(runs, drifts(rounds, base), strict=True)
        ),
        tuple(rounds),
        "profile" if recorded else "session",
    )


def _within(progress: Progress, done: int, repeats: int) -> Progress:
    """Progress of one run within that of all."""

    def advance(completed: int, total: int | None) -> None:
        share = completed / total if total else 0.0
        progress(round(STEPS_PER_RUN * (done + share)), STEPS_PER_RUN * repeats)

    return advance


def _beside(simulator: Simulator, cost: CostModel, live: Run, slower: float) -> Repetition:
    """A live run with what the twin makes of it."""
    paid = iteration_cost(live.tables, cost)
    at_drift = simulator.twin(ScaledCost(cost, slower))
    return Repetition(
        live,
        paid,
        slower,
        at_drift,
        simulator.twin(ScaledCost(cost, paid.ratio)),
        compare_composition(live.tables, at_drift.tables),
    )
