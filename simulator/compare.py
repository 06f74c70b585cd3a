"""Runs side by side: alternatives of one scenario under the same requests, or results kept in folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.alternatives import Alternative
from simulator.charts import latency_quantiles_ms
from simulator.comparison import Comparison, Curve, Outcome
from simulator.errors import UserError
from simulator.measured.read import read_measurements
from simulator.measures import measured
from simulator.metrics import Summary
from simulator.results import Results, read_results
from simulator.run_tables import RunTables
from simulator.scenario import Scenario
from simulator.simulation import Simulation, simulate

CURVES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
SHARES = np.concatenate((np.linspace(0, 0.99, 199), np.linspace(0.99, 1.0, 52)[1:]))  # finer in the tail
STATISTIC_SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "max": 1.0}
STEPS_PER_RUN = 1000  # of the progress bar

Progress = Callable[[int, int | None], None]
Keep = Callable[[int, Alternative, Scenario, Simulation], None]


def compare_alternatives(
    alternatives: Sequence[Alternative],
    *,
    folder: Path = Path(),
    repeats: int = 1,
    progress: Progress | None = None,
    keep: Keep | None = None,
) -> Comparison:
    """Simulate every alternative with the same ``repeats`` seeds, one run after the other.

    ``folder``: where relative paths start. ``keep`` is given each run as it ends, with the number of its
    alternative, counted from 1. Raises `UserError` where no alternative can run.
    """
    outcomes = []
    for number, alternative in enumerate(alternatives):
        outcome = Outcome(alternative.name, alternative.values, reason=alternative.reason)
        if alternative.scenario is not None:
            outcome = _run(
                number + 1, alternative, folder, repeats, _part(progress, number, len(alternatives)), keep
            )
        outcomes.append(outcome)
    scenarios = [alternative.scenario for alternative in alternatives if alternative.scenario]
    if not any(outcome.summaries for outcome in outcomes):
        raise UserError("\n".join(dict.fromkeys(_reasons(outcomes))))
    return Comparison(scenarios[0].name, tuple(outcomes), repeats, scenarios[0].seed)


def _reasons(outcomes: Iterable[Outcome]) -> list[str]:
    """Why none could run: a reason of all once, others with the alternative's name."""
    reasons = [(outcome.name, line) for outcome in outcomes for line in outcome.reason.splitlines()]
    shared = len({line for _, line in reasons}) == 1
    return [line if shared else f"{name}: {line}" for name, line in reasons]


def _run(
    number: int,
    alternative: Alternative,
    folder: Path,
    repeats: int,
    progress: Callable[[float], None],
    keep: Keep | None,
) -> Outcome:
    """Every replication of an alternative; the first run that cannot be made is its reason."""
    assert alternative.scenario is not None
    summaries: list[Summary] = []
    curves: dict[str, Curve] = {}
    notes = alternative.notes
    for replication in range(repeats):
        seeded = alternative.scenario.model_copy(update={"seed": alternative.scenario.seed + replication})
        told = _within(progress, replication, repeats)
        try:
            simulation = simulate(seeded, folder=folder, progress=told)
        except UserError as error:
            return Outcome(alternative.name, alternative.values, notes=notes, reason=str(error))
        told(1, 1)
        if keep is not None:
            keep(number, alternative, seeded, simulation)
        if not summaries:
            notes = (*notes, *simulation.notes)
            curves = curves_of(simulation.tables)
        summaries.append(simulation.summary)
    return Outcome(alternative.name, alternative.values, tuple(summaries), curves, notes)


def _part(progress: Progress | None, done: int, parts: int) -> Callable[[float], None]:
    """Progress of one alternative, as a share, within that of all."""

    def advance(share: float) -> None:
        if progress is not None:
            progress(round(STEPS_PER_RUN * (done + share)), STEPS_PER_RUN * parts)

    return advance


def _within(progress: Callable[[float], None], done: int, repeats: int) -> Progress:
    def advance(completed: int, total: int | None) -> None:
        progress((done + (completed / total if total else 0)) / repeats)

    return advance


def curves_of(tables: RunTables) -> dict[str, Curve]:
    """The latency distributions of a run, those that nobody saw or that are zero throughout left out."""
    found = {name: latency_quantiles_ms(tables, name, SHARES) for name in CURVES}
    shares = SHARES.tolist()
    return {
        name: Curve(shares, values.tolist()) for name, values in found.items() if values.size and values[-1]
    }


def compare_results(paths: Sequence[Path]) -> Comparison:
    """Kept results: folders, as ``--output`` wrote them, and files of load tools, with a run or several."""
    found = [kept for path in paths for kept in _kept(path)]
    outcomes = tuple(kept.outcome for kept in found)
    titles = list(dict.fromkeys(str(kept.outcome.summaries[0].get("scenario", "")) for kept in found))
    notes = [note for kept in found if (note := _other_requests(kept, found[0]))]
    return Comparison(" / ".join(titles), outcomes, 1, None, tuple(notes))


class _Kept(NamedTuple):
    """One run that was kept, and its requests where they were kept too."""

    outcome: Outcome
    requests: Mapping[str, NDArray[np.int64]] | None


def _kept(path: Path) -> list[_Kept]:
    if not path.is_dir():
        return _measured(path)
    results = read_results(path)
    outcome = Outcome(str(path), summaries=(results.summary,), curves=_kept_curves(results))
    return [_Kept(outcome, results.requests)]


def _measured(path: Path) -> list[_Kept]:
    """Every run of a load tool's file."""
    runs = read_measurements(path)
    kept = []
    for number, run in enumerate(runs, start=1):
        name = str(path) if len(runs) == 1 else f"{path} #{number}"
        summary = run.summary()
        curves = curves_of(run.tables) if run.tables is not None else _stated_curves(summary, CURVES)
        outcome = Outcome(name, summaries=(summary,), curves=curves, notes=run.notes)
        kept.append(_Kept(outcome, run.tables.requests if run.tables is not None and run.timed else None))
    return kept


def _kept_curves(results: Results) -> dict[str, Curve]:
    """Curves of kept results; they hold no single gaps between tokens, only their percentiles."""
    nothing = np.empty(0, np.int64)
    tables = RunTables(results.requests, results.reasons, results.iterations, nothing, nothing, 0)
    curves = curves_of(tables) | _stated_curves(results.summary, ("itl_ms",))
    return {name: curves[name] for name in CURVES if name in curves}


def _stated_curves(summary: Summary, names: Sequence[str]) -> dict[str, Curve]:
    """Latency distributions as far as a summary tells them: a few percentiles."""
    curves = {}
    for name in names:
        told = [(share, measured(summary, f"{name}.{key}")) for key, share in STATISTIC_SHARES.items()]
        known = [(share, value) for share, value in told if value is not None]
        if len(known) > 1 and known[-1][1]:
            curves[name] = Curve([share for share, _ in known], [value for _, value in known])
    return curves


def _other_requests(kept: _Kept, first: _Kept) -> str:
    """A note where two runs were not offered the same requests, so that chance plays a part."""
    name, other = kept.outcome.name, first.outcome.name
    if kept.requests is None or first.requests is None:
        return "" if kept is first else f"whether {name} was offered the requests of {other} is not known"
    same = {
        column: np.array_equal(kept.requests[column], first.requests[column])
        for column in ("prompt_tokens", "output_limit", "arrival_ns")
    }
    if not (same["prompt_tokens"] and same["output_limit"]):
        return f"{name} was offered other requests than {other}, so differences include those between them"
    return "" if same["arrival_ns"] else f"{name} was offered the requests of {other} at other times"
