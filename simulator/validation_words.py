"""A validation in words: the same sentences and cells on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from simulator.measures import FACTOR
from simulator.summary_words import DASH, calibration, losses, profile_words, seconds
from simulator.validation import Repetition, Validation
from simulator.validation_composition import Composition, FirstDifference, Sides
from simulator.validation_errors import FigureError, cost_error, raw_cost_error

COLUMNS = ("live", "± spread", "twin", "error", "no drift", "live cost")
LEGEND = (
    "Errors are (twin - live) / live. Error: as it is. No drift: the twin's clock set to the machine's "
    "speed around each run. Live cost: iterations as dear as the live ones, so what is left is composition."
)
MARK = "!"  # beside an error that is too large
ITERATION_WORDS = {
    "prefills": "prompt chunks",
    "prefill_tokens": "prompt tokens",
    "prefill_pairs": "query-key pairs",
    "decodes": "decode rows",
    "context_tokens": "context tokens",
    "padding_tokens": "padding tokens",
    "preempted": "preempted",
}


class Line(NamedTuple):
    """A row of the table. ``failed``: its error is too large."""

    label: str
    cells: tuple[str, ...]
    failed: bool


def table_lines(found: Sequence[FigureError]) -> list[Line]:
    """Every figure that is not zero throughout."""
    return [_line(error) for error in found if any(error.live) or error.twin]


def _line(error: FigureError) -> Line:
    words = error.figure.words
    without_drift = signed(error.error_without_drift) + (f" {MARK}" if error.failed else "")
    cells = (
        words(error.live_median),
        share(error.spread),
        words(error.twin),
        signed(error.error),
        without_drift,
        signed(error.error_at_live_cost),
    )
    return Line(error.figure.label, cells, error.failed)


def signed(error: float | None) -> str:
    """An error in per cent with its sign; from ten times on as a factor."""
    if error is None:
        return DASH
    if error >= FACTOR - 1:
        return f"x{1 + error:,.0f}"
    return f"{_digits(error, '+')} %" if error else "0 %"


def share(spread: float | None) -> str:
    """A spread in per cent."""
    return DASH if spread is None else f"{_digits(spread)} %"


def _digits(part: float, sign: str = "") -> str:
    if abs(part) < 0.0005:
        return "0.0"
    return f"{100 * part:{sign},.0f}" if abs(part) >= 0.9995 else f"{100 * part:{sign}.1f}"


def headline(validation: Validation) -> str:
    """What was compared with what."""
    runs = len(validation.repetitions)
    live = validation.repetitions[0].live.summary
    scenario = validation.scenario
    return (
        f"{validation.model}, {scenario.engine.policy}: {live['requests']['offered']:,} requests, "
        f"{runs} live {'run' if runs == 1 else 'runs'} on {live['profile']['name']}, beside the twin "
        f"with profile {profile_words(validation.twin.summary)}; both with {scenario.engine.kv_blocks:,} "
        f"KV blocks and sequences of up to {scenario.engine.max_model_len:,} tokens."
    )


def verdict(found: Sequence[FigureError], max_error: float | None) -> str:
    """Whether the check passed."""
    if max_error is None:
        return "Nothing was checked; --max-error 0.05 checks."
    checked = [error for error in found if error.allowed is not None]
    failed = sum(error.failed for error in checked)
    limit = f"{100 * max_error:g} % (p99: twice that) or the live runs' own spread without drift"
    told = f"{_loosest(checked, max_error)}."
    if not failed:
        return f"PASSED: all {len(checked)} checked figures are within {limit}{told}"
    return f"FAILED: {failed} of {len(checked)} checked figures are off by more than {limit}{told}"


def _loosest(checked: Sequence[FigureError], max_error: float) -> str:
    """How far the live runs themselves have stretched a limit, if they have."""
    stretched = [error for error in checked if (error.allowed or 0.0) > max_error * error.figure.strictness]
    if not stretched:
        return ""
    loosest = max(stretched, key=lambda error: error.allowed or 0.0)
    return (
        f", which is the limit of {len(stretched)} of them: at most {share(loosest.allowed)}, of "
        f"{loosest.figure.label}"
    )


def failures(found: Sequence[FigureError]) -> Iterator[str]:
    """What is too far off, a line each."""
    for error in found:
        if error.failed:
            told = signed(error.error_without_drift)
            yield f"{error.figure.label} {told} without drift, allowed are {share(error.allowed)}"


def warnings(validation: Validation) -> list[str]:
    """What speaks against taking the errors at face value."""
    summary = validation.twin.summary
    lines = []
    if summary["profile"]["kind"] == "roofline" or summary["profile"]["extrapolated"]:
        lines.append(f"profile {profile_words(summary)}: {calibration(summary)}")
    lines += [f"live: {line}" for line in losses(validation.repetitions[0].live.summary)]
    unexplained = [
        one.composition.first_difference
        for one in validation.repetitions
        if one.composition.first_difference and not one.composition.first_difference.by_timing
    ]
    if unexplained:
        lines.append(
            f"composition: timing does not explain the difference at iteration {unexplained[0].iteration}: "
            "both sides had seen the same requests"
        )
    return lines


def drift_words(validation: Validation) -> str:
    """How fast the machine was around each run."""
    factors = ", ".join(f"{repetition.drift:.2f}" for repetition in validation.repetitions)
    if validation.drift_from == "profile":
        return f"took {factors} times as long for the reference iterations as when the profile was measured"
    return (
        f"took {factors} times this session's median for the reference iterations; the profile holds no "
        "time of them, so how fast the machine was when it was measured is not known"
    )


def cost_words(validation: Validation) -> Iterator[str]:
    """How well the cost model prices the live runs' own iterations."""
    repetitions = validation.repetitions
    costs = [repetition.cost for repetition in repetitions]
    raw = median(raw_cost_error(repetition) for repetition in repetitions)
    yield (
        f"{signed(median(map(cost_error, repetitions)))} without drift ({signed(raw)} with it): "
        f"iterations that took {seconds(median(cost.measured_ns for cost in costs) / 1e9)} are priced "
        f"at {seconds(median(cost.predicted_ns for cost in costs) / 1e9)}"
    )
    parts = ", ".join(_kinds(repetitions))
    between = median(cost.between_ns / cost.measured_ns if cost.measured_ns else 0.0 for cost in costs)
    yield f"by kind, with drift: {parts}; {share(between)} of the time lies between iterations"
    yield (
        f"a single iteration is off by {share(median(cost.typical_error for cost in costs))} (median), "
        f"{share(median(cost.p95_error for cost in costs))} (p95), with drift"
    )


def _kinds(repetitions: Sequence[Repetition]) -> Iterator[str]:
    names = dict.fromkeys(kind.kind for repetition in repetitions for kind in repetition.cost.kinds)
    for name in names:
        found = [kind for one in repetitions for kind in one.cost.kinds if kind.kind == name]
        measured, predicted = (
            sum(kind.measured_ns for kind in found),
            sum(kind.predicted_ns for kind in found),
        )
        yield f"{name} {signed(predicted / measured - 1 if measured else None)}"


def composition_words(validation: Validation) -> Iterator[str]:
    """How far each run and its twin did the same; runs alike share a line."""
    told: dict[str, list[str]] = {}
    for number, repetition in enumerate(validation.repetitions, start=1):
        told.setdefault(_composition(repetition.composition), []).append(str(number))
    for words, runs in told.items():
        if len(told) == 1 and len(runs) > 1:
            yield f"every run: {words}"
        else:
            yield f"run {', '.join(runs)}: {words}"


def _composition(composition: Composition) -> str:
    first = composition.first_difference
    if first is None:
        return f"identical in all {composition.live_iterations:,} iterations"
    return (
        f"identical in the first {composition.identical_iterations:,} of {composition.live_iterations:,} "
        f"live and {composition.twin_iterations:,} simulated iterations; "
        f"{_difference(first)}"
    )


def _difference(first: FirstDifference) -> str:
    what = ", ".join(_field(name, sides) for name, sides in first.fields.items()) or "only one side has it"
    cause = (
        f"requests seen by then: {first.arrived.live:,.0f} live, {first.arrived.twin:,.0f} twin"
        if first.by_timing
        else f"both had seen {first.arrived.live:,.0f} of the requests"
    )
    return (
        f"iteration {first.iteration:,} (live at {first.start_s.live:.4f} s, twin at "
        f"{first.start_s.twin:.4f} s) is the first to differ: {what}; {cause}"
    )


def _field(name: str, sides: Sides) -> str:
    return f"{ITERATION_WORDS[name]} {sides.live:,.0f} live, {sides.twin:,.0f} twin"
