"""The live side of a validation: one loaded engine, warmed up, that runs a scenario again and again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from backend.live import Engine, LiveProfile, make_engine, make_executor, refuse_parallel, run_on
from backend.reference import time_reference
from simulator.run_tables import RunTables
from simulator.scenario import Scenario
from simulator.workloads.workload import build_workload


class LiveEngine:
    """A scenario's model in memory, and the scenario with every size as it came out on this machine.

    Before the first timed run it runs once as fast as possible: kernels are compiled, graphs captured and
    memory touched by then.
    """

    def __init__(self, scenario: Scenario, *, folder: Path = Path(), device: str = "cpu") -> None:
        refuse_parallel(scenario)
        self._engine = engine = make_engine(scenario, folder=folder, device=device)
        self.scenario = settled(scenario, engine)
        self._workload = build_workload(scenario.workload, scenario.seed, folder)
        self._executor = make_executor(scenario, engine)
        self._warm = False

    @property
    def profile(self) -> LiveProfile:
        """What stands where a simulation names its cost profile."""
        return self._engine.profile

    @property
    def notes(self) -> tuple[str, ...]:
        """What one should know of the engine."""
        return self._engine.notes

    def time_reference(self) -> tuple[float, ...]:
        """How long the reference iterations take right now, in ns."""
        self._warm_up()
        return time_reference(self._executor)

    def run(self, progress: Callable[[int, int | None], None] | None = None) -> RunTables:
        """The scenario once, in real time."""
        self._warm_up()
        return run_on(self._engine, self._executor, self.scenario, self._workload, progress=progress).tables

    def _warm_up(self) -> None:
        if not self._warm:
            self._warm = True
            run_on(self._engine, self._executor, self.scenario, self._workload, skip_idle=True)


def settled(scenario: Scenario, engine: Engine) -> Scenario:
    """The scenario with the KV blocks and the longest sequence that a live engine has found for it."""
    sizes = {"kv_blocks": engine.kv.blocks, "max_model_len": engine.max_model_len}
    return scenario.model_copy(update={"engine": scenario.engine.model_copy(update=sizes)})
