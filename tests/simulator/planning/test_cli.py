"""``servetwin capacity`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import main
from simulator.planning import laboratory, planner
from simulator.planning.criteria import criteria
from simulator.planning.deploy import load_test, serve_command
from simulator.scenario import Scenario

CHAT = """\
name: small chat
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
engine: {policy: vllm-v1, max_num_seqs: 32}
workload:
  arrivals: {process: poisson, rate_per_s: 25}
  lengths: {fixed: {prompt: 128, output: 4}}
  requests: 100
slo: {ttft_ms: 200, tpot_ms: 50, percentile: 90}
"""


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small scenario, searched with runs of a fifth of the usual length."""
    monkeypatch.setattr(laboratory, "LEAST_REQUESTS", 600)
    monkeypatch.setattr(planner, "VERIFIED_MOST", 5000)
    path = tmp_path / "chat.yaml"
    path.write_text(CHAT, encoding="utf-8")
    return path


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["capacity", *arguments, "--json", "--workers", "1"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "slo=null"], "capacity needs an SLO"),
        (["--set", "workload.arrivals={process: closed, concurrency: 4}"], "closed arrivals have no rate"),
        (["--set", "workload.arrivals={process: burst}"], "burst arrivals have no rate"),
        (["--replicas", "0"], "--replicas must be auto or a whole number >= 1, not '0'"),
        (["--attainment", "1.5"], "--attainment must be above 0 and below 1, not 1.5"),
        (["--replicas", "9" * 5000], "--replicas must be auto or a whole number >= 1, not '999"),
        (["--workers", "100000000"], "less than or equal to 1024"),
        (["--output", "nowhere/answer.json"], "--output nowhere/answer.json: folder"),
        (
            ["--set", "workload.lengths={fixed: {prompt: 1000000, output: 4}}"],
            "capacity: one replica completes none of these requests",
        ),
        (["--price", "cheap"], "--price cheap: must be USD per GPU-hour"),
        (["--price", "a100-40-sxm=2"], "--price a100-40-sxm: the scenario uses h100-sxm"),
        (["--output", "answer.txt"], "--output answer.txt: must end with .json"),
        (
            ["--set", "replicas=1", "--set", "autoscaling={max: 4, target_outstanding: 8}"],
            "autoscaling: capacity",
        ),
        (["--set", "slo.percentile=99", "--set", "slo.attainment=0.9"], "cannot stand beside percentile"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(
    chat: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(["capacity", str(chat), *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert told in lines[0]


def test_the_answer_stands_in_a_sentence_with_its_doubts(
    chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capacity", str(chat), "--price", "2", "--workers", "1", "--budget", "10000"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("small chat 1 replica for 25.0 requests/s; p90 TTFT ")
    for part in ("SLO met with probability", "limited by", "per million output tokens", "confirmed by"):
        assert part in text
    assert "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 1 --max-num-seqs 32" in text
    assert "--goodput ttft:200 tpot:50" in text


def test_json_holds_everything_and_equal_seeds_give_equal_bytes(
    chat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (str(chat), "--replicas", "1", "--budget", "10000", "--seed", "3")
    first = answered(capsys, *arguments, "--output", str(tmp_path / "answer.json"))
    second = answered(capsys, *arguments)
    assert first == second
    assert first == json.loads((tmp_path / "answer.json").read_text(encoding="utf-8"))
    answer = first["answer"]
    assert answer["replicas"] == 1
    assert 0 < answer["rate_per_s"] <= answer["limit_per_s"]["high"]
    assert answer["rate_per_s"] < answer["saturation_per_replica_per_s"]["value"]
    assert answer["at"]["verdict"] == "met"
    assert answer["verified"] in {"confirmed", "not refuted"}
    assert answer["confirmed"] is (answer["verified"] == "confirmed")
    assert answer["verification"]["verdict"] == "met"
    assert [one["step_time"] for one in answer["sensitivity"]] == [0.9, 0.95, 1.05, 1.1]
    rates = [one["rate_per_s"] for one in answer["sensitivity"]]
    assert rates == sorted(rates, reverse=True)
    assert 0 < answer["doubt"]["probability"] < 1


def test_alternatives_are_ranked_and_the_losers_told_why(
    chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One seat is not enough for 100 requests/s of 0.03 s each; 32 are."""
    rate = "workload.arrivals.rate_per_s=100"
    found = answered(
        capsys, str(chat), "--set", rate, "--vary", "engine.max_num_seqs=1,32", "--budget", "10000"
    )
    assert found["answer"]["name"] == "max_num_seqs=32"
    loser = found["alternatives"][1]
    assert loser["name"] == "max_num_seqs=1"
    assert "GPUs instead of 1" in loser["lost"]
    assert found["answer"]["gpus"] < loser["gpus"]


def test_an_slo_that_nothing_meets_is_said_so_and_exits_with_1(
    chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capacity", str(chat), "--set", "slo={tpot_ms: 1}", "--workers", "1"]) == 1
    assert "No answer: not even nearly idle replicas meet the SLO" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_number_that_cannot_keep_up_is_unstable_whatever_the_run(
    chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(
        capsys,
        str(chat),
        "--set",
        "workload.arrivals.rate_per_s=5000",
        "--replicas",
        "2",
        "--budget",
        "10000",
    )
    own = found["answer"]["scenario_rate"]
    assert own["verdict"] == "unstable"
    assert own["rho"] > 1


def scenario(**changed: Any) -> Scenario:
    fields: dict[str, Any] = {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": "h100-sxm",
        "workload": {
            "arrivals": {"process": "gamma", "rate_per_s": 30, "cv": 0.5},
            "lengths": {"fixed": {"prompt": 512, "output": 128}},
            "requests": 10,
        },
        "slo": {"ttft_ms": 500},
    }
    return Scenario.model_validate(fields | changed)


def test_a_replicas_load_test_has_the_gaps_that_round_robin_leaves_it() -> None:
    """Gamma shape 1 / cv^2 = 4 for the fleet, three times that for one of three replicas."""
    made = scenario()
    command = load_test(made, criteria(made.slo), 30.0, 3, 9000)
    assert "--request-rate 10 --burstiness 12 --num-prompts 9000" in command
    assert "--random-input-len 512 --random-output-len 128" in command


@pytest.mark.parametrize(
    ("engine", "started"),
    [
        ({"policy": "vllm-v1", "prefix_caching": False}, "--no-enable-prefix-caching"),
        ({"policy": "sglang"}, "python -m sglang.launch_server --model-path"),
        ({"policy": "tensorrt-llm", "max_num_seqs": 64}, "--max_batch_size 64 --max_num_tokens 8192"),
        ({"policy": "tgi"}, "text-generation-launcher --model-id"),
    ],
)
def test_engines_are_started_with_their_own_flags(engine: dict[str, Any], started: str) -> None:
    assert started in str(serve_command(scenario(engine=engine)))


def test_policies_that_no_engine_has_come_without_a_command() -> None:
    assert serve_command(scenario(engine={"policy": "single"})) is None
