"""``servetwin capacity``: the fleet that a load needs, or the load that a fleet bears."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from simulator.cli_options import Overrides, Seed
from simulator.cli_output import check_file, emit_json, emit_view, talk
from simulator.errors import UserError
from simulator.whole_files import write_whole

if TYPE_CHECKING:
    from simulator.alternatives import Alternative
    from simulator.planning import Capacity

DEFAULT_BUDGET = 2_000_000
LEAST_BUDGET = 10_000


def capacity(
    scenario: Annotated[
        Path,
        typer.Argument(metavar="SCENARIO", help="Scenario file (YAML) with an slo.", show_default=False),
    ],
    *,
    attainment: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of requests that must keep every limit, such as 0.9, instead of percentiles.",
        ),
    ] = None,
    replicas: Annotated[
        str,
        typer.Option(
            metavar="auto|N", help="auto: the least for the scenario's rate; N: the highest rate they bear."
        ),
    ] = "auto",
    price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="USD_PER_GPU_HOUR", help="Price, or HARDWARE=PRICE where it differs; may be repeated."
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2,...", help="Alternatives to choose from; several make a grid."),
    ] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    budget: Annotated[
        int,
        typer.Option(metavar="REQUESTS", help="Most requests simulated per alternative.", min=LEAST_BUDGET),
    ] = DEFAULT_BUDGET,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes; all processors by default.", min=1, max=1024)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the JSON to a file, too.")
    ] = None,
) -> None:
    """Find the least replicas for a load, or the highest load of a fleet, that meet the SLO."""
    count, prices = _replicas(replicas), _prices(price or ())
    if attainment is not None and not 0 < attainment < 1:
        raise UserError(f"--attainment must be above 0 and below 1, not {attainment:g}")
    check_file("--output", output, suffixes=(".json",))
    alternatives = _alternatives(scenario, vary or (), overrides or (), seed)
    _check_prices(prices, alternatives)

    from simulator.planning import best_of

    with _status_on(sys.stderr) as told:
        found = best_of(
            alternatives,
            folder=scenario.parent,
            attainment=attainment,
            replicas=count,
            price=prices.get("") or prices,
            workers=workers,
            budget=budget,
            progress=told,
        )
    _tell(found, as_json, output)


@contextmanager
def _status_on(stream: TextIO) -> Iterator[Callable[[int, str], None] | None]:
    """A line on a terminal that says what is being searched and how far; nothing elsewhere."""
    if not stream.isatty():
        yield None
        return
    from rich.console import Console

    with Console(file=stream).status("searching") as status:
        yield lambda simulated, name: status.update(f"searching {name}: {simulated:,} requests simulated")


def _replicas(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or len(text) > 9 or not int(text):
        raise UserError(f"--replicas must be auto or a whole number >= 1, not {text!r}")
    return int(text)


def _prices(texts: Sequence[str]) -> dict[str, float]:
    """USD per GPU-hour by hardware; under an empty name the price of all."""
    prices = {}
    for text in texts:
        hardware, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e6:
            raise UserError(f"--price {text}: must be USD per GPU-hour, such as 2.50 or h100-sxm=2.50")
        prices[hardware.strip()] = value
    if "" in prices and len(prices) > 1:
        raise UserError("--price: give one price for all hardware, or HARDWARE=PRICE for each")
    return prices


def _check_prices(prices: Mapping[str, float], alternatives: Sequence[Alternative]) -> None:
    used = {one.scenario.hardware: None for one in alternatives if one.scenario is not None}
    if not prices or "" in prices:
        return
    unused = next((name for name in prices if name not in used), None)
    if unused is not None:
        raise UserError(f"--price {unused}: the scenario uses {', '.join(used)}")
    missing = next((name for name in used if name not in prices), None)
    if missing is not None:
        raise UserError(f"--price: no price for {missing}, so that costs could not be compared")


def _alternatives(
    path: Path, varied: Sequence[str], overrides: Sequence[str], seed: int | None
) -> list[Alternative]:
    from simulator.alternatives import Alternative, read_alternatives
    from simulator.scenario_file import read_scenario

    if varied:
        return read_alternatives(path, varied, overrides, seed)
    scenario, notes = read_scenario(path, overrides, seed)
    return [Alternative(scenario.name, {}, scenario, notes)]


def _tell(found: Capacity, as_json: bool, output: Path | None) -> None:
    from simulator.planning import as_json as to_json

    told = to_json(found)
    if output is not None:
        text = json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False)
        try:
            write_whole(output, f"{text}\n")
        except OSError as error:
            raise UserError(f"--output {output}: cannot be written: {error.strerror}") from error
    if as_json:
        emit_json(told)
        for note in (*found.notes, *(found.best.notes if found.best else ())):
            talk(f"note: {note}")
    else:
        from simulator.planning.view import capacity_view

        emit_view(capacity_view(found))
    if output is not None:
        talk(f"answer: {output}")
    if found.best is None:
        raise typer.Exit(1)
