"""Mooncake traces: JSON Lines of `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

https://github.com/kvcache-ai/Mooncake, FAST25-release/traces (Apache-2.0). `hash_ids` name the prompt in
blocks of 512 tokens, each together with all that stands before it; the last block may be partial. Without
`hash_ids` (other tools write such files) prompts share nothing.

AIPerf's sessions are read too (https://github.com/ai-dynamo/aiperf, docs/benchmark-modes/trace-replay.md):
a row with `delay` (ms) instead of a time goes on with the session of the row before it, to whose prompt and
answer it adds its own tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.workloads.arrival import Arrival, Turn
from simulator.workloads.traces.hashed_json import (
    OUTPUT_KEY,
    PROMPT_KEY,
    TIME_KEY,
    Layout,
    read_row,
)
from simulator.workloads.traces.json_rows import MILLISECONDS, JsonRow, json_rows
from simulator.workloads.traces.trace_file import RowClock

LAYOUT = Layout(MILLISECONDS, tokens_per_id=512)
WAIT_KEY = "delay"
SESSION_KEY = "session_id"


def read(path: Path) -> Iterator[Arrival]:
    """The requests and the beginnings of sessions in order, streamed; the first arrives at 0."""
    clock = RowClock(path, TIME_KEY)
    begun: Arrival | None = None
    session: object = None
    later: list[Turn] = []
    for line, row in json_rows(path):
        if WAIT_KEY in row.fields and TIME_KEY not in row.fields:
            if begun is None or row.fields.get(SESSION_KEY) != session:
                raise row.error(
                    f"{WAIT_KEY} must follow another row of its {SESSION_KEY}, which began at a time"
                )
            later.append(_turn(row, later[-1] if later else begun))
            continue
        if begun is not None:
            yield begun._replace(later=tuple(later)) if later else begun
        begun, session, later = read_row(row, line, clock, LAYOUT), row.fields.get(SESSION_KEY), []
    if begun is not None:
        yield begun._replace(later=tuple(later)) if later else begun


def _turn(row: JsonRow, before: Arrival | Turn) -> Turn:
    """What a row adds to what was said before it."""
    prompt_tokens = before.prompt_tokens + before.output_tokens + row.tokens(PROMPT_KEY)
    output_tokens = row.tokens(OUTPUT_KEY)
    return Turn(row.time_ns(WAIT_KEY, MILLISECONDS), prompt_tokens, output_tokens, output_tokens)
