"""The command line, and the one place where errors become messages and exit codes.

0 done, 1 a threshold failed, 2 the input is wrong, 130 interrupted. Everything heavy is imported inside the
command that needs it, so that help and shell completion come at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli_compare import compare
from simulator.cli_lists import LISTINGS
from simulator.cli_output import (
    check_file,
    check_output,
    emit,
    emit_json,
    emit_rows,
    emit_view,
    progress_on,
    talk,
)
from simulator.errors import UserError

if TYPE_CHECKING:
    from backend.live import LiveRun
    from simulator.scenario import Scenario
    from simulator.simulation import Simulation

LIVE_LIBRARIES = ("torch", "transformers", "safetensors")
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
workload_app = typer.Typer(help="Look into traces.", rich_markup_mode=None)
app.add_typer(workload_app, name="workload")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what is not the user's to put right keeps its traceback."""
    try:
        code = app(args=arguments, prog_name="servetwin", standalone_mode=False)
    except (UserError, typer.TyperException, OSError, RecursionError, MemoryError) as error:
        return _complain(_problems(error))
    except (typer.Abort, KeyboardInterrupt):
        return 130
    return code if isinstance(code, int) else 0


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
        talk(f"error: {line}")
    return 2


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


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
OverrideOptions = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario; may be repeated."),
]


@app.command()
def simulate(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).", show_default=False)
    ],
    *,
    overrides: OverrideOptions = None,
    seed: Annotated[int | None, typer.Option(help="Override the scenario's seed.")] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the results (summary and tables) to a folder.")
    ] = None,
    as_json: AsJson = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a self-contained HTML report.")
    ] = None,
) -> None:
    """Simulate a scenario and print its latencies and throughput."""
    from simulator.scenario_file import read_scenario

    settings, notes = read_scenario(scenario, overrides or (), seed)
    check_output(output)
    check_file("--report", report, output)

    from simulator.simulation import simulate as run

    with progress_on(sys.stderr, "simulating") as progress:
        simulation = run(settings, folder=scenario.parent, progress=progress)
    simulation = replace(simulation, notes=(*notes, *simulation.notes))
    _keep(settings, simulation, output, report)
    _show(simulation, as_json)
    for what, path in (("results", output), ("report", report)):
        if path is not None:
            talk(f"{what}: {path}")


@app.command("run")
def run_on_a_model(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).", show_default=False)
    ],
    *,
    overrides: OverrideOptions = None,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where the model runs.")] = "cpu",
    skip_idle: Annotated[
        bool, typer.Option("--skip-idle", help="Do not wait for arrivals while nothing runs.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Override the scenario's seed.")] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the results (summary and tables) to a folder.")
    ] = None,
    as_json: AsJson = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a self-contained HTML report.")
    ] = None,
) -> None:
    """Run a scenario live on a real model, with the same scheduler, results and files as simulate."""
    from simulator.scenario_file import load_scenario

    settings = load_scenario(scenario, overrides or (), seed)
    check_output(output)
    check_file("--report", report, output)
    try:
        from backend.live import run_live
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in LIVE_LIBRARIES:
            raise
        raise UserError(f"run needs {error.name}: pip install 'servetwin[live]'") from None

    with progress_on(sys.stderr, "running") as progress:
        done = run_live(
            settings, folder=scenario.parent, device=device, skip_idle=skip_idle, progress=progress
        )
    _keep(settings, done, output, report)
    _show(done, as_json)
    for what, path in (("results", output), ("report", report)):
        if path is not None:
            talk(f"{what}: {path}")


def _keep(
    settings: Scenario, simulation: Simulation | LiveRun, output: Path | None, report: Path | None
) -> None:
    """Write what was asked for, the results first, so that a report that fails costs nothing."""
    from simulator.scenario_file import to_yaml

    resolved = to_yaml(settings)
    if output is not None:
        from simulator.results import write_results

        write_results(output, resolved, simulation.summary, simulation.tables)
    if report is not None:
        from simulator.report import write_report

        write_report(
            report,
            resolved,
            simulation.summary,
            simulation.tables,
            simulation.notes,
            replicas=settings.replicas,
        )


def _show(simulation: Simulation | LiveRun, as_json: bool) -> None:
    if not as_json:
        from simulator.summary_view import summary_view

        emit_view(summary_view(simulation.summary, simulation.notes))
        return
    emit_json(simulation.summary)
    for note in simulation.notes:
        talk(f"note: {note}")


app.command()(compare)


@app.command()
def memory(
    *,
    model: Annotated[str, typer.Option(help="Built-in model, config.json or model folder.")],
    hardware: Annotated[str, typer.Option(help="GPU; see: servetwin list hardware.")],
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
    dtype: Annotated[str, typer.Option(help="Number format of weights and KV cache.")] = "bfloat16",
    as_json: AsJson = False,
) -> None:
    """Print what fits on a GPU: weights, KV cache per token, reserves and the largest batch."""
    from simulator.memory import memory_report, memory_view

    found = memory_report(
        model, hardware, tensor_parallel=tensor_parallel, batch=batch, context_tokens=context, dtype=dtype
    )
    emit_json(found) if as_json else emit_view(memory_view(found))


@workload_app.command("describe")
def describe_workload(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Trace file.", show_default=False)],
    *,
    trace_format: Annotated[
        str, typer.Option("--format", metavar="F", help="Trace format; see: servetwin list formats.")
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Print a trace's counts, rates, burstiness, lengths and ideal prefix reuse."""
    from simulator.workloads.describe import describe, describe_view

    found = describe(file, trace_format)
    emit_json(found) if as_json else emit_view(describe_view(found))


@app.command("list")
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


@app.command()
def serve(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).", show_default=False)
    ],
    *,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Placeholder tokens at the pace of the simulated engine.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535)] = 8000,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where a live model runs.")] = "cpu",
    queue: Annotated[
        int, typer.Option(metavar="N", help="Requests held beyond those that can run; more get 429.", min=0)
    ] = 1024,
    overrides: OverrideOptions = None,
    seed: Annotated[int | None, typer.Option(help="Override the scenario's seed.")] = None,
) -> None:
    """Serve a scenario's engine to OpenAI clients, simulated in real time or live."""
    from simulator.scenario_file import load_scenario

    settings = load_scenario(scenario, overrides or (), seed)
    try:
        from backend.serve.app import Limits
        from backend.serve.command import backing_of
        from backend.serve.server import serve as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in SERVE_LIBRARIES:
            raise
        raise UserError(f"serve needs {error.name}: pip install 'servetwin[serve]'") from None
    make = partial(backing_of, settings, scenario.parent, simulated=simulated, device=device)
    run(make, host, port, Limits(queue=queue), talk)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def calibrate(context: typer.Context) -> None:
    """Fit cost profiles to measurements (import, fit)."""
    try:
        from calibration.cli import app as calibrate_app

        code = calibrate_app(
            args=context.args or ["--help"], prog_name="servetwin calibrate", standalone_mode=False
        )
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("scipy"):
            raise
        raise UserError("calibrate needs scipy: pip install 'servetwin[calibrate]'") from None
    raise typer.Exit(code if isinstance(code, int) else 0)
