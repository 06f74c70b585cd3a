"""Commands of ``servetwin calibrate``: measure here, import public measurements, fit profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.errors import Interrupted
from simulator.extras import LIVE_LIBRARIES, needing

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Measure here or import measurements, and fit the profiles that drive the clock.",
)

FORMATS = ("aiconfigurator", "llmservingsim", "vidur", "servetwin-run", "steps", "vllm-bench")


@app.command("measure", short_help="Time the live engine on this machine.")
def measure_live(
    output: Annotated[Path, typer.Option(help="timings to write or to continue (JSON lines)")],
    model: Annotated[
        str, typer.Option(help="model with random weights, config.json or model folder")
    ] = "servetwin/llama-50m",
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="where the model runs")] = "cpu",
    dtype: Annotated[str, typer.Option(help="number format of weights and KV cache")] = "bfloat16",
    hardware: Annotated[
        str | None, typer.Option(help="description that the device goes by; default: by its name")
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="longest time to measure, loading aside, earlier sessions included",
        ),
    ] = 300,
    seed: Annotated[int, typer.Option(min=0, help="of the order and of what is computed")] = 0,
) -> None:
    """Time the live engine's pieces and whole iterations on this machine."""
    from calibration.compose import missing
    from calibration.live_measure import Job, run
    from calibration.rounds import SURE

    with needing(LIVE_LIBRARIES, "calibrate measure needs {}: pip install 'servetwin[live]'"):
        try:
            found = run(Job(model, dtype, device, hardware, output, budget, seed))
        except KeyboardInterrupt:
            raise Interrupted(f"timings so far are kept in {output}; the same command goes on") from None
    sure = sum(value.interval <= SURE for value in found.values.values())
    typer.echo(
        f"{output}: {found.timings} timings of {len(found.values)} points, "
        f"{sure} medians sure to {SURE:.0%}; "
        f"{found.rescaled} rescaled, {found.drifting} drifting, {found.disturbed} disturbed",
        err=True,
    )
    if lack := missing(found):
        typer.echo(f"not enough for calibrate fit yet: {lack}", err=True)


@app.command("import", short_help="Turn public measurements or logs into those of one model.")
def import_measurements(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help=f"one of: {', '.join(FORMATS)}")],
    source: Annotated[
        Path,
        typer.Argument(help="what the format is of: a folder (aiconfigurator: holding data/) or a file"),
    ],
    output: Annotated[Path, typer.Option(help="measurement file to write (JSON lines)")],
    model: Annotated[str, typer.Option(help="built-in model or path to a config.json")],
    hardware: Annotated[str, typer.Option(help="built-in GPU")],
    tensor_parallel: Annotated[int, typer.Option(min=1)] = 1,
    dtype: Annotated[str, typer.Option()] = "bfloat16",
    engine: Annotated[str, typer.Option(help="whose kernels: vllm, sglang, trtllm")] = "vllm",
) -> None:
    """Turn kernel tables, iteration logs or benchmark results into operator measurements of one model."""
    from calibration.imports import Subject, import_format
    from calibration.measurements import write_measurements
    from simulator.hardware import load_hardware
    from simulator.models import dtype_name, load_model

    subject = Subject(
        load_model(model), load_hardware(hardware), dtype_name(dtype), tensor_parallel, engine
    )
    found = import_format(format_, source, subject)
    write_measurements(found, output)
    typer.echo(f"{output}: {len(found.samples)} measurements", err=True)


@app.command("fit", short_help="Fit a profile, and print its error on what it was not shown.")
def fit_measurements(
    files: Annotated[list[Path], typer.Argument(help="measured or imported files of one model and device")],
    output: Annotated[Path, typer.Option(help="profile to write (JSON)")],
) -> None:
    """Fit a profile, and print its error on measurements that the fit was not shown."""
    from calibration.fit import write_profile

    fields = _fitted(files)
    write_profile(fields, output)
    _print_errors(fields)


def _fitted(files: Sequence[Path]) -> dict[str, Any]:
    """A profile's fields from files of timings, or of operator measurements."""
    from calibration.timings import is_timings

    if is_timings(files[0]):
        from calibration.compose import fit_timings, read_sessions

        return fit_timings(*read_sessions(files))
    from calibration.fit import fit_profile, host_term
    from calibration.measurements import merge, read_measurements
    from simulator.models import load_model

    measurements = merge([read_measurements(file) for file in files])
    header = measurements.header
    layers = load_model(header.model).layers
    host = header.host or host_term(header.hardware, header.tensor_parallel, layers)
    return fit_profile(measurements, host)


def _print_errors(fields: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="error on left-out measurements")
    for column in ("operator", "points", "median", "p95"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    for operator, error in fields["held_out_error"].items():
        table.add_row(operator, str(error["points"]), f"{error['median']:.1%}", f"{error['p95']:.1%}")
    Console().print(table)
