"""Vidur's processed traces: `arrived_at,num_prefill_tokens,num_decode_tokens` as CSV, seconds.

https://github.com/microsoft/vidur, data/processed_traces (MIT). Some files have no `arrived_at`: lengths
only. `pd_ratio` is never read, since forks of Vidur write its inverse under the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.workloads.arrival import Arrival
from simulator.workloads.traces.csv_rows import Columns, read_rows

COLUMNS = Columns("arrived_at", "num_prefill_tokens", "num_decode_tokens")


def read(path: Path) -> Iterator[Arrival]:
    """The requests in order, streamed; the first arrives at 0, as do all of a file without times."""
    return read_rows(path, COLUMNS, untimed=True)
