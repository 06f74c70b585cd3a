"""Vidur's processed traces: `arrived_at,num_prefill_tokens,num_decode_tokens` as CSV, seconds.

https://github.com/microsoft/vidur, data/processed_traces (MIT). Some files have no `arrived_at`: lengths
only. `pd_ratio` is never read, since forks of Vidur write its inverse under the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces.trace_file import NS_PER_S, CsvTable, RowClock, open_text, token_count

TIME_COLUMN = "arrived_at"
PROMPT_COLUMN = "num_prefill_tokens"
OUTPUT_COLUMN = "num_decode_tokens"

LATEST_S = 10**12  # thirty thousand years: no time in seconds is later


def read(path: Path) -> Iterator[Arrival]:
    """The requests in order, streamed; the first arrives at 0, as do all of a file without times."""
    with open_text(path) as text:
        table = CsvTable(path, text)
        prompt, output = map(table.position, (PROMPT_COLUMN, OUTPUT_COLUMN))
        time = table.position(TIME_COLUMN) if TIME_COLUMN in table.header else None
        clock = RowClock(path, TIME_COLUMN)
        for line, row in table:
            time_ns = 0 if time is None else _time_ns(row[time], path, line)
            prompt_tokens = token_count(row[prompt], path, line, PROMPT_COLUMN)
            output_tokens = token_count(row[output], path, line, OUTPUT_COLUMN)
            yield Arrival(clock.since_first(time_ns, line), prompt_tokens, output_tokens, output_tokens)


def _time_ns(cell: str, path: Path, line: int) -> int:
    try:
        seconds = float(cell)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < LATEST_S:
        raise TraceError(f"{path}:{line}: {TIME_COLUMN} must be seconds >= 0, not {cell!r}")
    return round(seconds * NS_PER_S)
