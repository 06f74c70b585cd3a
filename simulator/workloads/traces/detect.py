"""Tells the format of a trace from its first lines."""

from __future__ import annotations

import csv
from os.path import isdir
from pathlib import Path

from simulator.errors import TraceError
from simulator.measured.read import kind_of
from simulator.workloads.traces import (
    azure,
    burstgpt,
    hashed_json,
    lengths_csv,
    llmservingsim,
    servegen,
    splitwise_sim,
    vidur,
    weka,
)
from simulator.workloads.traces.head import first_lines, json_keys

# What sets each format apart, most particular first: all of these names are in its header or first object.
CSV_SIGNS = (
    ("azure", (azure.TIME_COLUMN, azure.PROMPT_COLUMN, azure.OUTPUT_COLUMN)),
    ("vidur", vidur.COLUMNS[1:]),
    ("burstgpt", burstgpt.COLUMNS),
    ("splitwise-sim", splitwise_sim.COLUMNS),
    *(("lengths", names) for names in lengths_csv.COLUMN_NAMES),
)
JSON_SIGNS = (
    ("bailian", ("chat_id", hashed_json.TIME_KEY, hashed_json.PROMPT_KEY)),
    ("mooncake", (hashed_json.TIME_KEY, hashed_json.PROMPT_KEY, hashed_json.OUTPUT_KEY)),
    ("weka", (weka.REQUESTS_KEY, weka.BLOCK_KEY, "hash_id_scope")),
    ("llmservingsim", (llmservingsim.TIME_KEY, llmservingsim.PROMPT_KEY)),
    ("llmservingsim", (llmservingsim.TIME_KEY, llmservingsim.TURNS_KEY)),
    ("openai-batch", ("custom_id", "body")),
    ("openai-batch", ("custom_id", "response")),
)


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
    if isdir(path):
        return _folder_format(path)
    lines = first_lines(path, 2)
    if not lines:
        raise TraceError(f"{path}: holds only blank lines")
    if lines[0][0] in "{[":
        return _json_format(path)
    return _csv_format(lines)


def _folder_format(path: Path) -> str:
    if servegen.client_files(path):
        return "servegen"
    sessions = weka.session_files(path)
    if sessions and recognise(sessions[0]) == "weka":
        return "weka"
    raise TraceError(
        f"{path}: is a folder; a trace is one file, or a folder of ServeGen clients "
        "(chunk-N-trace.csv) or of WEKA sessions (JSON)"
    )


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
    return len(cells) == servegen.COLUMNS and cells[3] in ("Gamma", "Weibull", "") and cells[0].isdecimal()


def _json_format(path: Path) -> str | None:
    keys = json_keys(path)
    for name, wanted in JSON_SIGNS:
        if all(key in keys for key in wanted):
            return name
    if kind_of(keys) is not None:
        return "measured"
    if keys and keys[0].isdecimal():
        raise TraceError(
            f"{path}: holds the lengths of a ServeGen client; give the folder of the pool, or the client's "
            "chunk-N-trace.csv"
        )
    return None
