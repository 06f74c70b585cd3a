"""LLMServingSim's workloads: JSON Lines of single requests and of sessions, which may be mixed.

https://github.com/casys-kaist/LLMServingSim, docs/docs/workloads (MIT). Times and durations are in ns. In a
session each sub-request waits `tool_duration_ns` after the one before it was answered; that of the last one
means nothing. Token ids, where there are enough for the prompt, name its content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from simulator.engine.request import Content
from simulator.workloads.arrival import Arrival, Turn
from simulator.workloads.traces.json_rows import NANOSECONDS, JsonRow, content_of_tokens, json_rows
from simulator.workloads.traces.trace_file import RowClock

TIME_KEY = "arrival_time_ns"
PROMPT_KEY = "input_toks"
OUTPUT_KEY = "output_toks"
TURNS_KEY = "sub_requests"
WAIT_KEY = "tool_duration_ns"
IDS_KEY = "input_tok_ids"
ANSWER_KEY = "output_tok_ids"
SPAN_TOKENS = 16  # a KV block of most engines


def read(path: Path) -> Iterator[Arrival]:
    """The requests and the beginnings of sessions in order, streamed; the first arrives at 0."""
    clock = RowClock(path, TIME_KEY)
    for line, row in json_rows(path):
        arrival_ns = clock.since_first(row.time_ns(TIME_KEY, NANOSECONDS), line)
        if TURNS_KEY not in row.fields:
            yield Arrival(arrival_ns, *_request(row))
            continue
        turns = list(row.records(TURNS_KEY))
        if not turns:
            raise row.error(f"{TURNS_KEY} must hold at least one request")
        later = tuple(Turn(_wait_ns(before), *_request(turn)) for before, turn in pairwise(turns))
        yield Arrival(arrival_ns, *_request(turns[0]), later=later)


def _request(row: JsonRow) -> tuple[int, int, int, Content | None]:
    prompt, output = row.tokens(PROMPT_KEY), row.tokens(OUTPUT_KEY)
    return prompt, output, output, _content(row, prompt, output)


def _content(row: JsonRow, prompt_tokens: int, output_tokens: int) -> Content | None:
    said, answered = (
        _first_ids(row, key, n) for key, n in ((IDS_KEY, prompt_tokens), (ANSWER_KEY, output_tokens))
    )
    if said is None:
        return None
    content = content_of_tokens((*said, *(answered or ())), SPAN_TOKENS)
    return replace(content, names_answer=answered is not None)


def _first_ids(row: JsonRow, key: str, count: int) -> tuple[int, ...] | None:
    """As many ids as there are tokens; None where fewer are listed."""
    ids = row.ids(key) if row.fields.get(key) is not None else ()
    return ids[:count] if len(ids) >= count else None


def _wait_ns(row: JsonRow) -> int:
    return row.time_ns(WAIT_KEY, NANOSECONDS) if WAIT_KEY in row.fields else 0
