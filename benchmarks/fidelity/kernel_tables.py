"""Left-out grid points of the kernel tables, by the shipped profiles' own account."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from calibration.aiconfigurator import import_tables
from simulator.hardware import load_hardware
from simulator.models import load_model

TARGET = 0.03
TABLES = "kernels/aiconfigurator"
MODEL = "meta-llama/Llama-3.1-8B"
GPUS = ("h100-sxm", "h200-sxm")
SCATTER_FROM, SCATTER_TO = 32, 256


class Held(NamedTuple):
    """Errors at grid points that an operator's fit was not shown."""

    profile: str
    operator: str
    points: int
    median: float
    p95: float


def left_out() -> list[Held]:
    """Every operator of every shipped profile that came from kernel tables."""
    return [held for name, fields in _profiles() for held in _held(name, fields)]


class Scatter(NamedTuple):
    """How much two timings of the same operator differ whose places are one apart."""

    hardware: str
    pairs: int
    median: float


def head_scatter(source: Path) -> list[Scatter]:
    """Of the LM head of Llama-3.1-8B, at rows so few that reading its weights is all there is to time."""
    model, found = load_model(MODEL), []
    for name in GPUS:
        imported = import_tables(source / TABLES, model, load_hardware(name), "bfloat16", 1)
        times = {sample.at[0]: sample.ns for sample in imported.of("head")}
        steps = [
            abs(times[rows + 1] / ns - 1)
            for rows, ns in times.items()
            if SCATTER_FROM <= rows < SCATTER_TO and rows + 1 in times
        ]
        found.append(Scatter(name, len(steps), median(steps)))
    return found


def _held(name: str, fields: Mapping[str, Any]) -> Iterator[Held]:
    for operator, error in fields["held_out_error"].items():
        if operator in fields["operators"]:
            yield Held(name, operator, error["points"], error["median"], error["p95"])


def _profiles() -> Iterator[tuple[str, Mapping[str, Any]]]:
    folder = resources.files("calibration").joinpath("profiles")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json"):
            fields = json.loads(file.read_text(encoding="utf-8"))
            if fields["kind"] == "imported":
                yield file.name.removesuffix(".json"), fields
