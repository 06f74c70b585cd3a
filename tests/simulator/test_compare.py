"""Alternatives under the same random numbers, and kept results, side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.alternatives import Alternative, read_alternatives
from simulator.compare import compare_alternatives, compare_results
from simulator.compare_charts import Point, frontier
from simulator.comparison import Comparison, Outcome, as_json
from simulator.errors import UserError
from simulator.measures import MEASURES, Measure
from simulator.policies import POLICIES
from simulator.results import write_results
from simulator.run_tables import RunTables
from simulator.scenario import Scenario
from simulator.simulation import Simulation
from simulator.summary_words import milliseconds, three_digits
from tests.simulator.run_examples import MS, random_run, run_of, summary_of

SCENARIO = """\
name: a few requests
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
profile: roofline
engine: {max_model_len: 4096}
workload:
  arrivals: {process: poisson, rate_per_s: 8}
  lengths: {uniform: {prompt: [10, 500], output: [1, 30]}}
  requests: 40
"""
RATE, TTFT = MEASURES[0], next(measure for measure in MEASURES if measure.key == "ttft_ms.p99")


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("x.yaml")
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def kept_runs(alternatives: list[Alternative], repeats: int = 1) -> tuple[Comparison, list[Simulation]]:
    """A comparison and every single run behind it."""
    runs: list[Simulation] = []

    def keep(_number: int, _one: Alternative, _scenario: Scenario, simulation: Simulation) -> None:
        runs.append(simulation)

    return compare_alternatives(alternatives, repeats=repeats, keep=keep), runs


def test_every_policy_is_offered_the_same_requests(scenario: Path) -> None:
    alternatives = read_alternatives(scenario, [f"engine.policy={','.join(POLICIES)}"])
    _, runs = kept_runs(alternatives, repeats=2)
    first, second = runs[0].tables.requests, runs[1].tables.requests
    columns = ("arrival_ns", "prompt_tokens", "output_limit")
    for run, expected in zip(runs, [first, second] * len(POLICIES), strict=True):
        for column in columns:
            assert np.array_equal(run.tables.requests[column], expected[column])
    assert not np.array_equal(first["arrival_ns"], second["arrival_ns"]), "seeds are independent"


@settings(max_examples=8, deadline=None)
@given(policy=st.sampled_from(list(POLICIES)), seed=st.integers(0, 2**40), repeats=st.integers(1, 3))
def test_an_alternative_does_not_differ_from_itself(
    tmp_path_factory: pytest.TempPathFactory, policy: str, seed: int, repeats: int
) -> None:
    path = tmp_path_factory.mktemp("itself") / "x.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    comparison = compare_alternatives(
        read_alternatives(path, [f"engine.policy={policy},{policy}"], seed=seed), repeats=repeats
    )
    for measure in MEASURES:
        first, second = comparison.cells(measure)
        assert first.mean == second.mean
        assert first.difference is None
        assert (first.best, second.best) == (False, False)
        if second.mean is not None:
            assert second.difference == (0.0, None if repeats == 1 else 0.0)
            assert measure.difference_words(second.difference, first.mean) == "="


def test_replications_are_paired_by_seed(scenario: Path) -> None:
    alternatives = read_alternatives(scenario, ["engine.policy=vllm-v1,static"], seed=5)
    comparison, runs = kept_runs(alternatives, repeats=3)
    assert [run.summary["seed"] for run in runs] == [5, 6, 7, 5, 6, 7]
    first, second = comparison.cells(TTFT)
    values = [run.summary["ttft_ms"]["p99"] for run in runs]
    differences = np.subtract(values[3:], values[:3])
    assert first.mean == pytest.approx(np.mean(values[:3]))
    assert second.difference is not None
    assert second.difference.mean == pytest.approx(differences.mean())
    # Student's t with 2 degrees of freedom at 0.975 is 4.303 (NIST/SEMATECH e-Handbook, 1.3.6.7.2)
    assert second.difference.half_width == pytest.approx(4.303 * differences.std(ddof=1) / np.sqrt(3))


def test_what_cannot_run_has_a_reason_and_the_others_figures(scenario: Path) -> None:
    """70 billion parameters in bfloat16 are 140 GB; an RTX 4090 has 24."""
    alternatives = read_alternatives(
        scenario, ["hardware=rtx-4090,h100-sxm"], ["model=meta-llama/Llama-2-70b-hf", "parallel.tensor=4"]
    )
    comparison = compare_alternatives(alternatives)
    small, large = comparison.outcomes
    assert small.reason.startswith("meta-llama/Llama-2-70b-hf does not fit on rtx-4090")
    assert comparison.ran == (large,)
    assert [cell.difference for cell in comparison.cells(RATE)] == [None]
    told = as_json(comparison, MEASURES)["alternatives"]
    assert [one["reason"] is None for one in told] == [False, True]
    assert told[0]["measures"] == {}
    assert told[1]["measures"]["requests.completed"]["mean"] == 40


def test_if_none_can_run_the_reasons_are_an_error(scenario: Path) -> None:
    wrong = ["model=meta-llama/Llama-2-70b-hf"]
    alternatives = read_alternatives(scenario, ["hardware=rtx-4090,a10g"], wrong)
    with pytest.raises(
        UserError, match=r"(?s)^rtx-4090: .* does not fit on rtx-4090.*\na10g: .*"
    ) as caught:
        compare_alternatives(alternatives)
    assert len(str(caught.value).splitlines()) == 2


def test_progress_only_rises_and_ends_with_the_last_run(scenario: Path) -> None:
    told: list[tuple[int, int | None]] = []
    alternatives = read_alternatives(scenario, ["engine.max_num_seqs=1,2,3"])
    compare_alternatives(alternatives, repeats=2, progress=lambda *step: told.append(step))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {total for _, total in told} == {3000}
    assert told[-1][0] == 3000


def folder_of(name: str, tables: RunTables) -> Path:
    write_results(Path(name), "name: chat\n", summary_of(tables), tables)
    return Path(name)


@pytest.mark.usefixtures("scenario")
def test_kept_results_compare_like_fresh_ones() -> None:
    tables = random_run(50)
    comparison = compare_results([folder_of("a", tables), folder_of("b", random_run(50)), Path("a")])
    assert [outcome.name for outcome in comparison.outcomes] == ["a", "b", "a"]
    assert comparison.notes == ()
    assert comparison.cells(TTFT)[2].mean == summary_of(tables)["ttft_ms"]["p99"]
    curves = comparison.ran[0].curves
    assert list(curves) == ["ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"]
    itl = summary_of(tables)["itl_ms"]
    assert curves["itl_ms"].values_ms == [itl[name] for name in ("p50", "p90", "p95", "p99", "max")]


@pytest.mark.usefixtures("scenario")
def test_kept_results_of_other_requests_say_so() -> None:
    one, later = ({"prompt_tokens": 7, "finished_ns": MS}, {"arrival_ns": 5, "finished_ns": MS})
    folders = [
        folder_of(name, run_of([given])) for name, given in zip("abc", ({}, one, later), strict=True)
    ]
    assert compare_results(folders).notes == (
        "b was offered other requests than a, so differences include those between them",
        "c was offered the requests of a at other times",
    )


def outcome_of(name: str, **facts: float | None) -> Outcome:
    return Outcome(name, summaries=({"figure": facts},))


@given(values=st.lists(st.none() | st.floats(-1e9, 1e9), min_size=1, max_size=6))
def test_the_best_is_beaten_by_none_and_beats_some(values: list[float | None]) -> None:
    for better in ("higher", "lower", "neither"):
        measure = Measure("figure.x", "X", better, three_digits)  # type: ignore[arg-type]
        comparison = Comparison("", tuple(outcome_of("", x=value) for value in values), 1, 0)
        cells = comparison.cells(measure)
        known = [value for value in values if value is not None]
        best = {"higher": max, "lower": min}.get(better)
        for cell, value in zip(cells, values, strict=True):
            assert cell.mean == value
            expected = (
                best is not None and value is not None and value == best(known) and len(set(known)) > 1
            )
            assert cell.best == expected


def test_no_latency_at_all_is_not_the_best_latency() -> None:
    """TPOT is 0 where an answer comes all at once."""
    measure = Measure("figure.x", "TPOT", "lower", milliseconds)
    comparison = Comparison("", tuple(outcome_of("", x=value) for value in (0.0, 5.0, 7.0)), 1, 0)
    assert [cell.best for cell in comparison.cells(measure)] == [False, True, False]


points = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=9)


@given(points)
def test_the_frontier_is_what_no_other_alternative_beats(found: list[tuple[int, int]]) -> None:
    everyone = [Point(str(place), "", rate, latency) for place, (rate, latency) in enumerate(found)]
    best = {(point.tokens_per_s, point.latency_ms) for point in frontier(everyone)}
    beaten = {
        one
        for one in found
        if any(other != one and other[0] >= one[0] and other[1] <= one[1] for other in found)
    }
    assert best == set(found) - beaten


def test_a_figure_that_one_run_lacks_is_undefined() -> None:
    gap = replace(outcome_of("a", x=1.0), summaries=({"figure": {"x": 1.0}}, {"figure": {"x": None}}))
    whole = replace(gap, summaries=({"figure": {"x": 1.0}}, {"figure": {"x": 3.0}}))
    measure = Measure("figure.x", "X", "higher", three_digits)
    cells = Comparison("", (whole, gap), 2, 0).cells(measure)
    assert [cell.mean for cell in cells] == [2.0, None]
    assert cells[1].difference is None
