from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simulator import metrics
from tests.simulator.run_examples import MS, NEVER, SECOND, Profile, Slo, random_run, run_of, summary_of

# One request of 5 tokens: waits 10 ms, first token at 60 ms, then a token every 20 ms.
FIVE_TOKENS = {
    "arrival_ns": 1 * SECOND,
    "scheduled_ns": 1 * SECOND + 10 * MS,
    "first_token_ns": 1 * SECOND + 60 * MS,
    "finished_ns": 1 * SECOND + 140 * MS,
    "output_tokens": 5,
}


def only(column: np.ndarray) -> float:
    assert column.shape == (1,)
    return float(column[0])


def test_latencies_of_one_request() -> None:
    found = metrics.request_metrics(run_of([FIVE_TOKENS]).requests)
    assert only(found.queue_ns) == 10 * MS
    assert only(found.ttft_ns) == 60 * MS
    assert only(found.tpot_ns) == 20 * MS  # four gaps, not five tokens
    assert only(found.e2e_ns) == 140 * MS
    assert only(found.normalized_ns) == 28 * MS


def test_tpot_is_undefined_for_a_single_token() -> None:
    found = metrics.request_metrics(run_of([{"output_tokens": 1}]).requests)
    assert np.isnan(only(found.tpot_ns))
    assert only(found.normalized_ns) == 1


def test_the_definition_differs_from_other_tools_by_up_to_ttft_over_tokens() -> None:
    """policies.md section 3: TTFT 500 ms, 20 tokens, 20 ms each: vLLM's TPOT is 20 ms, LLMPerf's 44 ms."""
    request = {"first_token_ns": 500 * MS, "finished_ns": 880 * MS, "output_tokens": 20}
    found = metrics.request_metrics(run_of([request]).requests)
    assert only(found.tpot_ns) == 20 * MS
    assert only(found.normalized_ns) == 44 * MS


def test_what_never_happened_is_undefined() -> None:
    found = metrics.request_metrics(run_of([NEVER | {"status": 1}]).requests)
    for name in ("ttft_ns", "tpot_ns", "e2e_ns", "normalized_ns", "queue_ns"):
        assert np.isnan(only(getattr(found, name))), name


def test_an_unfinished_request_has_a_first_token_but_no_end() -> None:
    request = FIVE_TOKENS | {"status": 3, "finished_ns": -1}
    found = metrics.request_metrics(run_of([request]).requests)
    assert only(found.ttft_ns) == 60 * MS
    assert np.isnan(only(found.e2e_ns))
    assert np.isnan(only(found.tpot_ns))


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 9)), min_size=1, max_size=40))
def test_weighted_quantiles_equal_those_of_the_expanded_multiset(gaps: list[tuple[int, int]]) -> None:
    values, counts = (np.array(column, np.int64) for column in zip(*gaps, strict=True))
    expanded = np.repeat(values, counts)
    if not expanded.size:
        assert metrics.pooled_itl_ms(values, counts)["p50"] is None
        return
    wanted = [0.0, 0.013, 0.5, 0.9, 0.95, 0.99, 1.0]
    found = metrics.weighted_quantiles(values, counts, wanted)
    np.testing.assert_allclose(found, np.quantile(expanded, wanted), rtol=1e-12)
    pooled = metrics.pooled_itl_ms(values, counts)
    assert pooled["mean"] == pytest.approx(expanded.mean() / MS, rel=1e-12)
    assert pooled["max"] == expanded.max() / MS
    assert pooled["p99"] == pytest.approx(np.percentile(expanded, 99) / MS, rel=1e-12)


@given(arrays(np.int64, st.integers(1, 60), elements=st.integers(0, 10**12)))
def test_percentiles_are_numpys(values: np.ndarray) -> None:
    found = metrics.distribution_ms(np.append(values.astype(float), np.nan))
    assert found["p95"] == pytest.approx(np.percentile(values, 95) / MS, rel=1e-12)
    assert found["mean"] == pytest.approx(values.mean() / MS, rel=1e-12)


def test_itl_is_token_weighted_and_tpot_request_weighted() -> None:
    """Nine tokens at 10 ms in one request and one of 110 ms in another: 20 ms pooled, 60 ms per request."""
    requests = [
        {"first_token_ns": 1, "finished_ns": 1 + 90 * MS, "output_tokens": 10},
        {"first_token_ns": 1, "finished_ns": 1 + 110 * MS, "output_tokens": 2},
    ]
    summary = summary_of(run_of(requests, gaps={10 * MS: 9, 110 * MS: 1}))
    assert summary["itl_ms"]["mean"] == 20
    assert summary["tpot_ms"]["mean"] == 60


def test_throughput_counts_completed_requests_from_first_arrival_to_last_completion() -> None:
    requests = [
        {"arrival_ns": SECOND, "finished_ns": 2 * SECOND, "prompt_tokens": 30, "output_tokens": 10},
        {"arrival_ns": 2 * SECOND, "finished_ns": 3 * SECOND, "prompt_tokens": 50, "output_tokens": 6},
        NEVER | {"arrival_ns": 9 * SECOND, "status": 3, "output_tokens": 99},
    ]
    tables = run_of(requests, [{"start_ns": SECOND, "end_ns": 10 * SECOND}])
    assert summary_of(tables)["duration_s"] == 2
    assert metrics.throughput(tables) == {
        "requests_per_s": 1.0,
        "output_tokens_per_s": 8.0,
        "total_tokens_per_s": 48.0,
        "offered_requests_per_s": 0.25,  # two gaps in the eight seconds from the first arrival to the last
    }


def test_attainment_is_over_offered_requests() -> None:
    """Of five: one good, one too slow, one rejected, one failed, one unfinished with a good TTFT."""
    slow = FIVE_TOKENS | {"first_token_ns": SECOND + 100 * MS + 1}
    lost = [NEVER | {"arrival_ns": SECOND, "status": status} for status in (1, 2)]
    unfinished = FIVE_TOKENS | {"status": 3, "finished_ns": -1}
    tables = run_of([FIVE_TOKENS, slow, *lost, unfinished])
    found = metrics.slo_summary(tables, Slo(ttft_ms=100, tpot_ms=20))
    assert found["attainment"] == 1 / 5
    assert found["goodput_requests_per_s"] == pytest.approx(1 / 0.140)
    assert found["met"] == {"ttft_ms": 1 / 5, "tpot_ms": 2 / 5}
    assert found["targets"] == {"ttft_ms": 100, "tpot_ms": 20}


def test_a_promise_is_kept_up_to_and_including_its_limit() -> None:
    tables = run_of([FIVE_TOKENS])
    assert metrics.slo_summary(tables, Slo(60, 20, 140))["attainment"] == 1
    assert metrics.slo_summary(tables, Slo(59.999, None, None))["attainment"] == 0
    assert metrics.slo_summary(tables, Slo(None, 19.999, None))["attainment"] == 0
    assert metrics.slo_summary(tables, Slo(None, None, 139.999))["attainment"] == 0


def test_a_single_token_keeps_any_tpot() -> None:
    """vLLM's benchmark counts its TPOT as 0 (policies.md section 3)."""
    assert metrics.slo_summary(run_of([{}]), Slo(tpot_ms=0.001))["attainment"] == 1


def test_without_a_promise_there_is_no_attainment() -> None:
    found = metrics.slo_summary(run_of([FIVE_TOKENS]), Slo())
    assert found == {"attainment": None, "goodput_requests_per_s": None, "targets": {}, "met": {}}


def test_rows_are_weighted_by_busy_time() -> None:
    """10 rows for 3 s and, after a pause, 2 for 1 s: 8 on average."""
    steps = [
        {"start_ns": 0, "end_ns": 3 * SECOND, "decodes": 10, "repeats": 100},
        {"start_ns": 9 * SECOND, "end_ns": 10 * SECOND, "decodes": 1, "prefills": 1},
    ]
    assert metrics.batch_summary(run_of([{}], steps).iterations) == {"mean_rows": 8.0, "max_rows": 10}


def test_padding_of_a_static_batch() -> None:
    """Prompts of 30 and 10 padded to 30; answers of 11 and 6 tokens: the short one idles for 5 of 10 steps.

    policies.md 1.2: prompts waste 20 of 60 positions, decodes 5 of 20.
    By time: a third of 2 s, nothing of 5 s, half of 5 s.
    """
    steps = [
        {"end_ns": 2 * SECOND, "prefills": 2, "prefill_tokens": 60, "padding_tokens": 20},
        {"start_ns": 2 * SECOND, "end_ns": 7 * SECOND, "decodes": 2, "repeats": 5},
        {"start_ns": 7 * SECOND, "end_ns": 12 * SECOND, "decodes": 2, "padding_tokens": 1, "repeats": 5},
    ]
    found = metrics.padding_summary(run_of([{}], steps).iterations)
    assert found["prefill"] == pytest.approx(1 / 3)
    assert found["decode"] == pytest.approx(1 / 4)
    assert found["total"] == pytest.approx((2 / 3 + 5 / 2) / 12)


def test_idle_time_uses_no_cache() -> None:
    """50 of 100 blocks for 2 of 8 s, on one of two replicas: 1/16 of what there is."""
    steps = [{"start_ns": 6 * SECOND, "end_ns": 8 * SECOND, "kv_blocks_used": 50}]
    tables = run_of([{"finished_ns": 8 * SECOND, "replica": 0}], steps)
    assert metrics.kv_summary(tables) == {
        "blocks": 100,
        "mean_utilisation": 1 / 8,
        "peak_utilisation": 1 / 2,
    }
    assert metrics.kv_summary(tables, replicas=2)["mean_utilisation"] == 1 / 16


def test_reasons_that_differ_in_numbers_are_one() -> None:
    requests = [NEVER | {"status": status} for status in (1, 1, 3, 1)]
    reasons = {0: "needs 7 blocks", 1: "needs 9 blocks", 2: "time was up", 3: "prompt too long"}
    found = metrics.counts(run_of(requests, reasons=reasons))
    assert (found["rejected"], found["unfinished"], found["completed"]) == (3, 1, 0)
    assert found["reasons"][0] == {"status": "rejected", "example": "needs 7 blocks", "count": 2}
    assert len(found["reasons"]) == 3


@given(
    st.lists(
        st.tuples(st.integers(0, 10**13), st.integers(0, 10**13), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=30,
    )
)
def test_littles_law_holds_exactly(rows: list[tuple[int, int, int, bool]]) -> None:
    requests = [
        {
            "arrival_ns": arrival,
            "status": status,
            "finished_ns": arrival + sojourn if status == 0 or (status == 2 and told) else -1,
        }
        for arrival, sojourn, status, told in sorted(rows)
    ]
    number, product = metrics.littles_law(run_of(requests))
    assert number == product


def test_littles_law_by_hand() -> None:
    """Present during [0, 4] and [2, 3], one rejected at 1, one unfinished from 5 on until the end at 10."""
    requests = [
        {"arrival_ns": 0, "finished_ns": 4},
        {"arrival_ns": 1, "finished_ns": -1, "status": 1},
        {"arrival_ns": 2, "finished_ns": 3},
        {"arrival_ns": 5, "finished_ns": -1, "status": 3},
    ]
    found = metrics.littles_law(run_of(requests, [{"start_ns": 5, "end_ns": 10}]))
    assert found == (Fraction(4 + 1 + 5, 10), Fraction(4 + 1 + 5, 10))


def test_littles_law_does_not_overflow() -> None:
    """A thousand requests present for 10^17 ns, three years, exceed 63 bits of request-nanoseconds."""
    requests = [{"arrival_ns": 0, "finished_ns": 10**17}] * 1000
    assert metrics.littles_law(run_of(requests)) == (1000, 1000)


@pytest.mark.parametrize("tables", [run_of(), run_of([NEVER | {"status": 1}], kv_blocks=0)])
def test_an_empty_run_has_no_figures_rather_than_nan(tables: metrics.RunTables) -> None:
    summary = summary_of(tables, slo=Slo(ttft_ms=100), wall_s=0.0)
    json.dumps(summary, allow_nan=False)
    assert summary["ttft_ms"] == dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"))
    assert summary["throughput"]["requests_per_s"] == 0
    assert summary["kv"]["mean_utilisation"] is None
    assert summary["batch"]["mean_rows"] is None
    assert metrics.littles_law(tables) == (0, 0)


def test_the_summary_has_the_promised_shape() -> None:
    summary = summary_of(
        random_run(300), slo=Slo(200, 50), extrapolated=0.25, profile=Profile("p", "roofline")
    )
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    promised = (
        "scenario seed policy model hardware profile requests duration_s iterations throughput ttft_ms "
        "tpot_ms itl_ms e2e_ms normalized_ms_per_token queue_ms slo batch padding_waste kv simulation"
    )
    assert " ".join(name for name in summary if name in promised.split()) == promised
    assert summary["profile"] == {"name": "p", "kind": "roofline", "extrapolated": 0.25}
    inner = {
        "requests": ["offered", "completed", "rejected", "failed", "unfinished", "preemptions"],
        "throughput": ["requests_per_s", "output_tokens_per_s", "total_tokens_per_s"],
        "queue_ms": ["mean", "p50", "p90", "p95", "p99", "max"],
        "slo": ["attainment", "goodput_requests_per_s"],
        "batch": ["mean_rows", "max_rows"],
        "padding_waste": ["prefill", "decode", "total"],
        "kv": ["blocks", "mean_utilisation", "peak_utilisation"],
        "simulation": ["wall_s", "requests_per_wall_s"],
    }
    for name, keys in inner.items():
        assert list(summary[name])[: len(keys)] == keys
