"""The errors of a validation, figure by figure, which of them are too large, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, NamedTuple

from simulator.measures import measured, whole
from simulator.summary_words import milliseconds, seconds, three_digits
from simulator.validation import Repetition, Run, Validation
from simulator.validation_composition import Composition, FirstDifference

TAIL = 2.0  # so many times as much error is allowed in the 99th percentile of a few hundred requests


class Figure(NamedTuple):
    """One figure of a summary. ``strictness``: share of ``--max-error`` that is allowed; 0: unchecked."""

    key: str
    label: str
    words: Callable[[float | None], str]
    strictness: float


FIGURES = (
    *(
        Figure(f"{latency}_ms.{statistic}", f"{latency.upper()} {statistic}", milliseconds, strictness)
        for latency, checked in (("ttft", 1.0), ("tpot", 1.0), ("itl", 0.0), ("e2e", 1.0))
        for statistic, strictness in (
            ("mean", checked),
            ("p50", checked),
            ("p90", checked),
            ("p99", TAIL * checked),
        )
    ),
    Figure("throughput.requests_per_s", "Requests/s", three_digits, 1.0),
    Figure("throughput.output_tokens_per_s", "Output tokens/s", three_digits, 1.0),
    Figure("duration_s", "Duration", seconds, 0.0),
    Figure("iterations", "Iterations", whole, 0.0),
    Figure("batch.mean_rows", "Rows, mean", three_digits, 0.0),
    Figure("requests.preemptions", "Preemptions", whole, 0.0),
)


@dataclass(frozen=True, slots=True)
class FigureError:
    """One figure, live and simulated. Errors are (twin - live) / live, medians over the live runs.

    ``live``: of each run. ``spread``: the farthest of the live runs from their median, relative to it.
    ``spread_without_drift``: the same of live over twin, each at its run's speed. ``allowed``: the largest
    ``error_without_drift`` that passes; None: not checked. None elsewhere: undefined on a side.
    """

    figure: Figure
    live: tuple[float, ...]
    twin: float | None
    error: float | None
    error_without_drift: float | None
    error_at_live_cost: float | None
    spread: float | None
    spread_without_drift: float | None
    allowed: float | None

    @property
    def live_median(self) -> float | None:
        """The middle one of the live runs."""
        return median(self.live) if self.live else None

    @property
    def failed(self) -> bool:
        """Whether the error is larger than what is allowed."""
        if self.allowed is None or self.error_without_drift is None:
            return False
        return abs(self.error_without_drift) > self.allowed


def errors(validation: Validation, max_error: float | None = None) -> list[FigureError]:
    """Every figure that is defined on some side. ``max_error``: None checks nothing."""
    found = [_error(figure, validation, max_error) for figure in FIGURES]
    return [error for error in found if error.live or error.twin is not None]


def _error(figure: Figure, validation: Validation, max_error: float | None) -> FigureError:
    repetitions = validation.repetitions
    live = _values(figure, [repetition.live for repetition in repetitions])
    twin = measured(validation.twin.summary, figure.key)
    at_drift = _values(figure, [repetition.at_drift for repetition in repetitions])
    spread_without = _spread(_ratios(live, at_drift))
    allowed = None
    if max_error is not None and figure.strictness:
        allowed = max(max_error * figure.strictness, spread_without or 0.0)
    return FigureError(
        figure,
        tuple(live),
        twin,
        _relative(twin, median(live) if live else None),
        _median_error(at_drift, live),
        _median_error(_values(figure, [repetition.at_cost for repetition in repetitions]), live),
        _spread(live),
        spread_without,
        allowed,
    )


def _values(figure: Figure, runs: Sequence[Run]) -> list[float]:
    """The figure in every run; none at all where one of them lacks it."""
    found = [measured(run.summary, figure.key) for run in runs]
    values = [value for value in found if value is not None]
    return values if len(values) == len(found) else []


def _relative(twin: float | None, live: float | None) -> float | None:
    if twin is None or live is None:
        return None
    if not live:
        return None if twin else 0.0
    return twin / live - 1


def _median_error(twins: Sequence[float], live: Sequence[float]) -> float | None:
    if not twins or not live:
        return None
    found = [_relative(twin, value) for twin, value in zip(twins, live, strict=True)]
    defined = [error for error in found if error is not None]
    return median(defined) if len(defined) == len(found) else None


def _ratios(live: Sequence[float], twins: Sequence[float]) -> list[float]:
    if not live or not twins or not all(twins):
        return []
    return [value / twin for value, twin in zip(live, twins, strict=True)]


def _spread(values: Sequence[float]) -> float | None:
    if not values:
        return None
    middle = median(values)
    farthest = max(abs(value - middle) for value in values)
    return farthest / middle if middle else None if farthest else 0.0


def as_json(
    validation: Validation, found: Sequence[FigureError], max_error: float | None
) -> dict[str, Any]:
    """The validation for programs; docs/validate.md describes every key."""
    scenario = validation.scenario
    return {
        "scenario": scenario.name,
        "seed": scenario.seed,
        "policy": scenario.engine.policy,
        "model": validation.model,
        "device": validation.repetitions[0].live.summary["profile"]["name"],
        "profile": validation.twin.summary["profile"],
        "kv_blocks": scenario.engine.kv_blocks,
        "max_model_len": scenario.engine.max_model_len,
        "repeats": len(validation.repetitions),
        "max_error": max_error,
        "passed": None if max_error is None else not any(error.failed for error in found),
        "metrics": {error.figure.key: _figure_json(error) for error in found},
        "drift": {
            "from": validation.drift_from,
            "of_runs": [repetition.drift for repetition in validation.repetitions],
            "recorded_ns": list(validation.profile.reference_ns) or None,
            "rounds_ns": [list(times) for times in validation.reference_ns],
        },
        "iteration_cost": [_cost_json(repetition) for repetition in validation.repetitions],
        "composition": [_composition_json(one.composition) for one in validation.repetitions],
        "summaries": {
            "twin": validation.twin.summary,
            "live": [repetition.live.summary for repetition in validation.repetitions],
        },
    }


def _figure_json(error: FigureError) -> dict[str, Any]:
    return {
        "live": list(error.live),
        "live_median": error.live_median,
        "live_spread": error.spread,
        "live_spread_without_drift": error.spread_without_drift,
        "twin": error.twin,
        "error": error.error,
        "error_without_drift": error.error_without_drift,
        "error_at_live_cost": error.error_at_live_cost,
        "allowed": error.allowed,
        "failed": error.failed,
    }


def _cost_json(repetition: Repetition) -> dict[str, Any]:
    cost = repetition.cost
    return {
        "measured_s": cost.measured_ns / 1e9,
        "predicted_s": cost.predicted_ns / 1e9,
        "between_iterations_s": cost.between_ns / 1e9,
        "error": raw_cost_error(repetition),
        "error_without_drift": cost_error(repetition),
        "single_iteration_error": {"median": cost.typical_error, "p95": cost.p95_error},
        "kinds": [asdict(kind) for kind in cost.kinds],
    }


def raw_cost_error(repetition: Repetition) -> float:
    """Error of the cost of a live run's iterations, as the machine was."""
    return 1 / repetition.cost.ratio - 1


def cost_error(repetition: Repetition) -> float:
    """Error of the cost of a live run's iterations on a machine as slow as it was around that run."""
    return repetition.drift / repetition.cost.ratio - 1


def _composition_json(composition: Composition) -> dict[str, Any]:
    first = composition.first_difference
    return {
        "identical": first is None,
        "live_iterations": composition.live_iterations,
        "twin_iterations": composition.twin_iterations,
        "identical_iterations": composition.identical_iterations,
        "first_difference": None if first is None else _difference_json(first),
    }


def _difference_json(first: FirstDifference) -> dict[str, Any]:
    return {
        "iteration": first.iteration,
        "start_s": first.start_s._asdict(),
        "arrived": first.arrived._asdict(),
        "by_timing": first.by_timing,
        "fields": {name: sides._asdict() for name, sides in first.fields.items()},
    }
