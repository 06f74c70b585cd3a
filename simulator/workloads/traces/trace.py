"""A trace file of any readable format, opened by name or by looking at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces import azure, lengths_csv, mooncake, vidur
from simulator.workloads.traces.detect import csv_header, detect, recognise


class Reader(NamedTuple):
    """How one format is read, and what it is in a line."""

    read: Callable[[Path], Iterator[Arrival]]
    description: str


READERS = {
    "azure": Reader(azure.read, "Azure LLM inference traces 2023 and 2024: CSV, ISO time stamps"),
    "mooncake": Reader(mooncake.read, "Mooncake FAST'25: JSON Lines, ms, hashes of 512-token prefixes"),
    "vidur": Reader(vidur.read, "Vidur processed traces: CSV, seconds; lengths only without arrived_at"),
    "lengths": Reader(lengths_csv.read, "prompt and output lengths only: CSV; arrivals are generated"),
}
NOT_READABLE_YET = (
    "burstgpt",
    "bailian",
    "servegen",
    "weka",
    "llmservingsim",
    "splitwise-sim",
    "openai-batch",
)


def format_descriptions() -> dict[str, str]:
    """Names of the formats that can be read, each with a line about it."""
    return {name: reader.description for name, reader in READERS.items()}


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded workload on disk. Without times (`timed` false) every row arrives at 0."""

    path: Path
    format: str
    timed: bool
    notes: tuple[str, ...] = ()

    def rows(self) -> Iterator[Arrival]:
        """All requests from the start, streamed."""
        return READERS[self.format].read(self.path)


def open_trace(path: Path, format: str = "auto") -> Trace:  # noqa: A002 - the name of the setting
    """The trace in `path`, once its format is known and its first row has been read."""
    name = detect(path) if format == "auto" else _agreed(path, format)
    if name not in READERS:
        raise TraceError(
            f"{path}: this looks like {name}, which cannot be read yet; readable are {', '.join(READERS)}"
        )
    if next(READERS[name].read(path), None) is None:
        raise TraceError(f"{path}: holds no requests, only a header")
    columns = () if name == "mooncake" else csv_header(path)
    timed = name in ("azure", "mooncake") or (name == "vidur" and vidur.TIME_COLUMN in columns)
    return Trace(path, name, timed, _notes(columns))


def _agreed(path: Path, asked: str) -> str:
    """The format asked for, unless the file plainly is another one."""
    if asked not in READERS:
        raise TraceError(_unreadable(path, asked))
    found = recognise(path)
    fits = found in (asked, None) or (asked == "lengths" and found in ("azure", "vidur"))
    if not fits:
        raise TraceError(f"{path}: this looks like {found}, not {asked}; set format: {found}")
    return asked


def _unreadable(path: Path, asked: str) -> str:
    readable = ", ".join(("auto", *READERS))
    if asked in NOT_READABLE_YET:
        return f"{path}: format {asked} cannot be read yet; readable are {readable}"
    close = get_close_matches(asked, ("auto", *READERS, *NOT_READABLE_YET), n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{path}: format must be one of {readable}, not {asked!r}{hint}"


def _notes(columns: list[str] | tuple[()]) -> tuple[str, ...]:
    if "NumImages" in columns:
        return ("column NumImages is not read: images cost nothing beyond their tokens in ContextTokens",)
    return ()
