"""The beginning of a file, from which its format is told."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

from simulator.workloads.traces.trace_file import open_text

LONGEST_HEAD = 1 << 16
KEY = re.compile(r'"([^"\\]+)"\s*:')


def first_lines(path: Path, count: int) -> list[str]:
    """The first lines that are not blank, each cut where no header would still go on."""
    with open_text(path) as text:
        lines = iter(lambda: text.readline(LONGEST_HEAD), "")
        return list(islice((line.strip() for line in lines if line.strip()), count))


def json_keys(path: Path) -> list[str]:
    """Keys of a file's first JSON object; none where the file is no JSON.

    Of an object that goes on after its line, or in a list, the names that the head of the file shows.
    """
    lines = first_lines(path, 1)
    if not lines or lines[0][0] not in "{[":
        return []
    try:
        found = json.loads(lines[0])
    except ValueError:
        found = None
    if isinstance(found, dict):
        return list(found)
    with open_text(path) as text:
        return KEY.findall(text.read(LONGEST_HEAD))
