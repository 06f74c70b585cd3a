"""What is said about a fleet, on the terminal and on the page."""

from __future__ import annotations

import pytest

from simulator.fleet_words import fleet_lines, replica_count
from simulator.metrics import Summary
from simulator.report import page
from tests.simulator.run_examples import random_run, summary_of


def group(role: str = "", ttft_ms: float | None = 30.0, **changed: object) -> Summary:
    figures = {
        "hardware": "h100-sxm",
        "replicas": 2,
        "request_share": 0.25,
        "prompt_tokens": 1000,
        "output_tokens": 500,
        "busy_share": 0.5,
        "kv": {"mean_utilisation": 0.1},
        "ttft_ms": {"p99": ttft_ms},
        "tpot_ms": {"p99": None if ttft_ms is None else 9.0},
    }
    return ({"role": role} if role else {}) | figures | changed


def test_a_group_that_does_everything_has_its_share_and_its_ttft() -> None:
    assert list(fleet_lines({"groups": [group()]})) == [
        "2 x h100-sxm: 25.0 % of the requests, 1,000 prompt tokens, 500 output tokens, busy 50.0 %, "
        "KV 10.0 %, TTFT p99 30.0 ms"
    ]


def test_prefill_and_decode_are_told_by_what_each_of_them_does() -> None:
    """Prefill replicas complete no request, so no latency is theirs: none is shown, rather than a dash."""
    groups = [
        group("prefill", None, output_tokens=0, request_share=0.0),
        group("decode", prompt_tokens=0, request_share=1.0),
    ]
    assert list(fleet_lines({"groups": groups})) == [
        "prefill, 2 x h100-sxm: 1,000 prompt tokens, busy 50.0 %, KV 10.0 %",
        "decode, 2 x h100-sxm: 500 output tokens, busy 50.0 %, KV 10.0 %, TPOT p99 9.00 ms",
    ]


@pytest.mark.parametrize(
    ("happened", "told"),
    [
        ({}, "8"),
        ({"availability": {"fewest_replicas": 8, "most_replicas": 8}}, "8"),
        ({"availability": {"fewest_replicas": 1, "most_replicas": 6}}, "1 to 6"),
    ],
)
def test_a_fleet_that_varied_says_between_how_many(happened: Summary, told: str) -> None:
    assert replica_count({"replicas": 8} | happened) == told


def test_the_page_tells_of_the_fleet_too() -> None:
    tables = random_run(50)
    text = page("name: chat\n", summary_of(tables) | {"groups": [group()], "replicas": 2}, tables)
    assert "<dt>Replicas</dt><dd>2 x " in text
    assert "<dd>2 x h100-sxm: 25.0 % of the requests" in text
