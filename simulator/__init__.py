"""ServeTwin's simulator: workloads, schedulers and a calibrated clock.

    import simulator

    scenario = simulator.load_scenario("scenarios/quickstart.yaml", {"engine.max_num_seqs": 64})
    run = simulator.simulate(scenario)
    run.summary["ttft_ms"]["p99"], run.requests["first_token_s"], run.iterations["decodes"]

`simulate`, `sweep` and `capacity` take a loaded scenario, the path of one, or a dict of its keys. What is
wrong with the input is a `UserError`. Nothing is loaded before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.api import Run as Run
    from simulator.api import arrow as arrow
    from simulator.api import capacity as capacity
    from simulator.api import frame as frame
    from simulator.api import load_scenario as load_scenario
    from simulator.api import simulate as simulate
    from simulator.api import sweep as sweep
    from simulator.errors import UserError as UserError
    from simulator.scenario import Scenario as Scenario

PUBLIC = {
    "Run": "simulator.api",
    "Scenario": "simulator.scenario",
    "UserError": "simulator.errors",
    "arrow": "simulator.api",
    "capacity": "simulator.api",
    "frame": "simulator.api",
    "load_scenario": "simulator.api",
    "simulate": "simulator.api",
    "sweep": "simulator.api",
}


def __getattr__(name: str) -> object:
    if name not in PUBLIC:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(PUBLIC[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
