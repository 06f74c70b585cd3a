"""Validation finds just the errors that are put in: none, a wrong cost, a slow machine, another order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.plan import IterationShape
from simulator.policies import POLICIES
from simulator.validation_composition import compare_composition
from simulator.validation_cost import ScaledCost, drifts, iteration_cost
from simulator.validation_errors import cost_error, errors, raw_cost_error
from simulator.validation_words import failures
from tests.laws.worlds import ToyCost
from tests.simulator.validation_examples import POISSON, FakeLive, simulator_of, validated

TRUNCATION = 2e-4  # durations of some ten microseconds, each cut to a nanosecond


def by_key(validation, max_error=None):
    return {error.figure.key: error for error in errors(validation, max_error)}


@pytest.mark.parametrize("arrivals", ["workload.arrivals={process: burst}", POISSON])
def test_a_perfect_twin_has_no_error_at_all(arrivals: str, tmp_path: Path) -> None:
    validation = validated(tmp_path, [arrivals])
    for key, error in by_key(validation).items():
        assert error.error == error.error_without_drift == error.error_at_live_cost == 0, key
        assert not error.spread, key
        assert not error.spread_without_drift, key
    assert validation.twin.summary["requests"]["preemptions"] > 0, "the case must be a hard one"
    for repetition in validation.repetitions:
        assert repetition.composition.first_difference is None
        assert repetition.composition.identical_iterations == validation.twin.summary["iterations"]
        assert raw_cost_error(repetition) == cost_error(repetition) == 0
        assert repetition.cost.typical_error == repetition.cost.between_ns == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_burst_is_identical_to_the_end_however_wrong_the_clock(policy: str, tmp_path: Path) -> None:
    engine = f"engine={{policy: {policy}, kv_blocks: 64, max_model_len: 128}}"
    timeless = ["workload.lengths={fixed: {prompt: 30, output: 9}}"] if policy == "dynamic" else []
    validation = validated(tmp_path, [engine, *timeless], predicted=3.7, drifts=[0.6, 1.9])
    for repetition in validation.repetitions:
        assert repetition.composition.first_difference is None


def test_ten_per_cent_too_slow_a_profile_is_ten_per_cent(tmp_path: Path) -> None:
    validation = validated(tmp_path, predicted=1.1)
    for repetition in validation.repetitions:
        assert repetition.drift == pytest.approx(1)
        assert raw_cost_error(repetition) == pytest.approx(0.1, abs=TRUNCATION)
        assert cost_error(repetition) == pytest.approx(0.1, abs=TRUNCATION)
        assert repetition.cost.typical_error == pytest.approx(0.1, abs=TRUNCATION)
    for key, error in by_key(validation).items():
        timed = "_ms." in key or key == "duration_s"
        expected = 0.1 if timed else 1 / 1.1 - 1 if "per_s" in key else 0.0
        assert error.error == pytest.approx(expected, abs=TRUNCATION), key
        assert error.error_without_drift == pytest.approx(expected, abs=TRUNCATION), key
        assert error.error_at_live_cost == pytest.approx(0, abs=TRUNCATION), key


def test_a_machine_that_drifts_is_not_the_models_error(tmp_path: Path) -> None:
    validation = validated(tmp_path, [POISSON], drifts=[1.5, 1.5, 1.5])
    found = by_key(validation)
    assert found["tpot_ms.mean"].error == pytest.approx(1 / 1.5 - 1, abs=0.1)
    for key, error in found.items():
        assert error.error_without_drift == pytest.approx(0, abs=TRUNCATION), key
    for repetition in validation.repetitions:
        assert repetition.drift == pytest.approx(1.5)
        assert raw_cost_error(repetition) == pytest.approx(1 / 1.5 - 1, abs=TRUNCATION)
        assert cost_error(repetition) == pytest.approx(0, abs=TRUNCATION)
        assert repetition.composition.first_difference is None
    assert not any(error.failed for error in errors(validation, 0.001))


def test_a_drift_between_runs_is_spread_and_goes_with_the_drift(tmp_path: Path) -> None:
    """The second run still is quick, the round after it is slow as most are."""
    validation = validated(tmp_path, drifts=[1.0, 1.0, 1.5, 1.5, 1.5])
    assert [repetition.drift for repetition in validation.repetitions] == pytest.approx(
        [1.0, 1.5, 1.5, 1.5, 1.5]
    )
    error = by_key(validation)["e2e_ms.mean"]
    assert error.spread == pytest.approx(1 - 1 / 1.5, abs=TRUNCATION)
    assert error.error_without_drift == pytest.approx(0, abs=TRUNCATION)
    assert error.spread_without_drift == pytest.approx(1 - 1 / 1.5, abs=TRUNCATION)


def test_without_recorded_times_drift_is_told_within_the_session(tmp_path: Path) -> None:
    validation = validated(tmp_path, drifts=[1.5, 1.5, 1.5], recorded=())
    assert validation.drift_from == "session"
    assert [repetition.drift for repetition in validation.repetitions] == pytest.approx([1, 1, 1])
    assert by_key(validation)["e2e_ms.p50"].error_without_drift == pytest.approx(
        1 / 1.5 - 1, abs=TRUNCATION
    )


def test_the_check_says_which_figures_are_too_far_off(tmp_path: Path) -> None:
    validation = validated(tmp_path, predicted=1.08)
    failed = [error.figure.key for error in errors(validation, 0.05) if error.failed]
    assert "e2e_ms.mean" in failed
    assert "throughput.output_tokens_per_s" in failed
    assert "e2e_ms.p99" not in failed, "twice as much is allowed there"
    assert not any(key.startswith("itl") for key in failed)
    lines = list(failures(errors(validation, 0.05)))
    assert "E2E mean +8.0 % without drift, allowed are 5.0 %" in lines
    assert not any(error.failed for error in errors(validation, 0.0801))
    assert not any(error.failed for error in errors(validation))


def test_timing_that_reorders_arrivals_is_found_and_named(tmp_path: Path) -> None:
    """A clock twice as slow sees more arrivals by its second iteration than a fast one."""
    validation = validated(tmp_path, [POISSON], predicted=2.0)
    composition = validation.repetitions[0].composition
    first = composition.first_difference
    assert first is not None
    assert first.by_timing
    assert first.fields
    assert composition.identical_iterations == first.iteration - 1
    assert first.start_s.twin > first.start_s.live or first.iteration == 1


def test_a_difference_that_timing_does_not_explain_is_told_apart(tmp_path: Path) -> None:
    simulator, cost = simulator_of(tmp_path)
    fewer_seats, _ = simulator_of(tmp_path, ["engine.max_num_seqs=3"])
    live = FakeLive(fewer_seats.scenario, cost).run()
    first = compare_composition(live, simulator.twin(cost).tables).first_difference
    assert first is not None
    assert not first.by_timing
    assert first.arrived.live == first.arrived.twin == 40
    assert any(sides.live != sides.twin for sides in first.fields.values())


def test_a_run_that_ends_early_differs_where_it_ends(tmp_path: Path) -> None:
    simulator, cost = simulator_of(tmp_path)
    fewer, _ = simulator_of(tmp_path, ["workload.requests=1"])
    one = fewer.twin(cost).tables
    assert compare_composition(one, one).first_difference is None
    first = compare_composition(one, simulator.twin(cost).tables).first_difference
    assert first is not None
    assert first.iteration == 1


def test_time_between_iterations_is_part_of_what_the_twin_must_cover(tmp_path: Path) -> None:
    simulator, cost = simulator_of(tmp_path)
    tables = FakeLive(simulator.scenario, cost).run()
    for name in ("start_ns", "end_ns"):
        tables.iterations[name] += 1000 * np.arange(len(tables.iterations[name]))
    tables.requests["finished_ns"] += 1000 * len(tables.iterations["end_ns"])
    tables.requests["scheduled_ns"][:] = 0
    found = iteration_cost(tables, cost)
    assert found.between_ns == 1000 * (len(tables.iterations["end_ns"]) - 1)
    assert found.measured_ns == found.predicted_ns + found.between_ns
    assert found.ratio > 1


@given(
    st.sampled_from([0.31, 1.0, 1.7]),
    st.tuples(
        st.integers(0, 3), st.integers(0, 90), st.integers(0, 400), st.integers(0, 9), st.integers(0, 400)
    ),
)
def test_a_scaled_clock_keeps_the_cost_models_promise(factor: float, figures: tuple[int, ...]) -> None:
    """A pure decode costs what its line says, to the nanosecond; everything scales."""
    shape = IterationShape(*figures)
    scaled = ScaledCost(ToyCost(), factor)
    assert scaled.iteration_ns(shape) == pytest.approx(factor * ToyCost().iteration_ns(shape), abs=2)
    if not shape.prefills:
        base, slope, _ = scaled.decode_line(shape.decodes, shape.context_tokens)
        assert scaled.iteration_ns(shape) == max(1, int(base + slope * shape.context_tokens))


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=4), st.floats(0.2, 5))
def test_drift_is_the_factor_that_all_reference_points_share(base: list[float], factor: float) -> None:
    slow = [factor * time for time in base]
    assert drifts([slow, slow, slow], base) == pytest.approx([factor, factor])


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=4), st.floats(0.2, 5))
def test_a_hiccup_in_one_round_is_no_drift(base: list[float], factor: float) -> None:
    """And a change of speed that lasts is one from the run on around which it happened."""
    other = [factor * time for time in base]
    assert drifts([base, other, base, base], base) == pytest.approx([1, 1, 1])
    assert drifts([base, base, other, other, other], base) == pytest.approx([1, factor, factor, factor])
