"""Capacity's measurements against queueing theory, and the identities that it relies on."""

from __future__ import annotations

import json
from math import exp, lgamma, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.planning.criteria import criteria
from simulator.planning.laboratory import Care, Laboratory, Measurement
from simulator.planning.offer import Point, offer_of
from simulator.planning.search import highest_rate
from simulator.planning.trial import Trial, run_trial
from simulator.scenario import Scenario

SERVICE_MS = 10.0
FLAT = {"pairs_per_token": 0, "pairs_per_chunk": 0, "keys_per_token": 1 << 20}


def profile(folder: Path, iteration_ms: float, name: str = "constant.json") -> str:
    """A clock on which every iteration takes the same time, whatever is in it."""
    nothing = {"ns": [0.0]}
    operators = {
        "dense": {"tokens": [1], **nothing},
        "head": {"rows": [1], **nothing},
        "prefill_attention": {"effective_pairs": [1], **nothing, **FLAT},
        "decode_attention": {"rows": [1], "contexts": [1], "ns": [[0.0]]},
    }
    fields = {
        "format": "servetwin-profile/1",
        "kind": "measured",
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": "h100-sxm",
        "dtype": "bfloat16",
        "tensor_parallel": 1,
        "operators": operators,
        "host": {"iteration_ns": iteration_ms * 1e6},
    }
    (folder / name).write_text(json.dumps(fields), encoding="utf-8")
    return name


def scenario(folder: Path, rate_per_s: float, **changed: Any) -> Scenario:
    """Constant service of 10 ms, one request at a time."""
    fields: dict[str, Any] = {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": "h100-sxm",
        "profile": profile(folder, SERVICE_MS),
        "engine": {"policy": "single"},
        "workload": {
            "arrivals": {"process": "poisson", "rate_per_s": rate_per_s},
            "lengths": {"fixed": {"prompt": 1, "output": 1}},
            "requests": 1000,
        },
        "slo": {"ttft_ms": 50},
    }
    return Scenario.model_validate(fields | changed)


def laboratory(made: Scenario, folder: Path, budget: int = 200_000) -> Laboratory:
    return Laboratory(offer_of(made, folder), criteria(made.slo), folder=folder, workers=1, budget=budget)


def mean_wait_of_m_d_c(load: float, servers: int) -> float:
    """Crommelin (1932), in service times: the sum over i of two Poisson tails at i rho c."""
    total = 0.0
    for i in range(1, 400):
        mean = i * load * servers
        tail = poisson_tail(mean, i * servers)
        total += tail - poisson_tail(mean, i * servers + 1) / load
    return total


def poisson_tail(mean: float, least: int) -> float:
    """P(N >= least)."""
    top = least + int(10 * mean**0.5) + 60
    return sum(exp(n * log(mean) - mean - lgamma(n + 1)) for n in range(least, top))


def test_crommelins_formula_is_pollaczek_and_khinchines_for_one_server() -> None:
    assert mean_wait_of_m_d_c(0.8, 1) == pytest.approx(0.8 / (2 * 0.2), rel=1e-4)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (1, 0.9), (3, 0.8), (8, 0.9)])
def test_mean_waits_are_those_of_m_d_c(tmp_path: Path, servers: int, load: float) -> None:
    """Equal services end in the order of their starts, so round-robin is the single queue of M/D/c."""
    made = scenario(tmp_path, load * servers * 1000 / SERVICE_MS)
    (found,) = laboratory(made, tmp_path).measure([point_of(made, servers)], Care(0.02))
    wait = found.figures_ms["queue_ms"]["mean"]
    truth = SERVICE_MS * mean_wait_of_m_d_c(load, servers)
    assert wait.low <= truth <= wait.high, f"{wait} against {truth}"
    assert wait.half_width < 0.2 * truth


def point_of(made: Scenario, servers: int) -> Point:
    arrivals = made.workload.arrivals
    assert arrivals.process == "poisson"
    return Point(arrivals.rate_per_s, servers)


def test_saturation_is_one_over_the_service_time(tmp_path: Path) -> None:
    saturation = laboratory(scenario(tmp_path, 50), tmp_path).saturation
    assert saturation.rate_per_s.value == pytest.approx(100, rel=0.01)


def test_the_highest_rate_is_where_theory_has_the_mean_wait(tmp_path: Path) -> None:
    """At the rate that the search ends with, the measured mean wait is Pollaczek and Khinchine's."""
    made = scenario(tmp_path, 50, slo={"ttft_ms": 25})
    bench = laboratory(made, tmp_path, budget=100_000)
    found = highest_rate(bench, 1, bench.saturation.rate_per_s.value)
    assert found.met is not None
    load = found.met.point.rate_per_s * SERVICE_MS / 1000
    truth = SERVICE_MS * load / (2 * (1 - load))
    wait = found.met.figures_ms["queue_ms"]["mean"]
    assert wait.low <= truth <= wait.high


def test_one_replica_stands_for_all_under_round_robin(tmp_path: Path) -> None:
    """Thinned renewal arrivals against the whole fleet: the same distribution, within both intervals."""
    made = scenario(tmp_path, 280)
    bench = laboratory(made, tmp_path)
    point = Point(280, 4)
    (thinned,) = bench.measure([point], Care(0.03, decide=False))
    whole = bench.verify(point, 30_000, whole=True)
    assert whole.replications == 1
    for statistic in ("mean", "p90"):
        one, other = (m.figures_ms["ttft_ms"][statistic] for m in (thinned, whole))
        assert abs(one.value - other.value) <= one.half_width + other.half_width


def test_steps_twice_as_long_at_half_the_rate_double_every_latency(tmp_path: Path) -> None:
    """What the sensitivity to step time rests on: time has no scale of its own."""
    made = scenario(
        tmp_path,
        8.0,
        engine={"policy": "vllm-v1"},
        workload={
            "arrivals": {"process": "poisson", "rate_per_s": 8.0},
            "lengths": {"preset": "sharegpt"},
            "requests": 400,
        },
    )
    slow = made.model_copy(update={"profile": profile(tmp_path, 2 * SERVICE_MS, "slow.json")})
    arrivals = made.workload.arrivals.model_copy(update={"rate_per_s": 4.0})
    slow = slow.model_copy(update={"workload": made.workload.model_copy(update={"arrivals": arrivals})})
    first, second = (run_trial(Trial(one, tmp_path)) for one in (made, slow))
    for name, values in first.latencies.items():
        assert second.latencies[name] == pytest.approx(2 * values, abs=1e-3), name


def test_an_overloaded_fleet_is_unstable_without_a_run(tmp_path: Path) -> None:
    bench = laboratory(scenario(tmp_path, 50), tmp_path)
    before = bench.simulated
    (found,) = bench.measure([Point(310.0, 3)], Care(0.05))
    assert found.verdict == "unstable"
    assert found.rho == pytest.approx(310 / 300, rel=0.01)
    assert bench.simulated == before


def exponential_lengths(folder: Path) -> str:
    """Output lengths whose service times are exponential, mean 25 iterations."""
    shares = (np.arange(2000) + 0.5) / 2000
    lengths = np.maximum(1, np.rint(-25 * np.log1p(-shares))).astype(int)
    rows = "\n".join(f"1,{length}" for length in lengths)
    (folder / "exponential.csv").write_text(f"prompt_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    return "exponential.csv"


def test_joining_the_shorter_queue_beats_taking_turns_as_theory_says(tmp_path: Path) -> None:
    """Exponential services, two servers, load 0.8. Turns: E2/M/1 each; nothing beats one queue, M/M/2."""
    changed = {
        "profile": profile(tmp_path, 0.4, "token.json"),
        "workload": {
            "arrivals": {"process": "poisson", "rate_per_s": 160.0},
            "lengths": {"empirical": exponential_lengths(tmp_path)},
            "requests": 1000,
        },
    }
    waits = {}
    for router in ("round-robin", "least-outstanding"):
        bench = laboratory(scenario(tmp_path, 160, router=router, **changed), tmp_path, budget=80_000)
        (found,) = bench.measure([Point(160.0, 2)], Care(0.05, decide=False))
        waits[router] = found.figures_ms["queue_ms"]["mean"]
    load, service_ms = 0.8, 10.0
    root = 0.0  # of z = A*(mu (1 - z)) for Erlang-2 gaps: GI/M/1, mean wait = service z / (1 - z)
    for _ in range(200):
        root = (2 * load / (2 * load + 1 - root)) ** 2
    taking_turns = service_ms * root / (1 - root)
    one_queue = service_ms * load**2 / (1 - load**2)  # M/M/2: C(2, a) / (2 mu (1 - rho))
    turns, shorter = waits["round-robin"], waits["least-outstanding"]
    assert turns.low <= taking_turns <= turns.high, f"{turns} against {taking_turns}"
    assert shorter.high < turns.low
    assert shorter.value > 0.95 * one_queue


def test_verdicts_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    def found(workers: int) -> Measurement:
        made = scenario(tmp_path, 80)
        bench = Laboratory(
            offer_of(made, tmp_path), criteria(made.slo), folder=tmp_path, workers=workers, budget=100_000
        )
        return bench.measure([Point(80.0, 1)], Care(0.1))[0]

    one, two = found(1), found(2)
    assert one.figures_ms == two.figures_ms
    assert one.strains == two.strains
