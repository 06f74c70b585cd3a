"""Multi-objective search where a grid would be too large: NSGA-II chooses which points to try.

The sampler is seeded and learns of a generation only when all of it is done, so the trials depend neither
on the number of workers nor on their speed. A search that resumes walks the same way again and finds what
it did under the addresses of its points; no state of the sampler is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulator.extras import needing
from simulator.sweeps.axes import Axis
from simulator.sweeps.front import check_prices, score, slo_shortfall
from simulator.sweeps.points import refuse_hopeless

if TYPE_CHECKING:
    from simulator.sweeps.sweep import Plan, Run

GENERATION = 20
BEYOND = 1e9  # above every objective: a point that meets the SLO breeds before any that does not
DIGITS = 6  # of a number chosen from a span


def search(plan: Plan, run: Run, progress: Callable[[int, int | None], None] | None) -> None:
    """Try ``plan.trials`` points, generation by generation, each from the best of those before."""
    assert plan.trials is not None
    study, distributions = _study(plan)
    tried = 0
    while tried < plan.trials:
        trials = [study.ask(distributions) for _ in range(min(GENERATION, plan.trials - tried))]
        points = plan.question.points(_values(trial.params) for trial in trials)
        if not tried:
            refuse_hopeless(points)
        check_prices(plan.prices, [point.scenario for point in points if point.scenario])
        run.add(points, progress and _counted_on(progress, tried, plan.trials))
        for trial, point in zip(trials, points, strict=True):
            figures = run.figures(point, plan.prices)
            slo = point.scenario.slo if point.scenario else None
            _tell(study, trial, _constrained(score(figures, plan.objectives), slo_shortfall(figures, slo)))
        tried += len(trials)


def _study(plan: Plan) -> tuple[Any, dict[str, Any]]:
    with needing(("optuna",), "--search needs optuna: pip install 'servetwin[search]'"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.NSGAIISampler(population_size=GENERATION, seed=plan.question.seed or 0)
    study = optuna.create_study(directions=["minimize"] * len(plan.objectives), sampler=sampler)
    return study, {axis.key: _distribution(optuna.distributions, axis) for axis in plan.axes}


def _distribution(kinds: Any, axis: Axis) -> Any:
    if axis.span is None:
        return kinds.CategoricalDistribution(axis.values)
    low, high, whole, log = axis.span
    if whole:
        return kinds.IntDistribution(int(low), int(high), log=log)
    return kinds.FloatDistribution(low, high, log=log)


def _values(parameters: dict[str, Any]) -> dict[str, str]:
    """What the sampler chose, as it would be written."""
    return {
        key: f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)
        for key, value in parameters.items()
    }


def _constrained(scores: tuple[float, ...] | None, shortfall: float | None) -> tuple[float, ...] | None:
    """Scores that every point which meets the SLO beats, and of two that miss it the one that misses less.

    Constrained domination, as Deb et al. 2002 (NSGA-II) define it.
    """
    if scores is None or shortfall is None or shortfall <= 0:
        return scores
    return tuple(BEYOND * (1 + shortfall) + value for value in scores)


def _tell(study: Any, trial: Any, scores: tuple[float, ...] | None) -> None:
    """A point that cannot be compared takes no part in breeding the next ones."""
    if scores is not None:
        study.tell(trial, scores)
        return
    from optuna.trial import TrialState

    study.tell(trial, state=TrialState.FAIL)


def _counted_on(
    progress: Callable[[int, int | None], None], before: int, total: int
) -> Callable[[int, int], None]:
    return lambda done, _missing: progress(before + done, total)
