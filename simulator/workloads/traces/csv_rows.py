"""CSV traces with a time in seconds and two lengths a row, whatever their columns are called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from simulator.workloads.arrival import Arrival
from simulator.workloads.traces.trace_file import CsvTable, RowClock, open_text, seconds_ns, token_count


class Columns(NamedTuple):
    """Names of the columns that are read; all others are left alone."""

    time: str
    prompt: str
    output: str


def read_rows(
    path: Path, columns: Columns, *, untimed: bool = False, skip_failures: bool = False
) -> Iterator[Arrival]:
    """The requests in order, streamed; the first arrives at 0.

    ``untimed``: where the file has no column of times, all arrive at 0. ``skip_failures``: rows with a
    length of 0 are requests that failed, and left out.
    """
    with open_text(path) as text:
        table = CsvTable(path, text)
        prompt, output = table.position(columns.prompt), table.position(columns.output)
        time = None if untimed and columns.time not in table.header else table.position(columns.time)
        clock = RowClock(path, columns.time)
        for line, row in table:
            if skip_failures and "0" in (row[prompt], row[output]):
                continue
            time_ns = 0 if time is None else seconds_ns(row[time], path, line, columns.time)
            prompt_tokens = token_count(row[prompt], path, line, columns.prompt)
            output_tokens = token_count(row[output], path, line, columns.output)
            yield Arrival(clock.since_first(time_ns, line), prompt_tokens, output_tokens, output_tokens)
