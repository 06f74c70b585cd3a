"""``servetwin validate``: one scenario live and simulated, and the error of the twin."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli_options import AsJson, Device, Overrides, Report, ScenarioFile, Seed
from simulator.cli_output import (
    VALIDATION,
    check_file,
    check_output,
    emit_json,
    emit_view,
    progress_on,
    talk,
)
from simulator.errors import UserError
from simulator.extras import LIVE_LIBRARIES, needing
from simulator.whole_files import write_whole

if TYPE_CHECKING:
    from simulator.validation import Validation
    from simulator.validation_errors import FigureError

CPU = "cpu"


def validate(
    scenario: ScenarioFile,
    *,
    profile: Annotated[
        str,
        typer.Option(
            metavar="PROFILE",
            help="Cost profile of the twin: a file, a shipped name, auto or roofline.",
            show_default=False,
        ),
    ],
    device: Device = "cpu",
    repeat: Annotated[int, typer.Option(metavar="N", min=1, help="Live runs.")] = 3,
    seed: Seed = None,
    overrides: Overrides = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", min=0, help="Exit with 1 where a figure is off by more, such as 0.05."
        ),
    ] = None,
    as_json: AsJson = False,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the errors and every run's results.")
    ] = None,
    report: Report = None,
) -> None:
    """Run a scenario live and simulated by the same scheduler, and print the error of each figure."""
    if max_error is not None and not isfinite(max_error):
        raise UserError(f"--max-error {max_error}: must be a share such as 0.05")
    check_output(output)
    check_file("--report", report, output)
    validation, notes = _validated(scenario, profile, device, repeat, seed, overrides or ())

    from simulator.validation_errors import errors
    from simulator.validation_words import failures

    found = errors(validation, max_error)
    if output is not None:
        _write(output, validation, found, max_error)
    _show(validation, found, max_error, notes, as_json)
    if report is not None:
        from simulator.validation_report import write_validation_report

        write_validation_report(report, validation, found, max_error, notes)
    for what, path in (("results", output), ("report", report)):
        if path is not None:
            talk(f"{what}: {path}")
    failed = list(failures(found))
    for line in failed:
        talk(f"failed: {line}")
    if failed:
        raise typer.Exit(1)


def _validated(
    path: Path, profile: str, device: str, repeat: int, seed: int | None, overrides: Sequence[str]
) -> tuple[Validation, tuple[str, ...]]:
    """Both sides run; what can be refused is refused before the model is loaded."""
    from simulator.models import load_model
    from simulator.pricing import clock_of
    from simulator.scenario_file import model_path, read_scenario
    from simulator.validation import Simulator
    from simulator.validation import validate as run

    scenario, notes = read_scenario(path, overrides, seed)
    scenario = scenario.model_copy(update={"profile": profile})
    _check_hardware(scenario.hardware, device)
    model = load_model(model_path(scenario.model, path.parent))
    cost, known = clock_of(scenario, model, Path())
    with needing(LIVE_LIBRARIES, "validate needs {}: pip install 'servetwin[live]'"):
        from backend.validate import LiveEngine

    live = LiveEngine(scenario, folder=path.parent, device=device)
    simulator = Simulator(live.scenario, model, known, path.parent)
    with progress_on(sys.stderr, "validating") as progress:
        validation = run(simulator, cost, live, repeats=repeat, progress=progress)
    return validation, (*notes, *live.notes, *known.notes)


def _check_hardware(hardware: str, device: str) -> None:
    """The twin must be one of the machine that the model runs on, as far as can be told."""
    if (hardware == CPU) != device.startswith(CPU):
        right = CPU if device.startswith(CPU) else "the GPU's name; see: servetwin list hardware"
        raise UserError(
            f"--device {device}: the scenario's hardware is {hardware}, so its twin would be one of "
            f"another machine; set hardware to {right}"
        )


def _show(
    validation: Validation,
    found: Sequence[FigureError],
    max_error: float | None,
    notes: Sequence[str],
    as_json: bool,
) -> None:
    if not as_json:
        from simulator.validation_view import validation_view

        emit_view(validation_view(validation, found, max_error, notes))
        return
    from simulator.validation_errors import as_json as told
    from simulator.validation_words import warnings

    emit_json(told(validation, found, max_error))
    for note in (*warnings(validation), *notes):
        talk(f"note: {note}")


def _write(
    output: Path, validation: Validation, found: Sequence[FigureError], max_error: float | None
) -> None:
    """A folder of results for every live run and the twin; ``validation.json`` last, aside and renamed."""
    from simulator.results import write_results
    from simulator.scenario_file import to_yaml
    from simulator.validation_errors import as_json as told

    resolved = to_yaml(validation.scenario)
    runs = {"twin": validation.twin}
    for number, repetition in enumerate(validation.repetitions, start=1):
        runs |= {f"live-{number}": repetition.live, f"twin-without-drift-{number}": repetition.at_drift}
    for name, run in runs.items():
        write_results(output / name, resolved, run.summary, run.tables)
    text = json.dumps(told(validation, found, max_error), indent=2, ensure_ascii=False, allow_nan=False)
    try:
        write_whole(output / VALIDATION, f"{text}\n")
    except OSError as error:
        raise UserError(f"{output}: {VALIDATION} cannot be written: {error.strerror}") from error
