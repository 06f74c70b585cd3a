"""A benchmark client's result gives back the engine's steps and the server's overhead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.client_results import engine_steps, most_agreed, read_requests, server_overhead
from calibration.fit import as_profile, fit_profile
from calibration.imports import Subject, import_format
from simulator.errors import ProfileError
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.run_tables import RunTables
from simulator.scenario import Scenario
from simulator.simulation import simulate

Shared = Callable[..., Path]
SUBJECT = Subject(load_model("servetwin/llama-50m"), load_hardware("cpu"), "bfloat16", 1, "vllm")
NS_PER_S = 1e9


def run(overhead_ms: float, rate_per_s: float = 10) -> RunTables:
    """A simulated server with a known overhead."""
    scenario = {
        "model": "servetwin/llama-50m",
        "hardware": "cpu",
        "server_overhead_ms": overhead_ms,
        "engine": {"policy": "vllm-v1"},
        "workload": {
            "arrivals": {"process": "poisson", "rate_per_s": rate_per_s},
            "lengths": {"uniform": {"prompt": [16, 512], "output": [16, 256]}},
            "requests": 150,
        },
        "seed": 1,
    }
    return simulate(Scenario.model_validate(scenario)).tables


def result(tables: RunTables) -> dict[str, Any]:
    """What vllm bench serve would have written of a run: each token when its iteration ends."""
    requests, iterations = tables.requests, tables.iterations
    ends: list[int] = []
    for start, end, repeats in zip(
        iterations["start_ns"].tolist(),
        iterations["end_ns"].tolist(),
        iterations["repeats"].tolist(),
        strict=True,
    ):
        ends += np.linspace(start, end, repeats + 1)[1:].round().astype(int).tolist()
    gaps = []
    for first, last, count in zip(
        requests["first_token_ns"], requests["finished_ns"], requests["output_tokens"], strict=True
    ):
        seen = [end for end in ends if first <= end <= last]
        assert len(seen) == count
        gaps.append((np.diff(seen) / NS_PER_S).tolist())
    return {
        "input_lens": requests["prompt_tokens"].tolist(),
        "ttfts": ((requests["first_token_ns"] - requests["arrival_ns"]) / NS_PER_S).tolist(),
        "itls": gaps,
        "start_times": (requests["arrival_ns"] / NS_PER_S).tolist(),
        "errors": [""] * len(gaps),
    }


def saved(folder: Path, content: object, name: str = "result.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("overhead_ms", [0.0, 5.0, 12.0])
def test_a_known_overhead_is_recovered(tmp_path: Path, overhead_ms: float) -> None:
    requests = read_requests(saved(tmp_path, result(run(overhead_ms))))
    found = server_overhead(requests, engine_steps(requests))
    assert found["overhead_ns"] / 1e6 == pytest.approx(overhead_ms, abs=1.0)
    assert found["agreeing"] > 0.9


def test_steps_are_the_engines_iterations(tmp_path: Path) -> None:
    tables = run(8.0)
    steps = engine_steps(read_requests(saved(tmp_path, result(tables))))
    assert len(steps) == int(tables.iterations["repeats"].sum())


def test_an_import_carries_the_overhead_into_the_profile(tmp_path: Path) -> None:
    found = import_format("vllm-bench", saved(tmp_path, result(run(12.0))), SUBJECT)
    profile = as_profile(fit_profile(found, found.header.host), "from a client")
    assert profile.server_overhead_ns / 1e6 == pytest.approx(12, abs=1.0)
    assert found.header.checks["iteration"]["median"] < 0.05


def test_the_most_agreed_value_lies_within_most_bounds() -> None:
    assert most_agreed([(0, 10), (4, 6), (5, 9), (40, 50)]) == (5.5, 3)


def test_the_last_of_appended_results_counts(tmp_path: Path) -> None:
    first, second = result(run(0.0)), result(run(12.0))
    path = tmp_path / "result.json"
    path.write_text(json.dumps(first) + "\n" + json.dumps(second) + "\n")
    assert read_requests(path)[0].token_s[0] == pytest.approx(second["start_times"][0] + second["ttfts"][0])


def test_failed_requests_are_left_out(shared: Shared) -> None:
    path = shared("data", "formats", "vllm_bench", "SYNTHETIC_detailed_result_schema_v0.33.json")
    assert [request.prompt_tokens for request in read_requests(path)] == [374, 396, 91]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"mean_ttft_ms": 5}, r"has no list 'input_lens'; expected the result of vllm bench serve"),
        ([1], "is not a JSON object"),
        (
            {"input_lens": [1], "ttfts": [], "itls": [], "start_times": []},
            "input_lens, ttfts, itls, start_times must be equally long",
        ),
        (
            {"input_lens": [1], "ttfts": [0.0], "itls": [[]], "start_times": [0.0]},
            "no request was completed",
        ),
    ],
)
def test_other_results_are_refused(tmp_path: Path, content: object, complaint: str) -> None:
    with pytest.raises(ProfileError, match=complaint):
        read_requests(saved(tmp_path, content))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"input_lens": [9, -5]}, "input_lens must be a whole number from 1 to 1e+09, not -5"),
        ({"input_lens": [9, "5"]}, "input_lens must be a whole number from 1 to 1e+09, not '5'"),
        ({"input_lens": [9, True]}, "input_lens must be a whole number from 1 to 1e+09, not true"),
        ({"ttfts": [1.0, -1]}, "ttfts must be seconds from 0 to 1e+10, not -1"),
        ({"ttfts": [1.0, float("nan")]}, "ttfts must be seconds from 0 to 1e+10, not nan"),
        ({"ttfts": [1.0, 10**400]}, "ttfts must be seconds from 0 to 1e+10, not 1e400"),
        ({"start_times": [0.0, None]}, "start_times must be seconds from 0 to 1e+10, not empty"),
        ({"start_times": [0.0, float("inf")]}, "start_times must be seconds from 0 to 1e+10, not inf"),
        ({"itls": [[], "ab"]}, "itls must be a list of seconds, not 'ab'"),
        ({"itls": [[], [0.1, "x"]]}, "itls must be seconds from 0 to 1e+10, not 'x'"),
        ({"itls": [[], [0.1, -0.1]]}, "itls must be seconds from 0 to 1e+10, not -0.1"),
    ],
)
def test_what_no_client_saw_is_named_by_its_request(
    tmp_path: Path, changed: dict[str, object], complaint: str
) -> None:
    right = {"input_lens": [9, 9], "ttfts": [1.0, 1.0], "itls": [[], [0.1]], "start_times": [0.0, 1.0]}
    assert len(read_requests(saved(tmp_path, right))) == 2
    path = saved(tmp_path, right | changed)
    with pytest.raises(ProfileError) as refused:
        read_requests(path)
    assert str(refused.value) == f"{path}: request 1: {complaint}"


@pytest.mark.parametrize("errors", [5, [""], {"0": "x"}])
def test_errors_that_belong_to_other_requests(tmp_path: Path, errors: object) -> None:
    right = {"input_lens": [9, 9], "ttfts": [1.0, 1.0], "itls": [[], [0.1]], "start_times": [0.0, 1.0]}
    with pytest.raises(ProfileError, match="errors must be a list as long as input_lens"):
        read_requests(saved(tmp_path, right | {"errors": errors}))


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"a": ' + "1" * 5000 + "}", '{"input_lens": [1, 2'])
def test_no_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match="is not a JSON object, nor is its last line"):
        read_requests(path)


def test_a_summary_of_a_fork_is_refused_with_a_hint(shared: Shared) -> None:
    path = shared("data", "formats", "vllm_bench", "inferencex_variant_real.json")
    with pytest.raises(ProfileError, match="--save-detailed"):
        read_requests(path)


def test_a_real_server_on_a_cpu_takes_a_few_milliseconds(shared: Shared) -> None:
    """The engine's steps alone are 4.6 ms here; TTFT exceeds what they explain by about as much."""
    requests = read_requests(shared("data", "engines", "vllm_cpu_0.32", "vllm_serve_rate4.json"))
    found = server_overhead(requests, engine_steps(requests))
    assert 2e6 < found["overhead_ns"] < 8e6
    assert found["agreeing"] > 0.7


def test_a_burst_says_nothing_about_the_overhead(shared: Shared) -> None:
    """All prompts wait for each other, so that none tells when it arrived."""
    requests = read_requests(shared("data", "engines", "vllm_cpu_0.32", "vllm_serve_rateinf.json"))
    assert server_overhead(requests, engine_steps(requests)) == {}
