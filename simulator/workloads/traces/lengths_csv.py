"""CSV files of request lengths without times: arrivals have to be generated.

NanoFlow's files (https://github.com/efeslab/Nanoflow, datasets/traces, Apache-2.0) carry Azure's header
with the placeholder `XXX` in every TIMESTAMP. Vidur's column names and plain ones serve as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces import azure, vidur
from simulator.workloads.traces.trace_file import CsvTable, open_text, token_count

COLUMN_NAMES = (
    (azure.PROMPT_COLUMN, azure.OUTPUT_COLUMN),
    (vidur.COLUMNS.prompt, vidur.COLUMNS.output),
    ("prompt_tokens", "output_tokens"),
)


def read(path: Path) -> Iterator[Arrival]:
    """The requests in file order, streamed; all arrive at 0, whatever the file says of time."""
    with open_text(path) as text:
        table = CsvTable(path, text)
        prompt_column, output_column = _length_columns(table)
        prompt, output = table.position(prompt_column), table.position(output_column)
        for line, row in table:
            prompt_tokens = token_count(row[prompt], path, line, prompt_column)
            output_tokens = token_count(row[output], path, line, output_column)
            yield Arrival(0, prompt_tokens, output_tokens, output_tokens)


def _length_columns(table: CsvTable) -> tuple[str, str]:
    for pair in COLUMN_NAMES:
        if pair[0] in table.header and pair[1] in table.header:
            return pair
    wanted = " or ".join(",".join(pair) for pair in COLUMN_NAMES)
    raise TraceError(f"{table.path}:1: must have the columns {wanted}; found {', '.join(table.header)}")
