"""JSON Lines whose rows name their prompts block by block: what Mooncake and Bailian have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from simulator.engine.request import Content
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces.json_rows import JsonRow, Unit, json_rows
from simulator.workloads.traces.trace_file import RowClock

TIME_KEY = "timestamp"
PROMPT_KEY = "input_length"
OUTPUT_KEY = "output_length"
CONTENT_KEY = "hash_ids"


class Layout(NamedTuple):
    """The unit of the times, and how many tokens one id of `hash_ids` stands for."""

    unit: Unit
    tokens_per_id: int


def read_rows(path: Path, layout: Layout) -> Iterator[Arrival]:
    """The requests in order, streamed; the first arrives at 0."""
    clock = RowClock(path, TIME_KEY)
    for line, row in json_rows(path):
        yield read_row(row, line, clock, layout)


def read_row(row: JsonRow, line: int, clock: RowClock, layout: Layout) -> Arrival:
    """One request."""
    arrival_ns = clock.since_first(row.time_ns(TIME_KEY, layout.unit), line)
    prompt_tokens, output_tokens = row.tokens(PROMPT_KEY), row.tokens(OUTPUT_KEY)
    content = _content(row, prompt_tokens, layout.tokens_per_id)
    return Arrival(arrival_ns, prompt_tokens, output_tokens, output_tokens, content)


def _content(row: JsonRow, prompt_tokens: int, tokens_per_id: int) -> Content | None:
    if row.fields.get(CONTENT_KEY) is None:
        return None
    ids, blocks = row.ids(CONTENT_KEY), -(-prompt_tokens // tokens_per_id)
    if len(ids) != blocks:
        raise row.error(
            f"{CONTENT_KEY} must hold {blocks} ids, one for each started {tokens_per_id} of "
            f"{prompt_tokens} tokens, not {len(ids)}; other block sizes belong to other formats"
        )
    return Content(ids, tokens_per_id)
