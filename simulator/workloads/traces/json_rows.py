"""Fields of JSON records, read with the place that an error has to name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from simulator.engine.request import Content
from simulator.errors import TraceError
from simulator.workloads.traces.trace_file import (
    LONGEST_TOKENS,
    NS_PER_S,
    json_records,
    open_text,
    shortened,
    wrong_count,
)

LATEST_NS = 10**21  # thirty thousand years


class Unit(NamedTuple):
    """A unit of time, as a format uses it."""

    name: str
    ns: int


SECONDS = Unit("seconds", NS_PER_S)
MILLISECONDS = Unit("milliseconds", 1_000_000)
NANOSECONDS = Unit("nanoseconds", 1)


class JsonRow(NamedTuple):
    """An object of a JSON file; ``place`` is its file and line, or what else finds it."""

    place: str
    fields: dict[str, object]

    def value(self, key: str) -> object:
        """What stands under a key; refuses a record without it."""
        if key not in self.fields:
            found = ", ".join(list(self.fields)[:12]) or "none"
            raise self.error(f"key {key} is missing; found {found}")
        return self.fields[key]

    def tokens(self, key: str, least: int = 1) -> int:
        """A length in tokens; 0 becomes 1 where ``least`` is 0, since an engine computes one at least."""
        tokens = self.value(key)
        if type(tokens) is int and least <= tokens < LONGEST_TOKENS:
            return tokens or 1
        raise wrong_count(tokens, self.place, key)

    def time_ns(self, key: str, unit: Unit) -> int:
        """A time or a duration, in ns."""
        time = self.value(key)
        if isinstance(time, int | float) and not isinstance(time, bool) and 0 <= time * unit.ns < LATEST_NS:
            return round(time * unit.ns)
        raise self.error(f"{key} must be {unit.name} >= 0, not {shortened(repr(time))}")

    def records(self, key: str) -> Iterator[JsonRow]:
        """The objects of a list, each placed by its number."""
        found = self.value(key)
        if not isinstance(found, list):
            raise self.error(f"{key} must be a list of objects, not {shortened(repr(found))}")
        for number, fields in enumerate(found):
            if not isinstance(fields, dict):
                raise self.error(f"{key}[{number}] must be an object, not {shortened(repr(fields))}")
            yield JsonRow(f"{self.place} {key}[{number}]", fields)

    def ids(self, key: str) -> tuple[int, ...]:
        """Names of content as whole numbers.

        Text is hashed: only whether two names are equal matters, and no table of them grows.
        """
        ids = self.value(key)
        if not isinstance(ids, list):
            raise self.error(f"{key} must be a list of ids, not {ids!r:.80}")
        if {int}.issuperset(map(type, ids)):
            return tuple(ids)
        if {str}.issuperset(map(type, ids)):
            return tuple(_hashed(name.encode()) for name in ids)
        raise self.error(f"{key} must be all whole numbers or all strings, not {ids!r:.80}")

    def error(self, problem: str) -> TraceError:
        """What is wrong with this record, and where it stands."""
        return TraceError(f"{self.place}: {problem}")


def json_rows(path: Path) -> Iterator[tuple[int, JsonRow]]:
    """Line number and record of a JSON Lines file, streamed."""
    with open_text(path) as text:
        for line, fields in json_records(path, text):
            yield line, JsonRow(f"{path}:{line}", fields)


def content_of_tokens(token_ids: Sequence[int], span: int) -> Content:
    """Names for the beginnings of a token sequence: a chain of hashes, one for each started span."""
    ids, chain = [], b""
    for start in range(0, len(token_ids), span):
        said = ",".join(map(str, token_ids[start : start + span])).encode()
        chain = blake2b(said, key=chain, digest_size=16).digest()
        ids.append(_hashed(chain))
    return Content(tuple(ids), span)


def _hashed(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") >> 1
