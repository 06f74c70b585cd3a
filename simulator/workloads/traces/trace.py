"""A trace of any readable format, opened by name or by looking at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from simulator.errors import TraceError
from simulator.measured.measurement import Measurement
from simulator.measured.read import read_measurements
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces import (
    azure,
    bailian,
    burstgpt,
    lengths_csv,
    llmservingsim,
    mooncake,
    openai_batch,
    servegen,
    splitwise_sim,
    vidur,
    weka,
)
from simulator.workloads.traces.detect import csv_header, detect, recognise


class Reader(NamedTuple):
    """How one format is read, and what it is in a line.

    ``timed``: rows have times. ``sessions``: rows may have later turns. ``left_out``: counts the rows of a
    file that are no requests; takes a pass over it.
    """

    read: Callable[[Path, int], Iterator[Arrival]]
    description: str
    timed: bool = True
    sessions: bool = False
    left_out: Callable[[Path], int] | None = None


def _recorded(read: Callable[[Path], Iterator[Arrival]]) -> Callable[[Path, int], Iterator[Arrival]]:
    """A recording is the same whatever the seed."""
    return lambda path, _: read(path)


def _measured(path: Path) -> Iterator[Arrival]:
    return _one_run(path).arrivals()


def _one_run(path: Path) -> Measurement:
    """The requests of a load tool's run; refuses files without them or with several runs."""
    runs = read_measurements(path)
    if len(runs) > 1:
        raise TraceError(f"{path}: holds {len(runs)} runs; a trace is one: put it into a file of its own")
    if runs[0].tables is None:
        raise TraceError(f"{path}: holds figures of {runs[0].tool}, but none of its requests to replay")
    return runs[0]


READERS = {
    "azure": Reader(_recorded(azure.read), "Azure 2023, 2024, 2025: CSV, ISO time stamps"),
    "mooncake": Reader(
        _recorded(mooncake.read), "Mooncake, AIPerf: JSON Lines, ms, 512-token ids", sessions=True
    ),
    "vidur": Reader(_recorded(vidur.read), "Vidur: CSV, s; lengths only without arrived_at"),
    "lengths": Reader(
        _recorded(lengths_csv.read), "lengths only: CSV; arrivals are generated", timed=False
    ),
    "burstgpt": Reader(
        _recorded(burstgpt.read), "BurstGPT, all releases: CSV, s", left_out=burstgpt.failures
    ),
    "bailian": Reader(_recorded(bailian.read), "Qwen at Bailian: JSON Lines, s, 16-token ids"),
    "servegen": Reader(servegen.read, "ServeGen: clients to draw from; a folder, or one"),
    "weka": Reader(_recorded(weka.read), "WEKA: sessions of agents; a folder, or one", sessions=True),
    "llmservingsim": Reader(
        _recorded(llmservingsim.read), "LLMServingSim: JSON Lines, ns; also sessions", sessions=True
    ),
    "splitwise-sim": Reader(_recorded(splitwise_sim.read), "SplitwiseSim: CSV, s"),
    "openai-batch": Reader(
        _recorded(openai_batch.read), "OpenAI batch, requests or answers: no times", timed=False
    ),
    "measured": Reader(_recorded(_measured), "results of a load tool, replayed"),
}


def format_descriptions() -> dict[str, str]:
    """Names of the formats that can be read, each with a line about it."""
    return {name: reader.description for name, reader in READERS.items()}


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded workload on disk. Without times (`timed` false) every row arrives at 0.

    ``seed`` fixes what a format draws that is no recording.
    """

    path: Path
    format: str
    timed: bool
    notes: tuple[str, ...] = ()
    seed: int = 0

    @property
    def sessions(self) -> bool:
        """Whether requests may have later turns."""
        return READERS[self.format].sessions

    def rows(self) -> Iterator[Arrival]:
        """All requests, or beginnings of sessions, from the start, streamed."""
        return READERS[self.format].read(self.path, self.seed)

    def left_out(self) -> int:
        """How many rows of the file are no requests."""
        count = READERS[self.format].left_out
        return count(self.path) if count is not None else 0


def open_trace(path: Path, format: str = "auto", seed: int = 0) -> Trace:  # noqa: A002 - the setting's name
    """The trace in `path`, once its format is known and its first row has been read."""
    name = detect(path) if format == "auto" else _agreed(path, format)
    if next(READERS[name].read(path, seed), None) is None:
        raise TraceError(f"{path}: holds no requests{_why_none(name)}")
    columns = csv_header(path) if name in ("azure", "vidur") else []
    timed = READERS[name].timed and (name != "vidur" or vidur.COLUMNS.time in columns)
    if name == "measured":
        timed = _one_run(path).timed
    return Trace(path, name, timed, tuple(_notes(name, path, columns)), seed)


def _why_none(name: str) -> str:
    if READERS[name].left_out is not None or name in ("openai-batch", "servegen"):
        return " that ran"
    return "" if name in ("weka", "llmservingsim", "mooncake", "bailian") else ", only a header"


def _agreed(path: Path, asked: str) -> str:
    """The format asked for, unless the file plainly is another one."""
    if asked not in READERS:
        raise TraceError(_unknown(path, asked))
    found = recognise(path)
    fits = found in (asked, None) or (asked == "lengths" and found in ("azure", "vidur"))
    if not fits:
        raise TraceError(f"{path}: this looks like {found}, not {asked}; set format: {found}")
    return asked


def _unknown(path: Path, asked: str) -> str:
    names = ("auto", *READERS)
    close = get_close_matches(asked, names, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{path}: format must be one of {', '.join(names)}, not {asked!r}{hint}"


def _notes(name: str, path: Path, columns: list[str]) -> Iterator[str]:
    if "NumImages" in columns:
        yield "column NumImages is not read: images cost nothing beyond their tokens in ContextTokens"
    if name == "burstgpt":
        yield "rows with 0 tokens are failed requests and left out"
    elif name == "servegen":
        yield "clients are drawn afresh for each seed: ServeGen gives rates and distributions, no requests"
    elif name == "weka":
        yield (
            "sessions know no common clock, so all begin at 0; whatever models they name, one serves them"
        )
    elif name == "openai-batch" and openai_batch.estimates(path):
        yield (
            "prompts are taken for a token per 4 characters and answers for as long as max_tokens allows: "
            "the batch's output file has the lengths"
        )
