"""BurstGPT's traces: CSV with `Timestamp` (s), `Request tokens` and `Response tokens` among others.

https://github.com/HPMLL/BurstGPT (CC-BY-4.0). Releases from v3 on insert `Session ID` and `Elapsed time`
after the time, so columns are found by name. Failed requests have 0 response tokens, some 0 request tokens
too: they never ran, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.workloads.arrival import Arrival
from simulator.workloads.traces.csv_rows import Columns, read_rows
from simulator.workloads.traces.trace_file import CsvTable, open_text

COLUMNS = Columns("Timestamp", "Request tokens", "Response tokens")


def read(path: Path) -> Iterator[Arrival]:
    """The requests that were answered, in order, streamed; the first arrives at 0."""
    return read_rows(path, COLUMNS, skip_failures=True)


def failures(path: Path) -> int:
    """How many rows are failed requests; takes a pass over the file."""
    with open_text(path) as text:
        table = CsvTable(path, text)
        prompt, output = table.position(COLUMNS.prompt), table.position(COLUMNS.output)
        return sum("0" in (row[prompt], row[output]) for _, row in table)
