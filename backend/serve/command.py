"""Which backing a scenario is served by."""

from __future__ import annotations

from pathlib import Path

from backend.serve.seam import Backing
from simulator.errors import UserError
from simulator.scenario import Scenario

LIVE_LIBRARIES = ("torch", "transformers", "safetensors")


def backing_of(scenario: Scenario, folder: Path, *, simulated: bool, device: str) -> Backing:
    """The simulated engine, or the live one on a device; torch is imported for the latter alone."""
    if simulated:
        from backend.serve.simulated import simulated_backing

        return simulated_backing(scenario, folder)
    try:
        from backend.serve.live import live_backing
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in LIVE_LIBRARIES:
            raise
        raise UserError(
            f"serve needs {error.name} for a live model: pip install 'servetwin[live]', or add --simulated"
        ) from None
    return live_backing(scenario, folder, device)
