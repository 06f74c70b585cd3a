"""Commands of ``servetwin calibrate``: import public measurements, fit profiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.errors import ProfileError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Import measurements and fit the profiles that drive the clock.",
)

FORMATS = ("aiconfigurator",)


@app.command("import")
def import_measurements(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help=f"one of: {', '.join(FORMATS)}")],
    source: Annotated[
        Path, typer.Argument(help="folder of the tables (for aiconfigurator: the one holding data/)")
    ],
    output: Annotated[Path, typer.Option(help="measurement file to write (JSON lines)")],
    model: Annotated[str, typer.Option(help="built-in model or path to a config.json")],
    hardware: Annotated[str, typer.Option(help="built-in GPU")],
    tensor_parallel: Annotated[int, typer.Option(min=1)] = 1,
    dtype: Annotated[str, typer.Option()] = "bfloat16",
    engine: Annotated[str, typer.Option(help="whose kernels: vllm, sglang, trtllm")] = "vllm",
) -> None:
    """Turn public kernel tables into operator measurements of one model."""
    from calibration.aiconfigurator import import_tables
    from calibration.measurements import write_measurements
    from simulator.hardware import load_hardware
    from simulator.models import dtype_name, load_model

    if format_ not in FORMATS:
        raise ProfileError(f"FORMAT must be one of {', '.join(FORMATS)}, not {format_!r}")
    found = import_tables(
        source,
        load_model(model),
        load_hardware(hardware),
        dtype_name(dtype),
        tensor_parallel,
        engine=engine,
    )
    write_measurements(found, output)
    typer.echo(f"{output}: {len(found.samples)} measurements", err=True)


@app.command("fit")
def fit_measurements(
    files: Annotated[list[Path], typer.Argument(help="measurement files of one model and GPU")],
    output: Annotated[Path, typer.Option(help="profile to write (JSON)")],
) -> None:
    """Fit a profile, and print its error on measurements that the fit was not shown."""
    from calibration.fit import fit_profile, host_term, write_profile
    from calibration.measurements import merge, read_measurements
    from simulator.models import load_model

    measurements = merge([read_measurements(file) for file in files])
    header = measurements.header
    host = host_term(header.hardware, header.tensor_parallel, load_model(header.model).layers)
    fields = fit_profile(measurements, host)
    write_profile(fields, output)
    _print_errors(fields)


def _print_errors(fields: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="error on left-out measurements")
    for column in ("operator", "points", "median", "p95"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    for operator, error in fields["held_out_error"].items():
        table.add_row(operator, str(error["points"]), f"{error['median']:.1%}", f"{error['p95']:.1%}")
    Console().print(table)
