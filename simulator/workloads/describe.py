"""What a trace holds: counts, rates, burstiness, lengths and how much of its prompts repeat."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.engine.request import Content
from simulator.workloads.arrival import Arrival, whole_sessions
from simulator.workloads.arrivals import NS_PER_S
from simulator.workloads.traces.trace import Trace, open_trace

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

Ints = NDArray[np.int64]
Report = dict[str, Any]

MINUTE_S = 60
DISPERSION_WINDOWS_S = (1, 10, 60)
LONG_CONTEXT_TOKENS = 131_072
FEWEST_GAPS = 100  # between which a rate is judged
SLOWEST_PER_S, FASTEST_PER_S = 1e-3, 1e5
MOST_DRAWN = 1_000_000  # requests of a trace that goes on for as long as it is asked
ROW = np.dtype([("arrival_ns", "i8"), ("prompt", "i4"), ("output", "i4")])


@dataclass(slots=True)
class PrefixReuse:
    """What an unlimited cache of whole and partial blocks would save, filled while rows pass by."""

    blocks: int = 0
    reused_blocks: int = 0
    tokens: int = 0
    reused_tokens: int = 0
    tokens_per_id: int = 0
    _seen: set[int] = field(default_factory=set)

    def watch(self, rows: Iterable[Arrival]) -> Iterator[Arrival]:
        """The rows, unchanged."""
        for row in rows:
            if row.content is not None:
                self._count(row.content, row.prompt_tokens)
            yield row

    def _count(self, content: Content, prompt_tokens: int) -> None:
        """Ids are prefix-cumulative, so the known ones of a prompt are its first."""
        known = sum(map(self._seen.__contains__, content.ids))
        self._seen.update(content.ids)
        self.blocks += len(content.ids)
        self.reused_blocks += known
        self.tokens += prompt_tokens
        self.reused_tokens += min(known * content.tokens_per_id, prompt_tokens)
        self.tokens_per_id = content.tokens_per_id

    def report(self) -> Report | None:
        """Counts and shares; None if no request names its content."""
        if not self.blocks:
            return None
        return {
            "tokens_per_block": self.tokens_per_id,
            "blocks": self.blocks,
            "reused_blocks": self.reused_blocks,
            "reused_block_share": self.reused_blocks / self.blocks,
            "reused_token_share": self.reused_tokens / self.tokens,
        }


@dataclass(slots=True)
class SessionTally:
    """How sessions go on, filled while their beginnings pass by."""

    starts_ns: array[int] = field(default_factory=lambda: array("q"))
    turns: array[int] = field(default_factory=lambda: array("q"))
    thinks_ns: array[int] = field(default_factory=lambda: array("q"))

    def watch(self, rows: Iterable[Arrival]) -> Iterator[Arrival]:
        """The rows, unchanged."""
        for row in rows:
            self.starts_ns.append(row.arrival_ns)
            self.turns.append(1 + len(row.later))
            self.thinks_ns.extend(turn.think_ns for turn in row.later)
            yield row

    def report(self) -> Report | None:
        """Counts, turns per session and think times; None where no session has a second turn."""
        if not self.thinks_ns:
            return None
        return {
            "count": len(self.turns),
            "turns": length_statistics(np.array(self.turns)),
            "think_s": length_statistics(np.array(self.thinks_ns) / NS_PER_S),
        }


def describe(path: Path, format: str = "auto") -> Report:  # noqa: A002 - the name of the setting
    """Statistics of a whole trace; holds 16 bytes a row, and every block id where there are any.

    Of clients that are drawn, so many requests that figures settle. Arrivals are those of sessions.
    """
    trace = open_trace(path, format)
    reuse, tally = PrefixReuse(), SessionTally()
    arrivals: Iterator[Arrival] = islice(trace.rows(), MOST_DRAWN if trace.format == "servegen" else None)
    if trace.sessions:
        arrivals = whole_sessions(tally.watch(arrivals))
    rows = np.fromiter((row[:3] for row in reuse.watch(arrivals)), ROW)
    times_ns = np.array(tally.starts_ns) if trace.sessions else rows["arrival_ns"]
    return {
        "file": str(path),
        "format": trace.format,
        "requests": len(rows),
        "duration_s": float(times_ns[-1]) / NS_PER_S if trace.timed else None,
        "arrivals": arrival_statistics(times_ns) if trace.timed else None,
        "prompt_tokens": length_statistics(rows["prompt"]),
        "output_tokens": length_statistics(rows["output"]),
        "rank_correlation": rank_correlation(rows["prompt"], rows["output"]),
        "sessions": tally.report(),
        "prefix_reuse": reuse.report(),
        "notes": list(_notes(trace, rows, in_sessions=bool(tally.thinks_ns))),
    }


def arrival_statistics(times_ns: Ints) -> Report | None:
    """Rates and burstiness of arrival times in order; None if they span no time.

    `gap_cv` is the coefficient of variation of the gaps, `dispersion_Ns` the variance of the number of
    requests per whole window of N s over its mean (1 for Poisson).
    """
    gaps_s = np.diff(times_ns) / NS_PER_S
    if not gaps_s.any():
        return None
    statistics: Report = {
        "rate_per_s": len(gaps_s) / float(gaps_s.sum()),
        "peak_minute_rate_per_s": float(window_counts(times_ns, MINUTE_S, partial=True).max()) / MINUTE_S,
        "gap_cv": float(gaps_s.std() / gaps_s.mean()),
        "zero_gap_share": float((gaps_s == 0).mean()),
    }
    for window_s in DISPERSION_WINDOWS_S:
        statistics[f"dispersion_{window_s}s"] = dispersion(window_counts(times_ns, window_s))
    return statistics


def window_counts(times_ns: Ints, window_s: int, partial: bool = False) -> Ints:
    """Requests in each window from the first arrival on; the last, partial window only if asked for."""
    windows = int(times_ns[-1]) // (window_s * NS_PER_S)
    counts: Ints = np.bincount(times_ns // (window_s * NS_PER_S), minlength=windows + 1)
    return counts if partial else counts[:windows]


def dispersion(counts: Ints) -> float | None:
    """Variance over mean of counts; None for fewer than two windows or none occupied."""
    if len(counts) < 2 or not counts.any():
        return None
    return float(counts.var() / counts.mean())


def length_statistics(values: NDArray[Any]) -> Report:
    """Mean, percentiles (linear interpolation) and maximum."""
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99, "max": values.max().item()}


def rank_correlation(first: NDArray[np.int32], second: NDArray[np.int32]) -> float | None:
    """Spearman's correlation, equal values sharing their mean rank; None if one side is constant."""
    ranks = _mean_ranks(first), _mean_ranks(second)
    if not (ranks[0].std() and ranks[1].std()):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def _mean_ranks(values: NDArray[np.int32]) -> NDArray[np.float64]:
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    ranks: NDArray[np.float64] = (last - (sizes - 1) / 2)[group]
    return ranks


def _notes(trace: Trace, rows: NDArray[np.void], *, in_sessions: bool) -> Iterator[str]:
    yield from trace.notes
    left_out = trace.left_out()
    if left_out:
        yield f"{left_out:,} of {left_out + len(rows):,} rows are left out"
    if trace.format == "servegen" and len(rows) == MOST_DRAWN:
        yield f"described are the first {MOST_DRAWN:,} requests"
    if not trace.timed:
        yield "no arrival times: use it as lengths: {empirical: FILE} beside an arrival process"
    elif len(rows) > 1 and not in_sessions:
        yield from _tick_note(rows["arrival_ns"])
        yield from _unit_note(rows["arrival_ns"])
    longest = int((rows["prompt"].astype(np.int64) + rows["output"] > LONG_CONTEXT_TOKENS).sum())
    if longest:
        yield (
            f"prompt and output exceed {LONG_CONTEXT_TOKENS:,} tokens in {longest:,} of {len(rows):,} "
            "rows: most models reject them, unless max_prompt_tokens and max_output_tokens cut them"
        )


def _tick_note(times_ns: Ints) -> Iterator[str]:
    gaps_ns = np.diff(times_ns)
    zero_share = float((gaps_ns == 0).mean())
    if 0.5 < zero_share < 1:
        tick_s = float(np.median(gaps_ns[gaps_ns > 0])) / NS_PER_S
        yield (
            f"{zero_share:.1%} of the gaps are zero: times come in ticks of {tick_s:.3g} s, and replayed "
            "as they are, requests arrive in bursts that are not real; spread_ticks: true spreads them"
        )


def _unit_note(times_ns: Ints) -> Iterator[str]:
    """A service so slow or so fast that its times are more likely written in another unit."""
    gaps = len(times_ns) - 1
    rate_per_s = gaps * NS_PER_S / max(float(times_ns[-1] - times_ns[0]), 1.0)
    if gaps >= FEWEST_GAPS and not SLOWEST_PER_S < rate_per_s < FASTEST_PER_S and times_ns[-1]:
        yield f"{rate_per_s:.3g} requests/s is unlikely: are the times in the unit of the format?"


# --- for the terminal ---


def describe_view(report: Report) -> Group:
    """The report as tables and sentences for a terminal."""
    from rich.console import Group
    from rich.text import Text

    title = Text(f"{report['file']} ({report['format']}): {report['requests']:,} requests", style="bold")
    notes = [Text(f"note: {note}") for note in report["notes"]]
    return Group(title, _facts_table(report), _lengths_table(report), *notes)


def _lengths_table(report: Report) -> Table:
    from rich.table import Table

    table = Table("", box=None, pad_edge=False)
    statistics = ("mean", "p50", "p90", "p99", "max")
    for name in statistics:
        table.add_column(name, justify="right")
    sessions = report["sessions"] or {}
    for label, values in (
        ("prompt tokens", report["prompt_tokens"]),
        ("output tokens", report["output_tokens"]),
        ("turns of a session", sessions.get("turns")),
        ("think time, s", sessions.get("think_s")),
    ):
        if values is not None:
            table.add_row(label, *(f"{values[name]:,.0f}" for name in statistics))
    return table


def _facts_table(report: Report) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in (*_arrival_facts(report), *_content_facts(report)):
        table.add_row(name, value)
    return table


def _arrival_facts(report: Report) -> Iterator[tuple[str, str]]:
    arrivals = report["arrivals"]
    if report["duration_s"] is not None:
        yield "duration", f"{report['duration_s']:,.1f} s"
    if arrivals is None:
        return
    yield "rate", f"{arrivals['rate_per_s']:.3g}/s, peak minute {arrivals['peak_minute_rate_per_s']:.3g}/s"
    yield "gaps", f"coefficient of variation {arrivals['gap_cv']:.2f} (Poisson: 1)"
    windows = (
        f"{_number(arrivals[f'dispersion_{window_s}s'])} per {window_s} s"
        for window_s in DISPERSION_WINDOWS_S
    )
    yield "index of dispersion", ", ".join(windows) + " (Poisson: 1)"


def _content_facts(report: Report) -> Iterator[tuple[str, str]]:
    if report["sessions"] is not None:
        yield "sessions", f"{report['sessions']['count']:,}"
    yield "rank correlation of prompt and output", _number(report["rank_correlation"])
    reuse = report["prefix_reuse"]
    if reuse is not None:
        yield (
            "ideal prefix reuse",
            f"{reuse['reused_blocks']:,} of {reuse['blocks']:,} blocks of {reuse['tokens_per_block']} "
            f"tokens ({reuse['reused_block_share']:.1%}), {reuse['reused_token_share']:.1%} of all tokens",
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
