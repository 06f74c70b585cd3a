"""A comparison on the terminal, word for word."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from simulator.compare import curves_of
from simulator.compare_view import comparison_view
from simulator.comparison import Comparison, Outcome
from tests.simulator.run_examples import MS, NEVER, SECOND, Profile, Slo, run_of, summary_of


def outcome(name: str, *pace_ms: int, lost: bool = False) -> Outcome:
    """Two requests, answered with 11 tokens each at one pace per run; ``lost``: the second is rejected."""
    runs = []
    for pace in pace_ms:
        first = {"output_tokens": 11, "first_token_ns": 100 * MS, "finished_ns": (100 + 10 * pace) * MS}
        second = NEVER | {"status": 1} if lost else first
        step = {"end_ns": SECOND, "decodes": 2, "kv_blocks_used": 50}
        runs.append(
            run_of([first, second], [step], gaps={pace * MS: 20}, reasons={1: "too long"} if lost else {})
        )
    summaries = tuple(summary_of(run, slo=Slo(ttft_ms=200), policy=name) for run in runs)
    return Outcome(name, summaries=summaries, curves=curves_of(runs[0]))


def text_of(comparison: Comparison, width: int = 80) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(comparison_view(comparison))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


THREE = Comparison(
    "chat",
    (
        replace(outcome("vllm-v1", 10), notes=("watch out",)),
        Outcome("too-large", reason="does not fit"),
        replace(outcome("static", 15, lost=True), notes=("watch out", "only here")),
    ),
    1,
    7,
)
EXPECTED = """\
chat
2 of 3 alternatives under the same random numbers (seed 7; 2 requests).
Differences are to vllm-v1; * marks the best of a row.

                    vllm-v1              static
 ──────────────────────────────────────────────
 Requests/s           10.0*      4.00   -60.0 %
 Output tokens/s       110*      44.0   -60.0 %
 TTFT p50            100 ms    100 ms         =
 TTFT p99            100 ms    100 ms         =
 TPOT p50          10.0 ms*   15.0 ms   +50.0 %
 TPOT p99          10.0 ms*   15.0 ms   +50.0 %
 ITL p99           10.0 ms*   15.0 ms   +50.0 %
 E2E p50            200 ms*    250 ms   +25.0 %
 E2E p99            200 ms*    250 ms   +25.0 %
 E2E per token     18.2 ms*   22.7 ms   +25.0 %
 SLO met             100 %*    50.0 %  -50.0 pt
 Goodput/s            10.0*      4.00   -60.0 %
 Completed               2*         1   -50.0 %
 Batch, mean           2.00      2.00         =
 KV cache used       50.0 %    50.0 %         =

too-large cannot run: does not fit
warning: static: 1 rejected: too long
note: watch out
note: static: only here
2 runs in 1.00 s"""


def test_the_whole_view() -> None:
    assert text_of(THREE) == EXPECTED


def test_replications_show_half_the_interval() -> None:
    """E2E is 200 and 210 ms against 250 and 270: 55 ± 12.706 x 5 ms longer than the mean of 205 ms."""
    comparison = Comparison("chat", (outcome("a", 10, 11), outcome("b", 15, 17)), 2, 0)
    text = text_of(comparison)
    assert "seeds 0 to 1" in text
    assert "± is half the 95% confidence" in text
    assert " E2E p50            205 ms*    260 ms  +26.8 ±31.0 %" in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    names = ["vllm-v1", "a-name-that-is-far-longer-than-any-column-should-ever-be", "static", "orca"]
    comparison = Comparison(
        "chat", tuple(outcome(name, 10, 12 + place) for place, name in enumerate(names)), 2, 0
    )
    lines = text_of(comparison, width).splitlines()
    assert max(map(len, lines)) <= width
    blocks = sum(line.startswith(" Requests/s") for line in lines)
    assert (blocks == 1) == (width == 200)
    assert sum(line.count("*") for line in lines if line.startswith(" TPOT p50")) == 1


def test_names_are_no_markup() -> None:
    comparison = Comparison("[red]x", (outcome("[bold]a", 1), outcome("[/b]", 2)), 1, 0)
    text = text_of(comparison)
    assert "[red]x" in text
    assert "[bold]a" in text
    assert "[/b]" in text


def test_doubts_about_the_profile_are_said_once() -> None:
    doubtful = [
        replace(
            outcome(name, 10),
            summaries=(summary_of(run_of([{}]), profile=Profile("roofline", "roofline")),),
        )
        for name in "ab"
    ]
    text = text_of(Comparison("chat", tuple(doubtful), 1, 0), 120)
    assert text.count("UNCALIBRATED") == 1
    assert "warning: profile roofline: UNCALIBRATED" in text


def test_extrapolation_is_a_row_and_one_warning() -> None:
    outcomes = [
        Outcome(name, summaries=(summary_of(run_of([{}]), extrapolated=share),))
        for name, share in (("a", 0.1), ("b", 0.25), ("c", 0.0))
    ]
    text = text_of(Comparison("chat", tuple(outcomes), 1, 0), 200)
    assert text.count("warning") == 1
    assert (
        "warning: a, b: profile h100-sxm/llama (imported): the share of the time in row Extrapolated"
        in text
    )
    (row,) = (line for line in text.splitlines() if line.startswith(" Extrapolated"))
    assert " ".join(row.split()) == "Extrapolated 10.0 % 25.0 % +15.0 pt 0 %* -10.0 pt"
    assert "seed 0; 1 request)" in text
