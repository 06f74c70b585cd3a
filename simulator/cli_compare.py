"""``servetwin compare``: alternatives of one scenario, or kept results, side by side."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli_options import AsJson, Overrides, Report
from simulator.cli_output import (
    COMPARISON,
    check_file,
    check_output,
    emit_json,
    emit_view,
    progress_on,
    talk,
)
from simulator.errors import UserError
from simulator.whole_files import write_whole

if TYPE_CHECKING:
    from simulator.alternatives import Alternative
    from simulator.comparison import Comparison
    from simulator.scenario import Scenario
    from simulator.simulation import Simulation

MEASURED_SUFFIXES = (".json", ".jsonl")  # of load tools' files; no scenario ends so
LONGEST_NAME = 60  # of a folder, in characters


def compare(
    what: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENARIO|DIRS",
            help="Scenario file (YAML), or results: folders, and load tools' JSON files.",
            show_default=False,
        ),
    ],
    *,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2,...", help="Values to compare; several of these make a grid."),
    ] = None,
    overrides: Overrides = None,
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Run each with N seeds, for confidence intervals of the differences."
        ),
    ] = 1,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="First seed, instead of the scenario's.")
    ] = None,
    as_json: AsJson = False,
    report: Report = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every run's results to folders in a folder.")
    ] = None,
) -> None:
    """Compare policies, hardware or any other key of a scenario under the same requests, or results."""
    check_output(output)
    check_file("--report", report, output)
    if _are_results(what, varied=bool(vary)):
        if vary or overrides or repeat > 1 or seed is not None or output is not None:
            raise UserError("compare: folders hold finished runs; only --json and --report go with them")
        from simulator.compare import compare_results

        _tell(compare_results(what), [], report, as_json)
        return
    _compare_scenario(what[0], vary or (), overrides or (), repeat, seed, as_json, report, output)


def _are_results(what: Sequence[Path], *, varied: bool) -> bool:
    """Whether results are compared; raises where neither they nor a scenario can be meant."""
    others = [path for path in what if not (path.is_dir() or path.suffix in MEASURED_SUFFIXES)]
    if len(what) > 1:
        if others:
            raise UserError(
                f"compare: {others[0]} is no folder; give one scenario, or folders with results"
            )
        return True
    if not others:
        from simulator.measured.read import is_measurement

        if what[0].is_dir():
            raise UserError(f"compare {what[0]}: one folder compares with nothing; give two or more")
        if is_measurement(what[0]):
            return True
    if not varied:
        raise UserError(
            f"compare {what[0]}: a scenario needs --vary KEY=V1,V2,..., "
            "such as --vary engine.policy=static,vllm-v1"
        )
    return False


def _compare_scenario(
    path: Path,
    varied: Sequence[str],
    overrides: Sequence[str],
    repeats: int,
    seed: int | None,
    as_json: bool,
    report: Path | None,
    output: Path | None,
) -> None:
    from simulator.alternatives import read_alternatives

    alternatives = read_alternatives(path, varied, overrides, seed)
    from simulator.compare import compare_alternatives

    def keep(number: int, alternative: Alternative, scenario: Scenario, simulation: Simulation) -> None:
        if output is not None:
            name = f"{number:02d}-{_folder_name(alternative.name)}"
            _write(
                output / (name if repeats == 1 else f"{name}-seed-{scenario.seed}"), scenario, simulation
            )

    with progress_on(sys.stderr, "comparing") as progress:
        comparison = compare_alternatives(
            alternatives, folder=path.parent, repeats=repeats, progress=progress, keep=keep
        )
    if output is not None:
        _write_comparison(output, comparison)
    _tell(comparison, _scenarios(alternatives), report, as_json)
    if output is not None:
        talk(f"results: {output}")


def _folder_name(name: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", name).strip("-.")[:LONGEST_NAME]


def _write(folder: Path, scenario: Scenario, simulation: Simulation) -> None:
    from simulator.results import write_results
    from simulator.scenario_file import to_yaml

    write_results(folder, to_yaml(scenario), simulation.summary, simulation.tables)


def _write_comparison(output: Path, comparison: Comparison) -> None:
    import json

    text = json.dumps(_as_json(comparison), indent=2, ensure_ascii=False, allow_nan=False)
    try:
        write_whole(output / COMPARISON, f"{text}\n")
    except OSError as error:
        raise UserError(f"{output}: {COMPARISON} cannot be written: {error.strerror}") from error


def _as_json(comparison: Comparison) -> dict[str, object]:
    from simulator.comparison import as_json
    from simulator.measures import MEASURES

    return as_json(comparison, MEASURES)


def _scenarios(alternatives: Sequence[Alternative]) -> list[tuple[str, str]]:
    from simulator.scenario_file import to_yaml

    return [(one.name, to_yaml(one.scenario)) for one in alternatives if one.scenario is not None]


def _tell(
    comparison: Comparison, scenarios: Sequence[tuple[str, str]], report: Path | None, as_json: bool
) -> None:
    """Print the comparison and write its page, the first so that a page that fails costs nothing."""
    from simulator.compare_words import failures, notes, warnings

    if as_json:
        emit_json(_as_json(comparison))
        for told in (*failures(comparison), *warnings(comparison), *notes(comparison)):
            talk(f"note: {told}")
    else:
        from simulator.compare_view import comparison_view

        emit_view(comparison_view(comparison))
    if report is not None:
        from simulator.compare_report import write_compare_report

        write_compare_report(report, comparison, scenarios)
        talk(f"report: {report}")
