"""One run of a load tool: its requests, where the tool wrote them down, else the figures that it states."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import UserError
from simulator.metrics import Summary, summarise
from simulator.recorder import ITERATION_COLUMNS, REQUEST_COLUMNS
from simulator.run_tables import RunTables
from simulator.workloads.arrival import Arrival

COMPLETED, FAILED = 0, 2  # codes of the status column, see `metrics.STATUSES`
NS_PER_S = 1_000_000_000
LATEST_S = 9e9  # 64 bits hold it in ns; clocks count seconds since 1970
MOST_TOKENS = 2**31
LARGEST = 1e19  # no figure of a load tool comes near it


class MeasurementError(UserError):
    """A load tool's file is damaged, or lacks what it takes to compare."""


class Answer(NamedTuple):
    """One request as its client saw it, times in ns since any fixed moment.

    ``first_token_ns``, ``finished_ns``: -1 where it never came. ``reason``: why it failed.
    """

    start_ns: int
    prompt_tokens: int
    output_tokens: int
    first_token_ns: int
    finished_ns: int
    reason: str = ""


class NoLimits(NamedTuple):
    """What stands where a scenario states its SLO: a load tool's file knows none."""

    ttft_ms: None = None
    tpot_ms: None = None
    e2e_ms: None = None


class Source(NamedTuple):
    """What stands where a simulation names its cost profile."""

    name: str
    kind: str = "benchmark"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a load tool measured. ``stated`` holds the tool's own figures, under the names of a summary.

    ``tables``: its requests, if the file has them. ``timed``: whether it has their start times; without
    them all begin at 0, and the tool's own figures stand for what needs the time that the run took.
    """

    tool: str
    model: str
    stated: Summary
    tables: RunTables | None = None
    timed: bool = False
    notes: tuple[str, ...] = ()

    def summary(self) -> Summary:
        """The figures of this run, with the names and meanings of a simulation's; None: not known."""
        found = summarise(
            self.tables or run_tables([], ()),
            scenario_name=self.tool,
            seed=0,
            policy="",
            model=self.model,
            hardware="",
            profile=Source(self.tool),
            extrapolated=0.0,
            slo=NoLimits(),
            wall_s=0.0,
        )
        if self.tables is None or not self.timed:
            found["duration_s"] = None
            found["throughput"] = dict.fromkeys(found["throughput"])
        if self.tables is None:
            found["tokens"] = dict.fromkeys(found["tokens"])
        stated = self.stated if not self.timed else {}
        return _without_work(_overlaid(found, stated, keep=self.tables is not None))

    def arrivals(self) -> Iterator[Arrival]:
        """The requests that were answered, as a workload; those that failed have no length to replay."""
        if self.tables is None:
            return
        columns = self.tables.requests
        for code, start_ns, prompt, output in zip(
            *(
                columns[name].tolist()
                for name in ("status", "arrival_ns", "prompt_tokens", "output_tokens")
            ),
            strict=True,
        ):
            if code == COMPLETED and prompt and output:
                yield Arrival(start_ns, prompt, output, output)


def _overlaid(found: Summary, stated: Mapping[str, Any], *, keep: bool) -> Summary:
    """Stated figures laid over computed ones; ``keep``: only where nothing was computed."""
    for name, value in stated.items():
        if isinstance(value, Mapping):
            found[name] = _overlaid(dict(found.get(name) or {}), value, keep=keep)
        elif value is not None and not (keep and found.get(name)):
            found[name] = value
    return found


def _without_work(found: Summary) -> Summary:
    """Nobody saw what the server did: its batches and its memory are unknown, not zero."""
    found["iterations"] = None
    for name in ("batch", "padding_waste", "kv"):
        found[name] = dict.fromkeys(found[name])
    found["requests"]["preemptions"] = None
    found["tokens"]["cached"] = None
    return found


def run_tables(answers: Iterable[Answer], gaps_ns: Iterable[int]) -> RunTables:
    """Requests in order of their start, the first of them at 0; ``gaps_ns``: between tokens, pooled."""
    ordered = sorted(answers)
    first_ns = ordered[0].start_ns if ordered else 0
    rows = [_row(number, answer, first_ns) for number, answer in enumerate(ordered)]
    table = np.array(rows, np.int64).reshape(-1, len(REQUEST_COLUMNS))
    gap_ns = np.array(array("q", gaps_ns), np.int64)
    nothing: NDArray[np.int64] = np.empty(0, np.int64)
    return RunTables(
        requests={name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(REQUEST_COLUMNS)},
        reasons={number: answer.reason for number, answer in enumerate(ordered) if answer.reason},
        iterations=dict.fromkeys(ITERATION_COLUMNS, nothing),
        gap_ns=gap_ns,
        gap_rows=np.ones_like(gap_ns),
        kv_blocks=0,
    )


def _row(number: int, answer: Answer, first_ns: int) -> tuple[int, ...]:
    """A request in the order of `REQUEST_COLUMNS`."""
    ended = [-1 if time < 0 else time - first_ns for time in (answer.first_token_ns, answer.finished_ns)]
    status = FAILED if answer.reason else COMPLETED
    lengths = (answer.prompt_tokens, answer.output_tokens, answer.output_tokens)
    return (number, answer.start_ns - first_ns, *lengths, 0, status, -1, *ended, 0, 0)


def counted(completed: int | None, failed: int | None, unfinished: int = 0) -> Summary:
    """A summary's counts of requests."""
    done, lost = completed or 0, failed or 0
    return {
        "offered": done + lost + unfinished,
        "completed": done,
        "failed": lost,
        "unfinished": unfinished,
    }


def spread_ms(
    statistics: Mapping[str, object], names: Mapping[str, str], ms_per_unit: float
) -> dict[str, float]:
    """A latency's figures in ms; ``names`` says under which key a tool has which of ours."""
    found = {ours: number(statistics.get(theirs)) for ours, theirs in names.items()}
    return {ours: value * ms_per_unit for ours, value in found.items() if value is not None}


def number(value: object) -> float | None:
    """A number as JSON has it, infinite where none is that large; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < LARGEST else float("inf")


def ns(seconds: float, place: str) -> int:
    """A time or a duration in ns; ``place`` is where it stands."""
    if not abs(seconds) < LATEST_S:
        raise MeasurementError(f"{place}: a time must be below {LATEST_S:g} s, not {seconds:g} s")
    return round(seconds * NS_PER_S)


def tokens(length: float | None, place: str) -> int:
    """A length in tokens; 0 where there is none."""
    length = length or 0
    if not 0 <= length < MOST_TOKENS:
        raise MeasurementError(
            f"{place}: a length must be from 0 to {MOST_TOKENS - 1} tokens, not {length:g}"
        )
    return int(length)


def floats(value: object, place: str, length: int | None = None) -> Sequence[float]:
    """A list of numbers, of a given length where that is known."""
    if not isinstance(value, list) or not all(
        isinstance(one, int | float) and abs(one) < LARGEST for one in value
    ):
        raise MeasurementError(f"{place} must be a list of numbers (below {LARGEST:g}), not {value!r:.60}")
    if length is not None and len(value) != length:
        raise MeasurementError(
            f"{place} must hold {length} numbers like the lists beside it, not {len(value)}"
        )
    return value
