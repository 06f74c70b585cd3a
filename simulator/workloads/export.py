"""Writes workloads in the formats of others' tools, and in such that are read back here.

Mooncake's and AIPerf's rows (https://github.com/ai-dynamo/aiperf, docs/benchmark-modes/trace-replay.md)
have times in ms, with a fraction where a time is no whole number of them. AIPerf keeps the history of a
session, so a later turn holds the tokens that it adds, and waits `delay` ms after the answer before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from simulator.engine.request import Content
from simulator.errors import TraceError
from simulator.whole_files import written_whole
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces import azure, hashed_json, mooncake, vidur

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Tally:
    """What was written: requests, and turns that had to be bent into the format."""

    requests: int = 0
    bent_turns: int = 0
    sessions: int = field(default=0)


class Writer(NamedTuple):
    """How requests become lines, after a header if there is one, and whether times are needed."""

    lines: Callable[[Arrival, Tally], Iterator[str]]
    header: str = ""
    timed: bool = True
    turns: bool = False


def write_workload(rows: Iterable[Arrival], format: str, path: Path, *, timed: bool = True) -> Tally:  # noqa: A002
    """Write requests beside their place and move them there when all are complete.

    ``timed``: whether their times mean anything. Raises `TraceError` where the format cannot say what they
    are.
    """
    writer = _writer(format)
    if writer.timed and not timed:
        raise TraceError(f"{path}: {format} needs arrival times, which this workload does not have")
    tally = Tally()
    try:
        with written_whole(path) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in _lines(rows, writer, format, tally))
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from error
    return tally


def _writer(format: str) -> Writer:  # noqa: A002
    if format not in WRITERS:
        raise TraceError(f"format to write must be one of {', '.join(WRITERS)}, not {format!r}")
    return WRITERS[format]


def _lines(rows: Iterable[Arrival], writer: Writer, format: str, tally: Tally) -> Iterator[str]:  # noqa: A002
    if writer.header:
        yield writer.header
    for row in rows:
        if row.later and not writer.turns:
            raise TraceError(
                f"{format} has no turns that wait for an answer; of the formats written here aiperf has"
            )
        tally.requests += 1 + len(row.later)
        tally.sessions += bool(row.later)
        yield from writer.lines(row, tally)


def _mooncake(row: Arrival, _: Tally) -> Iterator[str]:
    fields: dict[str, object] = {
        hashed_json.TIME_KEY: _ms(row.arrival_ns),
        hashed_json.PROMPT_KEY: row.prompt_tokens,
        hashed_json.OUTPUT_KEY: row.output_tokens,
    }
    if row.content is not None:
        fields[hashed_json.CONTENT_KEY] = _block_ids(row.content, row.prompt_tokens)
    yield json.dumps(fields)


def _aiperf(row: Arrival, tally: Tally) -> Iterator[str]:
    if not row.later:
        yield from _mooncake(row, tally)
        return
    session = f"session-{tally.sessions}"
    lengths = {hashed_json.PROMPT_KEY: row.prompt_tokens, hashed_json.OUTPUT_KEY: row.output_tokens}
    yield json.dumps({"session_id": session, hashed_json.TIME_KEY: _ms(row.arrival_ns), **lengths})
    said = row.prompt_tokens + row.output_tokens
    for turn in row.later:
        added = turn.prompt_tokens - said
        tally.bent_turns += added < 1
        lengths = {hashed_json.PROMPT_KEY: max(added, 1), hashed_json.OUTPUT_KEY: turn.output_tokens}
        yield json.dumps({"session_id": session, mooncake.WAIT_KEY: _ms(turn.think_ns), **lengths})
        said += lengths[hashed_json.PROMPT_KEY] + turn.output_tokens


def _azure(row: Arrival, _: Tally) -> Iterator[str]:
    """The format's seven decimals, so times are cut to 100 ns."""
    seconds, rest_ns = divmod(row.arrival_ns, NS_PER_S)
    second = EPOCH + timedelta(seconds=seconds)
    yield f"{second:%Y-%m-%d %H:%M:%S}.{rest_ns // 100:07d},{row.prompt_tokens},{row.output_tokens}"


def _vidur(row: Arrival, _: Tally) -> Iterator[str]:
    seconds, rest_ns = divmod(row.arrival_ns, NS_PER_S)
    yield f"{seconds}.{rest_ns:09d},{row.prompt_tokens},{row.output_tokens}"


def _lengths(row: Arrival, _: Tally) -> Iterator[str]:
    yield f"{row.prompt_tokens},{row.output_tokens}"


def _ms(time_ns: int) -> int | float:
    return time_ns / NS_PER_MS if time_ns % NS_PER_MS else time_ns // NS_PER_MS


def _block_ids(content: Content, prompt_tokens: int) -> list[int]:
    """Names of a prompt's beginnings in steps of Mooncake's blocks: of the finer ones that end there."""
    span, wanted = content.tokens_per_id, mooncake.LAYOUT.tokens_per_id
    if wanted % span:
        raise TraceError(f"names for {span} tokens each cannot be put together to Mooncake's {wanted}")
    ends = range(wanted, prompt_tokens + wanted, wanted)
    return [content.ids[-(-min(end, prompt_tokens) // span) - 1] for end in ends]


WRITERS = {
    "mooncake": Writer(_mooncake),
    "aiperf": Writer(_aiperf, turns=True),
    "azure": Writer(_azure, ",".join((azure.TIME_COLUMN, azure.PROMPT_COLUMN, azure.OUTPUT_COLUMN))),
    "vidur": Writer(_vidur, ",".join(vidur.COLUMNS)),
    "lengths": Writer(_lengths, "prompt_tokens,output_tokens", timed=False),
}
