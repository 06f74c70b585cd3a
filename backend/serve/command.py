"""Which backing a scenario is served by."""

from __future__ import annotations

from pathlib import Path

from backend.serve.seam import Backing
from simulator.extras import LIVE_LIBRARIES, needing
from simulator.scenario import Scenario


def backing_of(scenario: Scenario, folder: Path, *, simulated: bool, device: str) -> Backing:
    """The simulated engine, or the live one on a device; torch is imported for the latter alone."""
    if simulated:
        from backend.serve.simulated import simulated_backing

        return simulated_backing(scenario, folder)
    told = "serve needs {} for a live model: pip install 'servetwin[live]', or add --simulated"
    with needing(LIVE_LIBRARIES, told):
        from backend.serve.live import live_backing
    return live_backing(scenario, folder, device)
