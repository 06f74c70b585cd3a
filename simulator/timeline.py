"""A run as a timeline that opens in Perfetto (ui.perfetto.dev) or chrome://tracing.

Format: the JSON array of "Trace Event Format" (Google, catapult project): complete events (X) for
iterations, nested asynchronous events (b, e) for requests and their phases, instants (i) for preemptions,
counters (C) for what waits and what the KV cache holds. Times are microseconds with three decimals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.errors import UserError
from simulator.metrics import STATUSES
from simulator.run_tables import RunTables
from simulator.whole_files import written_whole

PHASES = (
    ("queued", "arrival_ns", "scheduled_ns"),
    ("prefill", "scheduled_ns", "first_token_ns"),
    ("decode", "first_token_ns", "finished_ns"),
)
TOLD = ("prompt_tokens", "output_tokens", "preemptions", "cached_tokens")
ITERATIONS_TRACK = 0  # requests are asynchronous and need none
Event = Mapping[str, Any]
Row = Mapping[str, int]


def write_timeline(path: Path, tables: RunTables) -> None:
    """Write a run's timeline, aside first and then renamed; a replica is a process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as aside:
            _write(aside, events(tables))
    except OSError as error:
        raise UserError(f"{path}: the timeline cannot be written: {error.strerror}") from error


def _write(path: Path, found: Iterator[Event]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        separator = "\n"
        for event in found:
            file.write(separator + json.dumps(event))
            separator = ",\n"
        file.write("\n]}\n")


def events(tables: RunTables) -> Iterator[Event]:
    """All events of a run: names of the replicas, then iterations, then requests."""
    replicas = sorted({*tables.iterations["replica"].tolist(), *tables.requests["replica"].tolist()})
    for replica in replicas:
        name = {"pid": _process(replica), "ph": "M", "args": {"name": f"replica {replica}"}}
        yield {"name": "process_name", **name}
        yield {"name": "thread_name", "tid": ITERATIONS_TRACK, **name, "args": {"name": "iterations"}}
    for row in _rows(tables.iterations):
        yield from _iteration_events(row, tables.kv_blocks)
    for row in _rows(tables.requests):
        yield from _request_events(row, tables.reasons.get(row["id"]))


def _process(replica: int) -> int:
    """Viewers take process 0 for the idle task of the machine."""
    return replica + 1


def _rows(columns: Mapping[str, Iterable[int]]) -> Iterator[Row]:
    """Table rows with plain ints, made a piece at a time: a long run has millions."""
    piece = 65_536
    columns = dict(columns)  # a compact table would widen a column for every piece
    count = len(columns["replica"])  # type: ignore[arg-type]  # numpy columns have a length
    for first in range(0, count, piece):
        part = {name: column[first : first + piece].tolist() for name, column in columns.items()}  # type: ignore[index]
        for values in zip(*part.values(), strict=True):
            yield dict(zip(part, values, strict=True))


def _iteration_events(row: Row, kv_blocks: int) -> Iterator[Event]:
    start, replica = row["start_ns"], row["replica"]
    hidden = ("replica", "start_ns", "end_ns")
    yield {
        "name": _iteration_name(row),
        "cat": "iteration",
        "ph": "X",
        "pid": _process(replica),
        "tid": ITERATIONS_TRACK,
        "ts": start / 1e3,
        "dur": (row["end_ns"] - start) / 1e3,
        "args": {name: value for name, value in row.items() if name not in hidden},
    }
    counted = {"rows": row["prefills"] + row["decodes"], "waiting": row["waiting"]}
    yield {"name": "requests", "ph": "C", "pid": _process(replica), "ts": start / 1e3, "args": counted}
    if kv_blocks:
        used = {"used": row["kv_blocks_used"], "free": kv_blocks - row["kv_blocks_used"]}
        yield {
            "name": "KV blocks",
            "ph": "C",
            "pid": _process(replica),
            "ts": row["end_ns"] / 1e3,
            "args": used,
        }
    if row["preempted"]:
        yield {
            "name": f"{row['preempted']} preempted",
            "cat": "preemption",
            "ph": "i",
            "s": "p",
            "pid": _process(replica),
            "tid": ITERATIONS_TRACK,
            "ts": start / 1e3,
        }


def _iteration_name(row: Row) -> str:
    """What an iteration did: ``prefill 2,048 + decode 37``, or ``decode 37 x 120`` for 120 equal ones."""
    parts = []
    if row["prefill_tokens"]:
        parts.append(f"prefill {row['prefill_tokens']:,}")
    if row["decodes"]:
        parts.append(f"decode {row['decodes']:,}")
    times = f" x {row['repeats']:,}" if row["repeats"] > 1 else ""
    return " + ".join(parts) + times


def _request_events(row: Row, reason: str | None) -> Iterator[Event]:
    """A request from arrival to its end with its phases inside; one that was turned away is an instant."""
    common = {"cat": "request", "id": row["id"], "pid": _process(row["replica"]), "tid": ITERATIONS_TRACK}
    title, arrival = f"request {row['id']}", row["arrival_ns"]
    told: dict[str, object] = {name: row[name] for name in TOLD}
    told |= {"status": STATUSES[row["status"]]} | ({"reason": reason} if reason else {})
    end = max(row[name] for name in ("arrival_ns", "scheduled_ns", "first_token_ns", "finished_ns"))
    yield {"name": title, "ph": "b", "ts": arrival / 1e3, "args": told, **common}
    for phase, begin, finish in PHASES:
        if min(row[begin], row[finish]) >= 0:
            yield {"name": phase, "ph": "b", "ts": row[begin] / 1e3, **common}
            yield {"name": phase, "ph": "e", "ts": row[finish] / 1e3, **common}
    yield {"name": title, "ph": "e", "ts": end / 1e3, **common}
