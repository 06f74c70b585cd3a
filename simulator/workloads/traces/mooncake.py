"""Mooncake traces: JSON Lines of `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

https://github.com/kvcache-ai/Mooncake, FAST25-release/traces (Apache-2.0). `hash_ids` name the prompt in
blocks of 512 tokens, each together with all that stands before it; the last block may be partial. Without
`hash_ids` (other tools write such files) prompts share nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from simulator.engine.request import Content
from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces.trace_file import (
    LONGEST_TOKENS,
    RowClock,
    json_records,
    open_text,
    shortened,
    wrong_count,
)

TIME_KEY = "timestamp"
PROMPT_KEY = "input_length"
OUTPUT_KEY = "output_length"
CONTENT_KEY = "hash_ids"
TOKENS_PER_ID = 512
NS_PER_MS = 1_000_000
LATEST_MS = 10**15  # thirty thousand years: no time in milliseconds is later


def read(path: Path) -> Iterator[Arrival]:
    """The requests in order, streamed; the first arrives at 0."""
    with open_text(path) as text:
        clock = RowClock(path, TIME_KEY)
        for line, record in json_records(path, text):
            arrival_ns = clock.since_first(_time_ns(record, path, line), line)
            prompt_tokens = _tokens(record, PROMPT_KEY, path, line)
            output_tokens = _tokens(record, OUTPUT_KEY, path, line)
            content = _content(record.get(CONTENT_KEY), prompt_tokens, path, line)
            yield Arrival(arrival_ns, prompt_tokens, output_tokens, output_tokens, content)


def _value(record: dict[str, object], key: str, path: Path, line: int) -> object:
    if key not in record:
        found = ", ".join(list(record)[:12]) or "none"
        raise TraceError(f"{path}:{line}: key {key} is missing; found {found}")
    return record[key]


def _time_ns(record: dict[str, object], path: Path, line: int) -> int:
    milliseconds = _value(record, TIME_KEY, path, line)
    if (
        isinstance(milliseconds, int | float)
        and not isinstance(milliseconds, bool)
        and 0 <= milliseconds < LATEST_MS
    ):
        return round(milliseconds * NS_PER_MS)
    raise TraceError(
        f"{path}:{line}: {TIME_KEY} must be milliseconds >= 0, not {shortened(repr(milliseconds))}"
    )


def _tokens(record: dict[str, object], key: str, path: Path, line: int) -> int:
    tokens = _value(record, key, path, line)
    if type(tokens) is int and 0 < tokens < LONGEST_TOKENS:
        return tokens
    raise wrong_count(tokens, path, line, key)


def _content(ids: object, prompt_tokens: int, path: Path, line: int) -> Content | None:
    if ids is None:
        return None
    if not isinstance(ids, list):
        raise TraceError(f"{path}:{line}: {CONTENT_KEY} must be a list of ids, not {ids!r}")
    blocks = -(-prompt_tokens // TOKENS_PER_ID)
    if len(ids) != blocks:
        raise TraceError(
            f"{path}:{line}: {CONTENT_KEY} must hold {blocks} ids, one for each started {TOKENS_PER_ID} of "
            f"{prompt_tokens} tokens, not {len(ids)}; other block sizes belong to other formats"
        )
    return Content(_whole_ids(ids, path, line), TOKENS_PER_ID)


def _whole_ids(ids: list[object], path: Path, line: int) -> tuple[int, ...]:
    """Ids as whole numbers. Names are hashed: only their equality matters, and no table of them grows."""
    if {int}.issuperset(map(type, ids)):
        return tuple(ids)  # type: ignore[arg-type]
    if {str}.issuperset(map(type, ids)):
        return tuple(_hashed(str(name)) for name in ids)
    raise TraceError(
        f"{path}:{line}: {CONTENT_KEY} must be all whole numbers or all strings, not {ids!r:.80}"
    )


def _hashed(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1
