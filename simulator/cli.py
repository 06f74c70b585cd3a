"""The command line, and the one place where errors become messages and exit codes.

0 done, 1 a threshold failed, 2 the input is wrong, 130 interrupted, 143 terminated. Everything heavy is
imported inside the command that needs it, so that help and shell completion come at once.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli_capacity import capacity
from simulator.cli_compare import compare
from simulator.cli_lists import LISTINGS
from simulator.cli_options import AsJson, Device, Output, Overrides, Report, ScenarioFile, Seed, Timeline
from simulator.cli_output import (
    emit,
    emit_json,
    emit_rows,
    emit_view,
    progress_on,
    talk,
)
from simulator.cli_results import Wanted, command_line
from simulator.cli_sweep import sweep
from simulator.cli_validate import validate
from simulator.cli_workload import workload_app
from simulator.errors import Interrupted, UserError
from simulator.extras import LIVE_LIBRARIES, needing
from simulator.interrupts import interruptible

if TYPE_CHECKING:
    from backend.live import LiveRun
    from simulator.simulation import Simulation

INTERRUPTED = 130
PROBLEMS = (UserError, typer.TyperException, OSError, RecursionError, MemoryError)
LONG_WORD = re.compile(r"\S{400,}")  # a path that is long, but no longer than paths are, stays whole
LONGEST_LINE = 2000
SERVE_LIBRARIES = ("fastapi", "starlette", "uvicorn", "prometheus_client")
WELCOME = """\
ServeTwin simulates an LLM server: which latency and throughput a model gives on a GPU under your load.

  servetwin simulate scenarios/quickstart.yaml
  servetwin simulate scenarios/quickstart.yaml --set workload.arrivals.rate_per_s=20 --report report.html
  servetwin memory --model meta-llama/Llama-3.1-8B --hardware h100-sxm --context 8192

All commands: servetwin --help"""

app = typer.Typer(
    name="servetwin",
    help="The digital twin of an LLM server: latency, throughput and memory before you rent the GPU.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(workload_app, name="workload")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what is not the user's to put right keeps its traceback."""
    for name in ("stdout", "stderr"):  # None where the shell closed them (>&-)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    with interruptible() as came:
        try:
            code = app(args=arguments, prog_name="servetwin", standalone_mode=False)
        except (typer.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        except Exception as error:
            if came or isinstance(error, Interrupted):  # whatever a library made of the interrupt
                return _interrupted(came, error)
            if not isinstance(error, PROBLEMS):
                raise
            return _complain(_problems(error))
        # Typer ends with this code where an interrupt came while a command ran.
        if code == INTERRUPTED:
            return _interrupted(came)
    return code if isinstance(code, int) else 0


def _interrupted(came: Sequence[int], error: Exception | None = None) -> int:
    """Say so, and what is kept; the exit code is the one that shells give to the signal."""
    talk(f"interrupted: {error}" if isinstance(error, Interrupted) else "interrupted")
    return 128 + came[0] if came else INTERRUPTED


def _problems(error: Exception) -> list[str]:
    """What to tell the user, a line for each problem."""
    if isinstance(error, typer.TyperException):
        return [_usage_problem(error)]
    if isinstance(error, OSError):
        return [f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)]
    if isinstance(error, RecursionError):
        return ["the input is nested too deeply"]
    if isinstance(error, MemoryError):
        return ["there is not enough memory for this; make the scenario smaller"]
    return str(error).splitlines()


def _complain(lines: Sequence[str]) -> int:
    for line in lines:
        talk(f"error: {_readable(line)}")
    return 2


def _readable(line: str) -> str:
    """A line of a length that people read, whatever names and values it quotes: the middle is left out."""
    line = LONG_WORD.sub(lambda word: f"{word[0][:80]}...{word[0][-80:]}", line)
    return line if len(line) < LONGEST_LINE else f"{line[:500]} ... {line[-500:]}"


def _usage_problem(error: typer.TyperException) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "servetwin"
    return f"{message[:1].lower()}{message[1:]}; see: {command} --help"


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            emit(f"servetwin {version('servetwin')}")
        except PackageNotFoundError:
            emit("servetwin (running from its source, not installed)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def welcome(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 the callback answers
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The digital twin of an LLM server: latency, throughput and memory before you rent the GPU."""
    if context.invoked_subcommand is None:
        emit(WELCOME)


@app.command()
def simulate(
    scenario: ScenarioFile,
    *,
    overrides: Overrides = None,
    seed: Seed = None,
    output: Output = None,
    as_json: AsJson = False,
    report: Report = None,
    timeline: Timeline = None,
) -> None:
    """Simulate a scenario and print its latencies and throughput."""
    from simulator.scenario_file import read_scenario

    settings, notes = read_scenario(scenario, overrides or (), seed)
    wanted = Wanted(output, report, timeline)
    wanted.check()

    from simulator.simulation import simulate as run

    with progress_on(sys.stderr, "simulating") as progress:
        simulation = run(settings, folder=scenario.parent, progress=progress)
    simulation = replace(simulation, notes=(*notes, *simulation.notes))
    command = command_line("simulate", scenario, overrides or (), seed)
    wanted.write(settings, simulation, command, scenario.parent)
    _show(simulation, as_json)
    wanted.tell()


@app.command("run", short_help="Run a scenario live on a real model, as simulate does.")
def run_on_a_model(
    scenario: ScenarioFile,
    *,
    overrides: Overrides = None,
    device: Device = "cpu",
    skip_idle: Annotated[
        bool, typer.Option("--skip-idle", help="Do not wait for arrivals while nothing runs.")
    ] = False,
    seed: Seed = None,
    output: Output = None,
    as_json: AsJson = False,
    report: Report = None,
    timeline: Timeline = None,
) -> None:
    """Run a scenario live on a real model, with the same scheduler, results and files as simulate."""
    from simulator.scenario_file import read_scenario

    settings, notes = read_scenario(scenario, overrides or (), seed)
    wanted = Wanted(output, report, timeline)
    wanted.check()
    with needing(LIVE_LIBRARIES, "run needs {}: pip install 'servetwin[live]'"):
        from backend.live import run_live

    with progress_on(sys.stderr, "running") as progress:
        done = run_live(
            settings, folder=scenario.parent, device=device, skip_idle=skip_idle, progress=progress
        )
    done = replace(done, notes=(*notes, *done.notes))
    command = command_line("run", scenario, overrides or (), seed)
    wanted.write(settings, done, command, scenario.parent)
    _show(done, as_json)
    wanted.tell()


def _show(simulation: Simulation | LiveRun, as_json: bool) -> None:
    if not as_json:
        from simulator.summary_view import summary_view

        emit_view(summary_view(simulation.summary, simulation.notes))
        return
    emit_json(simulation.summary)
    for note in simulation.notes:
        talk(f"note: {note}")


app.command(short_help="Compare policies, hardware or other keys of a scenario.")(compare)
app.command(short_help="Find the least replicas for a load, or their highest load.")(capacity)
app.command(short_help="Simulate a grid of scenarios; mark what nobody beats.")(sweep)
app.command(short_help="Hold a live run against its simulation, figure by figure.")(validate)


@app.command("init")
def write_first_scenario(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Scenario file to write.")] = Path(
        "scenario.yaml"
    ),
) -> None:
    """Write a scenario file to start from, with every key explained."""
    from simulator.starter import write_starter

    write_starter(file)
    talk(f"scenario: {file}; run it: servetwin simulate {file}")


@app.command(short_help="Print what fits on a GPU: weights, KV cache, largest batch.")
def memory(
    *,
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Built-in model, config.json or model folder.")
    ],
    hardware: Annotated[str, typer.Option(metavar="GPU", help="GPU; see: servetwin list hardware.")],
    tensor_parallel: Annotated[
        int, typer.Option(metavar="N", help="GPUs that share the model.", min=1)
    ] = 1,
    batch: Annotated[
        int | None, typer.Option(metavar="B", help="Also: KV cache of this many sequences.", min=1)
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(metavar="C", help="Tokens per sequence (default: the model's limit).", min=1),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="Number format of weights and KV cache.")
    ] = "bfloat16",
    as_json: AsJson = False,
) -> None:
    """Print what fits on a GPU: weights, KV cache per token, reserves and the largest batch."""
    from simulator.memory import memory_report, memory_view

    found = memory_report(
        model, hardware, tensor_parallel=tensor_parallel, batch=batch, context_tokens=context, dtype=dtype
    )
    emit_json(found) if as_json else emit_view(memory_view(found))


@app.command("list", short_help="List models, hardware, profiles, policies and workloads.")
def list_names(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=" | ".join(LISTINGS), show_default=False)],
    *,
    as_json: AsJson = False,
) -> None:
    """List what a scenario may name: models, hardware, profiles, policies, workloads or formats."""
    if what not in LISTINGS:
        raise UserError(f"list {what}: there are lists of {', '.join(LISTINGS)}")
    rows = LISTINGS[what]()
    emit_json(rows) if as_json else emit_rows(rows)


@app.command()
def schema() -> None:
    """Print the JSON schema of a scenario, for editors."""
    from simulator.scenario import Scenario

    emit_json(Scenario.model_json_schema())


@app.command(short_help="Serve a scenario to OpenAI clients, simulated or live.")
def serve(
    scenario: ScenarioFile,
    *,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Placeholder tokens at the pace of the simulated engine.")
    ] = False,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port to listen on; 0: any free one.", min=0, max=65535)
    ] = 8000,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where a live model runs.")] = "cpu",
    queue: Annotated[
        int, typer.Option(metavar="N", help="Requests held beyond those that can run; more get 429.", min=0)
    ] = 1024,
    overrides: Overrides = None,
    seed: Seed = None,
) -> None:
    """Serve a scenario's engine to OpenAI clients, simulated in real time or live."""
    from simulator.scenario_file import read_scenario

    settings, notes = read_scenario(scenario, overrides or (), seed)
    with needing(SERVE_LIBRARIES, "serve needs {}: pip install 'servetwin[serve]'"):
        from backend.serve.app import Limits
        from backend.serve.command import backing_of
        from backend.serve.server import serve as run
    for note in notes:
        talk(f"note: {note}")
    make = partial(backing_of, settings, scenario.parent, simulated=simulated, device=device)
    run(make, host, port, Limits(queue=queue), talk)


@app.command(
    short_help="Measure this machine, import measurements, fit profiles.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def calibrate(context: typer.Context) -> None:
    """Measure this machine, import measurements and fit cost profiles (measure, import, fit)."""
    with needing(("scipy",), "calibrate needs scipy: pip install 'servetwin[calibrate]'"):
        from calibration.cli import app as calibrate_app

        code = calibrate_app(
            args=context.args or ["--help"], prog_name="servetwin calibrate", standalone_mode=False
        )
    raise typer.Exit(code if isinstance(code, int) else 0)
