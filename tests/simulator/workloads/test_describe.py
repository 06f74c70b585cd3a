"""`workload describe` against the published statistics of the public traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from simulator.workloads.describe import (
    arrival_statistics,
    describe,
    describe_view,
    dispersion,
    rank_correlation,
    window_counts,
)

SECOND = 1_000_000_000
CONV = ("data", "traces", "azure-llm-2023", "AzureLLMInferenceTrace_conv.csv")
CONVERSATION = ("data", "traces", "mooncake-fast25", "conversation_trace.jsonl")


# File, requests, prompt and output mean/p50/p90/p99/max, rank correlation (spec/traces.md, summary table).
SUMMARY = [
    (CONV, 19_366, (1155, 1020, 2734, 4142, 14050), (211, 129, 424, 601, 1000), 0.073),
    (CONVERSATION, 12_031, (12035, 6909, 27367, 85400, 126195), (343, 350, 597, 1119, 2000), 0.072),
    (
        ("data", "traces", "vidur-processed", "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"),
        28_257,
        (2588, 2730, 3702, 3933, 4054),
        (291, 167, 372, 3271, 4056),
        -0.114,
    ),
    (
        ("data", "traces", "nanoflow-lengths", "sharegpt.csv"),
        58_787,
        (299, 36, 829, 3473, 241402),
        (324, 280, 683, 999, 37622),
        0.150,
    ),
]


@pytest.mark.parametrize(("file", "requests", "prompt", "output", "correlation"), SUMMARY)
def test_counts_lengths_and_correlation_are_the_published_ones(
    shared: Callable[..., Path],
    *,
    file: Sequence[str],
    requests: int,
    prompt: Sequence[int],
    output: Sequence[int],
    correlation: float,
) -> None:
    report = describe(shared(*file))
    assert report["requests"] == requests
    assert list(report["prompt_tokens"].values()) == pytest.approx(list(prompt), abs=0.51)
    assert list(report["output_tokens"].values()) == pytest.approx(list(output), abs=0.51)
    assert report["rank_correlation"] == pytest.approx(correlation, abs=6e-4)


def test_the_azure_conversation_trace_is_bursty_by_the_minute(shared: Callable[..., Path]) -> None:
    report = describe(shared(*CONV))
    arrivals = report["arrivals"]
    assert report["duration_s"] == pytest.approx(3501.722, abs=5e-4)
    assert arrivals["rate_per_s"] == pytest.approx(5.53, abs=5e-3)
    assert arrivals["gap_cv"] == pytest.approx(1.09, abs=5e-3)
    assert arrivals["peak_minute_rate_per_s"] * 60 == pytest.approx(507)
    assert report["prefix_reuse"] is None


def test_the_published_minute_dispersion_counts_the_last_partial_minute(
    shared: Callable[..., Path],
) -> None:
    """20.6 includes a last window of 22 s, which is no minute; whole minutes give 16.1."""
    path = shared(*CONV)
    assert describe(path)["arrivals"]["dispersion_60s"] == pytest.approx(16.13, abs=5e-3)
    from simulator.workloads.traces.azure import read

    times = np.array([row.arrival_ns for row in read(path)])
    assert dispersion(window_counts(times, 60, partial=True)) == pytest.approx(20.6, abs=0.05)


def test_the_mooncake_conversation_trace_repeats_and_ticks(shared: Callable[..., Path]) -> None:
    report = describe(shared(*CONVERSATION))
    assert report["prefix_reuse"] == {
        "tokens_per_block": 512,
        "blocks": 288_500,
        "reused_blocks": 105_710,
        "reused_block_share": pytest.approx(0.366, abs=5e-4),
        "reused_token_share": pytest.approx(0.374, abs=5e-4),
    }
    arrivals = report["arrivals"]
    assert report["duration_s"] == pytest.approx(3536.999)
    assert arrivals["rate_per_s"] == pytest.approx(3.40, abs=5e-3)
    assert arrivals["gap_cv"] == pytest.approx(3.03, abs=5e-3)
    assert arrivals["dispersion_60s"] == pytest.approx(2.9, abs=0.05)
    assert arrivals["dispersion_10s"] == pytest.approx(2.1, abs=0.05)
    assert arrivals["zero_gap_share"] == pytest.approx(0.902, abs=5e-4)
    assert report["notes"][0].startswith("90.2% of the gaps are zero: times come in ticks of 3 s")


def test_two_formats_of_one_trace_are_described_alike(shared: Callable[..., Path]) -> None:
    first = describe(shared(*CONV))
    second = describe(shared("data", "traces", "vidur-processed", "splitwise_conv.csv"))
    for key in ("requests", "prompt_tokens", "output_tokens", "rank_correlation"):
        assert first[key] == second[key]
    assert second["arrivals"] == pytest.approx(first["arrivals"], rel=1e-6)


def test_regular_arrivals_have_no_dispersion() -> None:
    times = np.arange(1, 7201) * (SECOND // 2) - SECOND // 2
    statistics = arrival_statistics(times)
    assert statistics is not None
    assert statistics["rate_per_s"] == pytest.approx(2)
    assert statistics["gap_cv"] == pytest.approx(0)
    assert statistics["dispersion_60s"] == pytest.approx(0)


def test_a_trace_that_spans_no_time_has_no_rate() -> None:
    assert arrival_statistics(np.zeros(5, np.int64)) is None
    assert arrival_statistics(np.zeros(1, np.int64)) is None


tokens = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=50)


@given(pairs=tokens)
def test_rank_correlation_agrees_with_scipy_ties_included(pairs: list[tuple[int, int]]) -> None:
    first, second = np.array(pairs, np.int32).T
    measured = rank_correlation(first, second)
    if measured is None:
        assert len(set(first.tolist())) == 1 or len(set(second.tolist())) == 1
    else:
        assert measured == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)


def rendered(path: Path) -> str:
    console = Console(width=160, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(describe_view(describe(path)))
    return capture.get()


def test_the_view_says_what_a_reader_asks_for(shared: Callable[..., Path]) -> None:
    text = rendered(shared(*CONVERSATION))
    for fact in (
        "12,031 requests",
        "3,537.0 s",
        "3.4/s",
        "12,035",
        "126,195",
        "105,710 of 288,500 blocks of 512 tokens (36.6%), 37.4% of all tokens",
        "spread_ticks: true",
    ):
        assert fact in text


def test_a_single_request_can_be_described(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n")
    report = describe(path)
    assert (report["requests"], report["arrivals"], report["rank_correlation"]) == (1, None, None)
    assert "1 requests" in rendered(path)


def test_a_trace_of_a_few_seconds_has_no_dispersion_per_minute(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    rows = (f"2023-11-16 18:15:{second},374,{second}\n" for second in range(10, 20))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    assert describe(path)["arrivals"]["dispersion_60s"] is None
    assert "0.00 per 1 s, - per 10 s, - per 60 s" in rendered(path)


def test_lengths_alone_are_described_without_rates(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nXXX,131072,1\nXXX,10,3\n")
    report = describe(path)
    assert report["duration_s"] is None
    assert report["arrivals"] is None
    assert report["notes"] == [
        "no arrival times: use it as lengths: {empirical: FILE} beside an arrival process",
        "prompt and output exceed 131,072 tokens in 1 of 2 rows: most models reject them, unless "
        "max_prompt_tokens and max_output_tokens cut them",
    ]
