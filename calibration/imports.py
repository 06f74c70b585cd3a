"""The formats that ``servetwin calibrate import`` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from calibration.measurements import Header, Measurements
from simulator.errors import ProfileError
from simulator.hardware import Hardware
from simulator.models import Model

FORMATS: Mapping[str, str] = {
    "aiconfigurator": "kernel tables of NVIDIA's AIConfigurator: the folder that holds data/",
    "llmservingsim": "per-layer profiles of LLMServingSim: the folder that holds meta.yaml",
    "vidur": "profiling CSV of Vidur: an mlp.csv, attention.csv or all_reduce.csv",
    "servetwin-run": "results of a live run of ours: a folder that servetwin run --output wrote",
    "steps": "per-step counters of any engine: JSON lines",
    "vllm-bench": "detailed result JSON of vllm bench serve (--save-result --save-detailed)",
}


class Subject(NamedTuple):
    """What was measured, as the user says."""

    model: Model
    hardware: Hardware
    dtype: str
    tensor_parallel: int
    engine: str


def import_format(format_: str, source: Path, subject: Subject) -> Measurements:
    """Operator measurements from a source in one of FORMATS."""
    if format_ not in FORMATS:
        raise ProfileError(f"FORMAT must be one of {', '.join(FORMATS)}, not {format_!r}")
    if not source.exists():
        raise ProfileError(
            f"{source}: there is no such file or folder; {format_} expects {FORMATS[format_]}"
        )
    return _readers()[format_](source, subject)


def _readers() -> Mapping[str, Callable[[Path, Subject], Measurements]]:
    from calibration.client_results import import_client_result
    from calibration.iteration_logs import import_run, import_steps
    from calibration.vidur import import_csv

    return {
        "aiconfigurator": _tables,
        "llmservingsim": _layers,
        "vidur": lambda source, subject: import_csv(
            source, subject.model, subject.hardware, subject.tensor_parallel
        ),
        "servetwin-run": lambda source, subject: import_run(source, black_box(subject, "servetwin run")),
        "steps": lambda source, subject: import_steps(source, black_box(subject, "iteration log")),
        "vllm-bench": lambda source, subject: import_client_result(
            source, black_box(subject, "vllm bench serve")
        ),
    }


def _tables(source: Path, subject: Subject) -> Measurements:
    from calibration.aiconfigurator import import_tables

    return import_tables(
        source,
        subject.model,
        subject.hardware,
        subject.dtype,
        subject.tensor_parallel,
        engine=subject.engine,
    )


def _layers(source: Path, subject: Subject) -> Measurements:
    from calibration.layer_profiles import import_layers

    if subject.dtype != "bfloat16":
        raise ProfileError(f"{source}: per-layer profiles are read in bfloat16, not {subject.dtype}")
    return import_layers(source, subject.model, subject.hardware, subject.tensor_parallel)


def black_box(subject: Subject, source: str) -> Header:
    """The header of what a running engine tells about itself from outside."""
    return Header(
        model=subject.model.name,
        hardware=subject.hardware.name,
        device=subject.hardware.description,
        dtype=subject.dtype,
        tensor_parallel=subject.tensor_parallel,
        engine=subject.engine,
        engine_version="not told",
        kind="imported",
        source=source,
        licence="the user's own",
    )
