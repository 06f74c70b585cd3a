"""A run's results on disk: the resolved scenario, the summary and two Parquet tables in one directory.

Each file is written beside its place, flushed to the disk and renamed; ``summary.json`` goes last and makes
the directory whole. Equal tables give equal bytes. Parquet so that any tool can read a run, or a thousand
(``SELECT * FROM 'runs/*/requests.parquet'``); DuckDB because it writes it from numpy columns alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import int64
from numpy.typing import NDArray

from simulator.columns import narrow
from simulator.errors import UserError
from simulator.metrics import (
    NS_PER_S,
    STATUSES,
    Summary,
    counts,
    distribution_ms,
    duration_ns,
    request_metrics,
    throughput,
)
from simulator.run_tables import RunTables

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SCENARIO, SUMMARY = "scenario.yaml", "summary.json"
REQUESTS, ITERATIONS = "requests.parquet", "iterations.parquet"

REQUEST_COLUMNS = (
    "id",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "output_limit",
    "replica",
    "status",
    "reason",
    "scheduled_s",
    "first_token_s",
    "finished_s",
    "preemptions",
    "cached_tokens",
)
ITERATION_COLUMNS = (
    "replica",
    "start_s",
    "end_s",
    "prefill_tokens",
    "prefill_pairs",
    "decodes",
    "context_tokens",
    "padding_tokens",
    "preempted",
    "waiting",
    "kv_blocks_used",
    "repeats",
    "prefills",
)


class Results(NamedTuple):
    """What ``read_results`` finds. The tables are as in ``RunTables``: int64 columns, times in ns."""

    scenario_yaml: str
    summary: Summary
    requests: dict[str, NDArray[int64]]
    iterations: dict[str, NDArray[int64]]
    reasons: dict[int, str]

    @property
    def tables(self) -> RunTables:
        """The run's tables, but for what the files do not keep: single gaps between tokens, KV capacity."""
        nothing = np.empty(0, int64)
        return RunTables(self.requests, self.reasons, self.iterations, nothing, nothing, 0)


def write_results(directory: Path, scenario_yaml: str, summary: Summary, tables: RunTables) -> None:
    """Write one run, replacing an earlier one.

    Interrupted at any point, it leaves the earlier run or a directory that does not look whole.
    """
    text = json.dumps(summary, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    reasons = _reason_column(tables)
    with _said_in_one_line(directory, "cannot be written"), _tidied(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with _connection() as database:
            staged = [
                _stage(directory / SCENARIO, lambda path: path.write_text(scenario_yaml, encoding="utf-8")),
                _stage(directory / REQUESTS, _copy(database, REQUEST_COLUMNS, tables.requests, reasons)),
                _stage(directory / ITERATIONS, _copy(database, ITERATION_COLUMNS, tables.iterations)),
                _stage(directory / SUMMARY, lambda path: path.write_text(text, encoding="utf-8")),
            ]
        (directory / SUMMARY).unlink(missing_ok=True)
        for path in staged:
            path.replace(path.with_suffix(""))
        _flush(directory)


@contextmanager
def _tidied(directory: Path) -> Iterator[None]:
    """Whatever goes wrong, nothing half-written stays behind; an interrupted query is an interruption."""
    try:
        yield
    except RuntimeError as error:
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise
    finally:
        for name in (SCENARIO, REQUESTS, ITERATIONS, SUMMARY):
            (directory / f"{name}.part").unlink(missing_ok=True)


def _stage(place: Path, write: Callable[[Path], object]) -> Path:
    """Write a file completely to the disk under a temporary name beside its place."""
    temporary = place.with_name(f"{place.name}.part")
    write(temporary)
    _flush(temporary)
    return temporary


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _connection() -> Iterator[DuckDBPyConnection]:
    """A private database in memory; on one thread, so that rows and bytes never depend on timing."""
    import duckdb

    with duckdb.connect(config={"threads": 1}) as database:
        yield database


def _copy(
    database: DuckDBPyConnection,
    names: tuple[str, ...],
    columns: Mapping[str, NDArray[int64]],
    words: Mapping[str, NDArray[Any]] | None = None,
) -> Callable[[Path], object]:
    """How to write columns as Parquet: times in seconds, null where they never came, status in words."""
    selected = ", ".join(f"{_expression(name)} AS {name}" for name in names)

    def write(path: Path) -> None:
        numbers = {name: narrow(column) for name, column in columns.items()}
        database.register("columns", {**numbers, **(words or {})})
        place = str(path).replace("'", "''")
        database.execute(
            f"COPY (SELECT {selected} FROM columns) TO '{place}' (FORMAT parquet, COMPRESSION zstd)"
        )
        database.unregister("columns")

    return write


def _expression(name: str) -> str:
    if name.endswith("_s"):
        return f"nullif({name.removesuffix('_s')}_ns, -1) / 1e9"
    if name == "reason":
        return "CAST(reason AS VARCHAR)"  # a text column even where there is nothing to say
    return f"{list(STATUSES)}[status + 1]" if name == "status" else f"CAST({name} AS BIGINT)"


def _reason_column(tables: RunTables) -> dict[str, NDArray[Any]]:
    column = np.full(len(tables.requests["id"]), None, dtype=object)
    rows = np.searchsorted(tables.requests["id"], np.fromiter(tables.reasons, dtype=int64))
    column[rows] = list(tables.reasons.values())
    return {"reason": column}


def read_results(directory: Path) -> Results:
    """Read back what ``write_results`` wrote; a UserError names what is missing, damaged or foreign."""
    if not (directory / SUMMARY).is_file():
        wrong = "there is no such directory" if not directory.is_dir() else f"{SUMMARY} is missing"
        raise UserError(f"{directory}: no complete results here, {wrong}; write them with --output")
    summary = _read_summary(directory / SUMMARY)
    with _said_in_one_line(directory, "cannot be read"):
        scenario_yaml = (directory / SCENARIO).read_text(encoding="utf-8")
    requests = _read_table(directory / REQUESTS, REQUEST_COLUMNS)
    iterations = _read_table(directory / ITERATIONS, ITERATION_COLUMNS)
    offered = summary["requests"]["offered"]
    if offered != len(requests["id"]):
        found = f"{REQUESTS} holds {len(requests['id'])} requests, {SUMMARY} speaks of {offered}"
        raise UserError(f"{directory}: files of different runs: {found}")
    reasons = requests.pop("reason")
    told = {int(requests["id"][row]): str(reasons[row]) for row in np.flatnonzero(reasons != "").tolist()}
    results = Results(scenario_yaml, summary, requests, iterations, told)
    _refuse_other_figures(directory / SUMMARY, results)
    return results


def _refuse_other_figures(path: Path, results: Results) -> None:
    """A summary that was edited or damaged says something else than the tables beside it."""
    tables = results.tables
    metrics = request_metrics(tables.requests)
    expected: Summary = {
        "requests": counts(tables),
        "duration_s": duration_ns(tables) / NS_PER_S,
        "throughput": throughput(tables),
        "ttft_ms": distribution_ms(metrics.ttft_ns),
        "tpot_ms": distribution_ms(metrics.tpot_ns),
        "e2e_ms": distribution_ms(metrics.e2e_ns),
    }
    for key, value in expected.items():
        if results.summary.get(key) != value:
            raise UserError(
                f"{path}: damaged, its {key} is not that of the tables beside it: "
                "run the scenario again with --output"
            )


def _read_summary(path: Path) -> Summary:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged, not the summary of a run ({_first_line(error)})") from error
    requests = summary.get("requests") if isinstance(summary, dict) else None
    if not isinstance(requests, dict) or "offered" not in requests:
        raise UserError(f"{path}: not the summary of a ServeTwin run: 'requests.offered' is missing")
    return dict(summary)


def _read_table(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """A Parquet file as numpy columns named as in ``RunTables``."""
    import duckdb

    if not path.is_file():
        raise UserError(f"{path}: missing, so these results are not complete")
    try:
        with _connection() as database:
            found = database.from_parquet(str(path))
            missing = next((name for name in names if name not in found.columns), None)
            if missing is not None:
                raise UserError(f"{path}: not a table of a ServeTwin run: column '{missing}' is missing")
            # One by one: as they come, words and times take several times the memory that they do here.
            return dict(_as_recorded(name, found.project(name).fetchnumpy()[name]) for name in names)
    except (duckdb.Error, OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: damaged or not of a ServeTwin run ({_first_line(error)})") from error


def _as_recorded(name: str, column: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    """Undo ``_expression``: seconds to ns, -1 for never, words to status codes; no reason becomes ''."""
    if name.endswith("_s"):
        return f"{name.removesuffix('_s')}_ns", np.rint(np.ma.filled(column, -1e-9) * 1e9).astype(int64)
    if name == "status":
        return name, np.select([column == word for word in STATUSES], range(len(STATUSES))).astype(int64)
    return name, np.ma.filled(column, "") if name == "reason" else np.asarray(column, dtype=int64)


@contextmanager
def _said_in_one_line(directory: Path, what: str) -> Iterator[None]:
    """Turn what the disk refuses into a UserError."""
    import duckdb

    try:
        yield
    except (OSError, UnicodeError, duckdb.IOException) as error:
        raise UserError(f"{directory}: results {what}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
