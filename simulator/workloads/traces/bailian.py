"""Bailian traces of Qwen services: like Mooncake's, but seconds and blocks of 16 tokens.

https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon (Apache-2.0). Every row carries its whole
prompt and its own time, so `chat_id`, `parent_chat_id` (-1: first turn) and `turn` are not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.workloads.arrival import Arrival
from simulator.workloads.traces.hashed_json import Layout, read_rows
from simulator.workloads.traces.json_rows import SECONDS

LAYOUT = Layout(SECONDS, tokens_per_id=16)


def read(path: Path) -> Iterator[Arrival]:
    """The requests in order, streamed; the first arrives at 0."""
    return read_rows(path, LAYOUT)
