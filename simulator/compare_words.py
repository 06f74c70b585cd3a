"""A comparison in words: the same sentences and cells on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from simulator.comparison import Cell, Comparison, Outcome
from simulator.measures import MEASURES, Measure, measured
from simulator.paired import CONFIDENCE
from simulator.summary_words import calibration, losses, milliseconds, profile_words, seconds, trusted

MARK = "*"  # beside the best figure of a row


class Words(NamedTuple):
    """One cell: the figure, whether it is the best of its row, and its difference to the first."""

    figure: str
    best: bool
    difference: str


def table_rows(comparison: Comparison) -> list[tuple[str, list[Words]]]:
    """Labels and cells; figures that are undefined or zero for everyone are left out."""
    rows = []
    for measure in MEASURES:
        cells = comparison.cells(measure)
        if any(cell.mean for cell in cells):
            rows.append((measure.label, [_words(measure, cell, cells[0]) for cell in cells]))
    return rows


def _words(measure: Measure, cell: Cell, first: Cell) -> Words:
    # A latency of zero means that answers come all at once: nothing to hold against others.
    comparable = cell.mean or measure.words is not milliseconds
    difference = measure.difference_words(cell.difference, first.mean) if comparable else ""
    return Words(measure.words(cell.mean), cell.best, difference)


def headline(comparison: Comparison) -> str:
    """What was compared with what, and under which load."""
    ran, everyone = len(comparison.ran), len(comparison.outcomes)
    told = f"{ran} of {everyone} alternatives" if ran < everyone else f"{everyone} alternatives"
    first = comparison.ran[0]
    load = "" if comparison.seed is None else f" under the same random numbers ({_load(comparison)})"
    marks = f"Differences are to {first.name}; {MARK} marks the best of a row."
    return f"{told}{load}. {marks}{_certainty(comparison)}"


def _load(comparison: Comparison) -> str:
    seed, last = comparison.seed or 0, (comparison.seed or 0) + comparison.repeats - 1
    seeds = f"seed {seed}" if seed == last else f"seeds {seed} to {last}"
    offered = {outcome.summaries[0]["requests"]["offered"] for outcome in comparison.ran}
    if len(offered) > 1:
        return seeds
    requests = offered.pop()
    return f"{seeds}; {requests:,} {'request' if requests == 1 else 'requests'}"


def _certainty(comparison: Comparison) -> str:
    if comparison.repeats == 1:
        return ""
    return (
        f" Figures are means over {comparison.repeats} runs, ± is half the {CONFIDENCE:.0%} confidence "
        "interval of the paired difference."
    )


def failures(comparison: Comparison) -> list[str]:
    """Those that cannot run, each with its reason."""
    return [
        f"{outcome.name} cannot run: {line}"
        for outcome in comparison.outcomes
        if not outcome.summaries
        for line in outcome.reason.splitlines()
    ]


def warnings(comparison: Comparison) -> list[str]:
    """What speaks against taking the figures at face value, once for all that it is about."""
    return _grouped(comparison, _doubts)


def notes(comparison: Comparison) -> list[str]:
    """What one should know, once for all that it is about."""
    return [*comparison.notes, *_grouped(comparison, lambda outcome: outcome.notes)]


def _doubts(outcome: Outcome) -> Iterable[str]:
    summary = outcome.summaries[0]
    profile = f"profile {profile_words(summary)}"
    if summary["profile"]["kind"] == "roofline":
        yield f"{profile}: {calibration(summary)}"
    elif not trusted(summary):
        yield f"{profile}: the share of the time in row Extrapolated is beyond what was measured"
    yield from losses(summary)


def _grouped(comparison: Comparison, facts: Callable[[Outcome], Iterable[str]]) -> list[str]:
    names: dict[str, list[str]] = {}
    for outcome in comparison.ran:
        for fact in dict.fromkeys(facts(outcome)):
            names.setdefault(fact, []).append(outcome.name)
    everyone = len(comparison.ran)
    return [
        fact if len(about) == everyone else f"{', '.join(about)}: {fact}" for fact, about in names.items()
    ]


def speed(comparison: Comparison) -> str:
    """How many runs there were and how long they took."""
    summaries = [summary for outcome in comparison.ran for summary in outcome.summaries]
    wall_s = sum(measured(summary, "simulation.wall_s") or 0.0 for summary in summaries)
    return f"{len(summaries)} {'run' if len(summaries) == 1 else 'runs'} in {seconds(wall_s)}"
