"""Options that mean the same wherever a command has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

ScenarioFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).", show_default=False)
]
Overrides: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario; may be repeated."),
]
Seed: TypeAlias = Annotated[int | None, typer.Option(metavar="N", help="Override the scenario's seed.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Report: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE.html", help="Write a self-contained HTML report.")
]
Output: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write the results (summary and tables) to a folder.")
]
Timeline: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help="Write a timeline that opens in ui.perfetto.dev.")
]
Device: TypeAlias = Annotated[str, typer.Option(metavar="cpu|cuda", help="Where the model runs.")]
