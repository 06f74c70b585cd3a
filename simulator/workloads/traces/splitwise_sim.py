"""SplitwiseSim's traces: CSV with `arrival_timestamp` (s), `prompt_size` and `token_size` among others.

https://github.com/Mutinifni/splitwise-sim, traces (MIT). `batch_size` says nothing of a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.workloads.arrival import Arrival
from simulator.workloads.traces.csv_rows import Columns, read_rows

COLUMNS = Columns("arrival_timestamp", "prompt_size", "token_size")


def read(path: Path) -> Iterator[Arrival]:
    """The requests in order, streamed; the first arrives at 0."""
    return read_rows(path, COLUMNS)
