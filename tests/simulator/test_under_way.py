"""However much a workload offers, a run that would fill the memory ends in one line."""

from __future__ import annotations

from typing import Any

import pytest

import simulator
from simulator import cluster
from simulator.errors import ScenarioError

LENGTHS = {"fixed": {"prompt": 10, "output": 50}}


def simulate(arrivals: dict[str, Any], **bound: float) -> int:
    run = simulator.simulate(
        {
            "model": "meta-llama/Llama-3.1-8B",
            "hardware": "h100-sxm",
            "engine": {"max_num_seqs": 4},
            "workload": {"arrivals": arrivals, "lengths": LENGTHS, **bound},
        }
    )
    return int(run.summary["requests"]["completed"])


@pytest.mark.parametrize(
    ("arrivals", "bound"),
    [
        ({"process": "closed", "concurrency": 1e9}, {"duration_s": 60}),
        ({"process": "closed", "concurrency": 101}, {"requests": 200}),
        ({"process": "burst"}, {"requests": 1e9}),
        ({"process": "poisson", "rate_per_s": 1e6}, {"duration_s": 60}),
    ],
)
def test_more_at_once_than_memory_holds_is_refused(
    monkeypatch: pytest.MonkeyPatch, arrivals: dict[str, Any], bound: dict[str, float]
) -> None:
    monkeypatch.setattr(cluster, "MOST_UNDER_WAY", 100)
    with pytest.raises(ScenarioError) as refused:
        simulate(arrivals, **bound)
    assert str(refused.value) == (
        "workload: more than 100 requests are in the system at once, more than memory should hold; "
        "offer fewer clients, a lower rate or fewer requests, or add replicas"
    )


@pytest.mark.parametrize(
    ("arrivals", "bound"),
    [
        ({"process": "closed", "concurrency": 100}, {"requests": 300}),
        ({"process": "closed", "concurrency": 1e9}, {"requests": 100}),
        ({"process": "constant", "rate_per_s": 1}, {"requests": 300}),
    ],
)
def test_only_what_is_there_at_once_counts(
    monkeypatch: pytest.MonkeyPatch, arrivals: dict[str, Any], bound: dict[str, float]
) -> None:
    monkeypatch.setattr(cluster, "MOST_UNDER_WAY", 100)
    assert simulate(arrivals, **bound) == bound["requests"]


def test_more_streams_of_clients_than_memory_holds_are_refused() -> None:
    """Each client has random numbers and a queue of its own, some 2.4 kB."""
    with pytest.raises(ScenarioError, match=r"arrivals\.clients must be <= 1e\+06, not 10000000"):
        simulate({"process": "clients", "clients": 1e7, "rate_per_s": 5}, requests=10)
