"""From a scenario to the clock of its iterations."""

from __future__ import annotations

from pathlib import Path

from simulator.cost_model import ProfileCostModel, load_cost_model
from simulator.hardware import load_hardware
from simulator.models import Model
from simulator.policies import pads_prompts
from simulator.profile import ProfileInfo
from simulator.scenario import Scenario


def clock_of(scenario: Scenario, model: Model, folder: Path) -> tuple[ProfileCostModel, ProfileInfo]:
    """What prices a scenario's iterations, and what that rests on. ``folder``: where its paths start."""
    return load_cost_model(
        scenario.profile,
        model,
        load_hardware(scenario.hardware),
        scenario.dtype,
        scenario.parallel.tensor,
        folder,
        padded=pads_prompts(scenario.engine),
    )
