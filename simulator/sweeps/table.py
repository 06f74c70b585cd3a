"""The table of a sweep: a row for each point, whether it ran or not, as CSV and as Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import UserError
from simulator.whole_files import write_whole, written_whole

CSV, PARQUET = "results.csv", "results.parquet"
TYPES = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "VARCHAR"}


@dataclass(frozen=True, slots=True)
class Row:
    """A point and what came of it. ``values``: what was varied, as numbers where they are numbers.

    ``figures``: costs and all of its summary by dotted keys; empty where it could not run. ``front``:
    nobody beats it. ``meets_slo``: None where the scenario has no SLO or did not run.
    """

    number: int
    values: Mapping[str, Any]
    front: bool
    figures: Mapping[str, Any]
    notes: tuple[str, ...]
    reason: str
    address: str
    meets_slo: bool | None = None

    def cells(self) -> dict[str, Any]:
        """The row by column; what was varied hides a figure of the same name."""
        return {
            "point": self.number,
            **self.values,
            "status": "failed" if self.reason else "done",
            "front": self.front,
            **({} if self.meets_slo is None else {"meets_slo": self.meets_slo}),
            **{key: value for key, value in self.figures.items() if key not in self.values},
            "notes": "; ".join(self.notes) or None,
            "reason": "; ".join(self.reason.splitlines()) or None,
            "address": self.address or None,
        }


def flat(summary: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A summary's figures and words by dotted keys, as options name them; lists are left out."""
    for key, value in summary.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            yield f"{prefix}{key}", value


def columns_of(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The table by columns, in the order in which rows name them; None where a row has nothing."""
    cells = [row.cells() for row in rows]
    last = ("notes", "reason", "address")
    names = dict.fromkeys(name for row in cells for name in row if name not in last)
    return {name: [row.get(name) for row in cells] for name in (*names, *last)}


def write_table(directory: Path, rows: Sequence[Row]) -> None:
    """Write both files, each whole or not at all; equal rows give equal bytes."""
    columns = columns_of(rows)
    types = {name: _type(values) for name, values in columns.items()}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(
        [_cell(value, types[name]) for name, value in zip(columns, line, strict=True)]
        for line in zip(*columns.values(), strict=True)
    )
    write_whole(directory / CSV, text.getvalue())
    _write_parquet(directory, types)


def _type(values: Sequence[Any]) -> str:
    """The narrowest type that holds a column: whole numbers, numbers, truth or words."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return TYPES[float]
    return TYPES.get(kinds.pop(), TYPES[str]) if len(kinds) == 1 else TYPES[str]


def _cell(value: Any, kind: str) -> Any:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else float(value) if kind == "DOUBLE" else value


def _write_parquet(directory: Path, types: Mapping[str, str]) -> None:
    """From the CSV file, so that both hold the same; on one thread, whose bytes do not depend on timing."""
    import duckdb

    try:
        with written_whole(directory / PARQUET) as aside, duckdb.connect(config={"threads": 1}) as database:
            table = database.read_csv(
                str(directory / CSV), header=True, dtype=dict(types), delimiter=",", quotechar='"'
            )
            table.write_parquet(str(aside), compression="zstd")
    except duckdb.IOException as error:
        raise UserError(f"{directory}: {PARQUET} cannot be written: {error}") from error
