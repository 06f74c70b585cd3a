"""What an answer says of itself: what it rests on, what was verified, and how it is worded."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.planning.answer import Capacity, Cost, Plan
from simulator.planning.constraint import constraint_at
from simulator.planning.criteria import Percentile
from simulator.planning.laboratory import Measurement
from simulator.planning.losses import losses
from simulator.planning.offer import Point
from simulator.planning.planner import _rank
from simulator.planning.steady_state import Interval, together
from simulator.planning.view import headline
from simulator.planning.words import counted, figure_words
from simulator.usage import Usage

WANTED = (Percentile("ttft_ms", 99, 500.0),)


def measured(strain: float, half_width: float) -> Measurement:
    verdict = "met" if strain <= 1 else "missed"
    return Measurement(Point(50.0, 4), verdict, 0.8, (Interval(strain, half_width),))


def plan(name: str, kind: str, gpus: int) -> Plan:
    cost = Cost(gpus, gpus / 10, gpus / 20, None, None, None)
    return Plan(
        name,
        {},
        "m",
        "h",
        1,
        "",
        profile="p",
        profile_kind=kind,
        replicas=gpus,
        rate_per_s=50.0,
        at=measured(0.8, 0.02),
        cost=cost,
    )


def answer(*plans: Plan) -> Capacity:
    ranked = tuple(sorted(plans, key=_rank))
    told = tuple(losses(ranked, "replicas", WANTED))
    return Capacity("t", "replicas", WANTED, ranked, told, 0, 0)


def test_a_data_sheet_does_not_win_over_measurements_but_is_named() -> None:
    found = answer(plan("cheap", "roofline", 2), plan("sound", "measured", 4))
    assert found.best is not None
    assert found.best.name == "sound"
    assert headline(found).endswith("cheaper but UNCALIBRATED: cheap, 2 replicas for 50.0 requests/s")
    assert "data sheet" in found.losses[0]


def test_an_answer_from_a_data_sheet_says_so_in_the_sentence() -> None:
    alone = headline(answer(plan("only", "roofline", 2)))
    assert "UNCALIBRATED (step times from a data sheet)" in alone
    hopeless = replace(plan("sound", "imported", 4), reason="too slow")
    told = headline(answer(plan("only", "roofline", 2), hopeless))
    assert "and no calibrated alternative meets the SLO" in told
    assert "UNCALIBRATED" not in headline(answer(plan("sound", "imported", 4)))


@pytest.mark.parametrize(
    ("strain", "half_width", "verified"),
    [
        (0.8, 0.1, "confirmed"),
        (0.99, 0.11, "not refuted"),
        (1.1, 0.3, "refuted"),
        (0.9, inf, "not refuted"),
    ],
)
def test_a_run_confirms_only_if_its_interval_is_below_the_limit(
    strain: float, half_width: float, verified: str
) -> None:
    one = replace(plan("a", "measured", 4), verification=measured(strain, half_width))
    assert one.verified == verified
    assert one.confirmed is (verified == "confirmed")


def test_two_estimates_that_agree_are_weighed_by_their_precision() -> None:
    """Half widths 1 and 2: weights 4 to 1, half width 2 / sqrt(5)."""
    found = together(Interval(10.0, 1.0), Interval(10.5, 2.0))
    assert found == pytest.approx((10.1, 2 / 5**0.5))


positive = st.floats(0.1, 100)


@given(positive, positive, positive, positive)
def test_two_estimates_lie_between_and_disagreement_widens(a: float, b: float, h: float, k: float) -> None:
    found = together(Interval(a, h), Interval(b, k))
    assert min(a, b) - 1e-9 <= found.value <= max(a, b) + 1e-9
    assert found.half_width >= min(h, k) / 2**0.5 - 1e-9
    if abs(a - b) > 10 * (h + k):
        assert found.half_width > abs(a - b) / 2
        assert found.value == pytest.approx((a + b) / 2, abs=abs(a - b) / 20)


def test_the_estimate_takes_the_independent_run_into_account() -> None:
    one = replace(plan("a", "measured", 4), verification=measured(0.99, 0.1))
    assert one.estimate is not None
    assert 0.8 < one.estimate.strain.value < 0.99
    assert one.estimate.strain.high > 0.99


def usage(budget_spent: float, memory_bound: float) -> Usage:
    return Usage(1.0, 0.0, 0.9, 0.0, 0.0, 40.0, 30.0, 0.2, 0.4, budget_spent, 0.9, memory_bound)


@pytest.mark.parametrize(
    ("budget_spent", "memory_bound", "name", "hint"),
    [
        (0.6, 0.2, "prompt compute", "a larger parallel.tensor"),
        (0.6, 0.9, "token budget", "a larger engine.max_num_batched_tokens"),
    ],
)
def test_a_spent_budget_is_a_small_one_only_if_its_steps_calculate_little(
    budget_spent: float, memory_bound: float, name: str, hint: str
) -> None:
    queue, whole = Interval(400.0, 1.0), Interval(500.0, 1.0)
    one = replace(
        measured(1.1, 0.1),
        usage=usage(budget_spent, memory_bound),
        figures_ms={"queue_ms": {"p99": queue}, "ttft_ms": {"p99": whole}},
    )
    found = constraint_at(one, WANTED, 256)
    assert found.name == name
    assert found.hint.startswith(hint)


def test_words() -> None:
    assert (counted(1, "replica"), counted(1200, "GPU")) == ("1 replica", "1,200 GPUs")
    assert figure_words(WANTED[0], Interval(410.0, 30.0)) == "410 ms [380, 440]"
