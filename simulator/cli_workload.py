"""``servetwin workload``: look into traces, write them in another format, generate new ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli_options import AsJson, Overrides, ScenarioFile, Seed
from simulator.cli_output import emit_json, emit_view, talk
from simulator.errors import TraceError, UserError

if TYPE_CHECKING:
    from simulator.workloads.arrival import Arrival

workload_app = typer.Typer(help="Look into traces, convert and generate them.", rich_markup_mode=None)

TraceFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Trace: a file or a folder.", show_default=False)
]
TraceFormat = Annotated[
    str, typer.Option("--format", metavar="F", help="Trace format; see: servetwin list formats.")
]
Written = Annotated[
    str, typer.Option("--to", metavar="FORMAT", help="Format to write; see: servetwin list formats.")
]
Output = Annotated[Path, typer.Option(metavar="FILE", help="File to write.")]


@workload_app.command("describe", short_help="Print what a trace is like: counts, rates, lengths, reuse.")
def describe_workload(
    file: TraceFile,
    *,
    trace_format: TraceFormat = "auto",
    as_json: AsJson = False,
) -> None:
    """Print a trace's counts, rates, burstiness, lengths, sessions and ideal prefix reuse."""
    from simulator.workloads.describe import describe, describe_view

    found = describe(file, trace_format)
    emit_json(found) if as_json else emit_view(describe_view(found))


@workload_app.command("convert")
def convert_workload(
    file: TraceFile,
    *,
    to: Written,
    output: Output,
    trace_format: TraceFormat = "auto",
    requests: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Stop after this many requests or sessions.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of a trace that is drawn, as ServeGen's are.")] = 0,
) -> None:
    """Write a trace in another format."""
    from simulator.workloads.traces.trace import open_trace

    trace = open_trace(file, trace_format, seed)
    _write(islice(trace.rows(), requests), to, output, timed=trace.timed)
    for note in trace.notes:
        talk(f"note: {note}")


@workload_app.command("generate", short_help="Write the requests that a scenario offers.")
def generate_workload(
    scenario: ScenarioFile,
    *,
    to: Written,
    output: Output,
    overrides: Overrides = None,
    seed: Seed = None,
) -> None:
    """Write the requests that a scenario offers, as a simulation of it would see them."""
    from simulator.scenario_file import load_scenario
    from simulator.workloads.workload import build_workload

    settings = load_scenario(scenario, overrides or (), seed)
    workload = build_workload(settings.workload, settings.seed, scenario.parent)
    if workload.concurrency is not None:
        raise UserError(
            f"{scenario}: the clients of a closed loop send when they are answered, so there are no times "
            "to write; take another arrival process"
        )
    _write(workload.arrivals(), to, output, timed=True)
    for note in workload.notes:
        talk(f"note: {note}")


def _write(rows: Iterator[Arrival], to: str, output: Path, *, timed: bool) -> None:
    from simulator.workloads.export import write_workload

    _check_output(output)
    written = write_workload(rows, to, output, timed=timed)
    plural = "" if written.requests == 1 else "s"
    talk(f"{written.requests:,} request{plural}: {output}")
    if written.bent_turns:
        talk(
            f"note: {written.bent_turns:,} turns hold less than was said before them, which {to} cannot "
            "say: they are written as adding a token"
        )


def _check_output(output: Path) -> None:
    """Refuse, before any work, a place that cannot be written or is no trace's."""
    if output.is_dir():
        raise UserError(f"--output {output}: is a folder; name a file in it")
    if output.exists() and not output.is_file():
        raise UserError(f"--output {output}: is not an ordinary file")
    if not output.absolute().parent.is_dir():
        raise UserError(f"--output {output}: folder {output.absolute().parent} does not exist")
    if output.is_symlink() or (output.exists() and output.stat().st_size and not _is_trace(output)):
        raise UserError(f"--output {output}: exists and is no trace; nothing else is ever replaced")


def _is_trace(path: Path) -> bool:
    from simulator.workloads.traces.detect import recognise

    try:
        return recognise(path) is not None
    except TraceError:
        return False
