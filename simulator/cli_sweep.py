"""``servetwin sweep``: a scenario under many values of its keys, on all processors or on a cluster."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli_options import AsJson, Overrides, Report, ScenarioFile, Seed
from simulator.cli_output import check_file, emit_json, emit_view, progress_on, talk
from simulator.errors import Interrupted, UserError

if TYPE_CHECKING:
    from simulator.sweeps.pools import Pool
    from simulator.sweeps.sweep import Plan, Sweep


def sweep(
    scenario: ScenarioFile,
    *,
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=V1,V2,...",
            help="Values to try; also LOW:HIGH:STEP and LOW:HIGH:xFACTOR. Several make a grid.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where every point is kept as it is done.", show_default=False),
    ],
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=1024, help="Processes (default: one per processor)."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on a Dask cluster, such as tcp://host:8786.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep in DIR.")] = False,
    trials: Annotated[
        int | None,
        typer.Option("--search", metavar="N", min=1, help="Search the ranges with N points, not the grid."),
    ] = None,
    latency: Annotated[
        str, typer.Option(metavar="KEY", help="Latency that the Pareto front is about.")
    ] = "e2e_ms.p99",
    price: Annotated[
        str | None, typer.Option(metavar="PRICE", help="Per GPU-hour: 2.5, or h100-sxm=2.5,l40s=0.9.")
    ] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    as_json: AsJson = False,
    report: Report = None,
) -> None:
    """Simulate a grid of scenarios, or search a larger space, and mark the points that nobody beats."""
    if workers is not None and cluster is not None:
        raise UserError("sweep: give --workers or --cluster, not both")
    check_file("--report", report, output)
    plan = _plan(scenario, vary, overrides or (), seed, trials, latency, price)
    from simulator.sweeps.sweep import run_sweep

    try:
        with _pool(workers, cluster) as pool, progress_on(sys.stderr, "sweeping") as progress:
            done = run_sweep(
                plan,
                output,
                pool,
                resume=resume,
                check_files=cluster is not None,
                progress=progress,
                told=talk,
            )
    except KeyboardInterrupt:
        raise Interrupted(f"what is done is kept in {output}; go on with it by --resume") from None
    _show(done, plan, output, report, as_json=as_json)


def _plan(
    scenario: Path,
    vary: list[str],
    overrides: list[str] | tuple[str, ...],
    seed: int | None,
    trials: int | None,
    latency: str,
    price: str | None,
) -> Plan:
    from simulator.scenario_file import draft_in
    from simulator.sweeps.axes import axes_of
    from simulator.sweeps.front import objectives_of, parse_prices
    from simulator.sweeps.points import Question
    from simulator.sweeps.sweep import Plan

    prices = None if price is None else parse_prices(price)
    objectives_of(latency, prices)
    question = Question(draft_in(scenario), tuple(overrides), seed)
    return Plan(question, axes_of(vary, search=trials is not None), trials, latency, prices)


def _pool(workers: int | None, cluster: str | None) -> AbstractContextManager[Pool]:
    from simulator.parallel import processors
    from simulator.sweeps.pools import cluster_pool, local_pool

    return local_pool(workers or processors()) if cluster is None else cluster_pool(cluster)


def _show(done: Sweep, plan: Plan, output: Path, report: Path | None, *, as_json: bool) -> None:
    if as_json:
        from simulator.sweeps.words import as_json as told

        emit_json(told(done))
    else:
        from simulator.sweeps.view import sweep_view

        emit_view(sweep_view(done))
    talk(f"results: {output}")
    if report is not None:
        from simulator.sweeps.report import write_sweep_report

        write_sweep_report(report, done, plan.question.draft.text)
        talk(f"report: {report}")
