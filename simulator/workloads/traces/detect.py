"""Tells the format of a trace from its first lines."""

from __future__ import annotations

import csv
import json
from itertools import islice
from pathlib import Path

from simulator.errors import TraceError
from simulator.workloads.traces import azure, lengths_csv, mooncake, vidur
from simulator.workloads.traces.trace_file import open_text

LONGEST_HEAD = 1 << 16

# What sets each format apart, most particular first: all of these names are in its header or first object.
CSV_SIGNS = (
    ("azure", (azure.TIME_COLUMN, azure.PROMPT_COLUMN, azure.OUTPUT_COLUMN)),
    ("vidur", (vidur.PROMPT_COLUMN, vidur.OUTPUT_COLUMN)),
    ("burstgpt", ("Timestamp", "Request tokens", "Response tokens")),
    ("splitwise-sim", ("arrival_timestamp", "prompt_size", "token_size")),
    *(("lengths", names) for names in lengths_csv.COLUMN_NAMES),
)
JSON_SIGNS = (
    ("bailian", ("chat_id", mooncake.TIME_KEY, mooncake.PROMPT_KEY)),
    ("mooncake", (mooncake.TIME_KEY, mooncake.PROMPT_KEY, mooncake.OUTPUT_KEY)),
    ("weka", ("requests", "block_size", "hash_id_scope")),
    ("llmservingsim", ("arrival_time_ns", "input_toks")),
    ("llmservingsim", ("arrival_time_ns", "sub_requests")),
    ("openai-batch", ("custom_id", "method", "body")),
)
SERVEGEN_COLUMNS = 6


def detect(path: Path) -> str:
    """Name of the format; refuses a file that fits none."""
    found = recognise(path)
    if found is None:
        raise TraceError(
            f"{path}: fits no trace format known here; CSV needs a header such as "
            f"{','.join(CSV_SIGNS[0][1])}, JSON Lines keys such as {', '.join(JSON_SIGNS[1][1])}"
        )
    return found


def recognise(path: Path) -> str | None:
    """Name of the format, or None for a file that fits none."""
    lines = first_lines(path, 2)
    if not lines:
        raise TraceError(f"{path}: holds only blank lines")
    if lines[0].startswith("{"):
        return _json_format(lines[0])
    return _csv_format(lines)


def first_lines(path: Path, count: int) -> list[str]:
    """The first lines that are not blank, each cut where no header would still go on."""
    with open_text(path) as text:
        lines = iter(lambda: text.readline(LONGEST_HEAD), "")
        return list(islice((line.strip() for line in lines if line.strip()), count))


def csv_header(path: Path) -> list[str]:
    """Names of the columns of a CSV file."""
    return _cells(first_lines(path, 1)[0])


NO_NUMBERS = ("nan", "nat", "inf", "infinity", "null", "none")  # a time that went wrong, not a placeholder


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True))]


def _csv_format(lines: list[str]) -> str | None:
    header = _cells(lines[0])
    for name, columns in CSV_SIGNS:
        if all(column in header for column in columns):
            return "lengths" if name == "azure" and _placeholder_time(header, lines) else name
    return "servegen" if _is_servegen(header) else None


def _placeholder_time(header: list[str], lines: list[str]) -> bool:
    """Whether the first row has a word such as XXX where its time should be."""
    cells = _cells(lines[1]) if len(lines) > 1 else []
    position = header.index(azure.TIME_COLUMN)
    return position < len(cells) and cells[position].isalpha() and cells[position].lower() not in NO_NUMBERS


def _is_servegen(cells: list[str]) -> bool:
    """ServeGen's windows have no header: start, rate, cv, pattern, shape, scale."""
    return len(cells) == SERVEGEN_COLUMNS and cells[3] in ("Gamma", "Weibull", "") and cells[0].isdecimal()


def _json_format(line: str) -> str | None:
    for name, keys in JSON_SIGNS:
        if all(key in _keys(line) for key in keys):
            return name
    return None


def _keys(line: str) -> list[str]:
    """Keys of a JSON object; of one longer than the head, the quoted names that its text shows."""
    try:
        return list(json.loads(line))
    except ValueError:
        return [part.rpartition('"')[2] for part in line.split('":')[:-1]]
