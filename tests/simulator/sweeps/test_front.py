"""Costs, objectives, and which points nobody beats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import UserError
from simulator.scenario import SloSettings
from simulator.sweeps.front import (
    Prices,
    cost_figures,
    first_of_equals,
    objectives_of,
    pareto_front,
    parse_prices,
    score,
    slo_shortfall,
)

Scores = list[tuple[float, ...] | None]


def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """The definition: nowhere worse, somewhere better."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


@given(st.lists(st.none() | st.tuples(*[st.integers(0, 4).map(float)] * 3), max_size=30))
def test_the_front_is_exactly_what_nobody_beats(scores: Scores) -> None:
    known = [one for one in scores if one is not None]
    assert pareto_front(scores) == [
        one is not None and not any(beats(other, one) for other in known) for one in scores
    ]


def figures(**changed: float) -> dict[str, float]:
    return {
        "gpus": 2,
        "throughput.output_tokens_per_s": 1000.0,
        "e2e_ms.p99": 800.0,
        "requests.offered": 1000,
        "requests.completed": 1000,
        **{key.replace("__", "."): value for key, value in changed.items()},
    }


def test_a_point_is_judged_by_cost_throughput_and_latency() -> None:
    assert score(figures(), objectives_of("e2e_ms.p99", None)) == (2, -1000, 800)
    assert [one.key for one in objectives_of("ttft_ms.p50", Prices({"": 2.0}))] == [
        "cost_per_hour",
        "throughput.output_tokens_per_s",
        "ttft_ms.p50",
    ]


@pytest.mark.parametrize(("completed", "counts"), [(1000, True), (990, True), (989, False), (0, False)])
def test_lost_requests_are_infinitely_slow(completed: int, counts: bool) -> None:
    """A point that answers one request in a hundred fast must not win: p99 bears one per cent of losses."""
    found = score(figures(requests__completed=completed), objectives_of("e2e_ms.p99", None))
    assert (found is not None) == counts


def test_a_mean_bears_no_losses_at_all() -> None:
    assert (
        score(figures(requests__completed=999, **{"e2e_ms.mean": 5}), objectives_of("e2e_ms.mean", None))
        is None
    )


@pytest.mark.parametrize(
    ("slo", "shortfall"),
    [
        ({"ttft_ms": 500, "tpot_ms": 50}, 0.04),
        ({"ttft_ms": 500, "tpot_ms": 50, "percentile": 95}, 0.0),
        ({"ttft_ms": 500, "tpot_ms": 50, "attainment": 0.9}, -0.02),
        ({"ttft_ms": 500, "tpot_ms": 50, "attainment": 0.93}, 0.01),
    ],
)
def test_an_slo_is_met_by_each_limits_percentile_or_by_a_share_of_all(
    slo: dict[str, float], shortfall: float
) -> None:
    """92 % keep both limits; 97 % the one, 95 % the other."""
    found = {"slo.attainment": 0.92, "slo.met.ttft_ms": 0.97, "slo.met.tpot_ms": 0.95}
    assert slo_shortfall(found, SloSettings.model_validate(slo)) == pytest.approx(shortfall)


def test_nothing_falls_short_where_nothing_is_asked_or_nothing_ran() -> None:
    assert slo_shortfall({"slo.attainment": None}, None) is None
    assert slo_shortfall({}, SloSettings(ttft_ms=500)) is None


def test_points_that_score_the_same_are_marked_once() -> None:
    scores: Scores = [(1.0, 2.0, 3.0), None, (1.0, 2.0, 3.0), (0.0, 3.0, 3.0)]
    assert first_of_equals(scores, pareto_front(scores)) == [True, False, False, True]


SUMMARY = {
    "gpus": 4,
    "hardware": "h100-sxm",
    "duration_s": 100.0,
    "throughput": {"output_tokens_per_s": 2000.0},
}


def test_cost_in_gpu_seconds_and_in_money() -> None:
    """4 GPUs at 2,000 tokens/s take 2,000 GPU-seconds for a million; at 3 per hour that is 5/3."""
    plain = cost_figures(SUMMARY, None)
    assert plain == {"gpus": 4, "gpu_s": 400.0, "gpu_s_per_million_output_tokens": 2000.0}
    priced = cost_figures(SUMMARY, parse_prices("h100-sxm=3,l40s=1"))
    assert priced["cost_per_hour"] == 12
    assert priced["cost_per_million_output_tokens"] == pytest.approx(12 / 3600 * 500)


def test_a_mixed_fleet_costs_what_its_parts_cost_and_a_slice_its_share() -> None:
    groups = [{"gpus": 1, "hardware": "h100-sxm"}, {"gpus": 2 / 7, "hardware": "a100-80-sxm/1g.10gb"}]
    mixed = SUMMARY | {"gpus": 9 / 7, "groups": groups}
    assert cost_figures(mixed, parse_prices("h100-sxm=3,a100-80-sxm=1.4"))[
        "cost_per_hour"
    ] == pytest.approx(3.4)


def test_nothing_generated_has_no_price() -> None:
    idle = SUMMARY | {"throughput": {"output_tokens_per_s": 0.0}}
    assert cost_figures(idle, Prices({"": 3.0}))["cost_per_million_output_tokens"] is None


@pytest.mark.parametrize("text", ["dear", "0", "-2", "inf", "h100-sxm=", "=3", "h100-sxm=2,dear"])
def test_prices_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="must be a price per GPU-hour"):
        parse_prices(text)


@pytest.mark.parametrize("key", ["ttft", "ttft_ms", "ttft_ms.p42", "padding_waste.total"])
def test_a_latency_that_is_none(key: str) -> None:
    with pytest.raises(UserError, match="must be one of ttft_ms, tpot_ms"):
        objectives_of(key, None)
