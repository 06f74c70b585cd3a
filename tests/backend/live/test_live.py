"""The same scenario simulated and live: one scheduler class, the same requests, the same files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from backend.clock import WallClock
from backend.live import run_live
from backend.models import load_live_model
from simulator.cli import main
from simulator.errors import ScenarioError
from simulator.policies import POLICIES
from simulator.scenario_file import load_scenario
from simulator.simulation import simulate
from tests.backend.live.test_models import engine, prompts
from tests.backend.live.tiny import Oracle, serve

SCENARIO = """\
name: tiny
model: servetwin/llama-tiny
hardware: cpu
profile: roofline
dtype: float32
engine: {policy: vllm-v1, max_num_seqs: 4, kv_blocks: 256, max_model_len: 128}
workload:
  arrivals: {process: burst}
  lengths: {uniform: {prompt: [2, 30], output: [1, 12]}}
  requests: 10
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.mark.parametrize("policy", POLICIES)
def test_simulate_and_run_use_one_scheduler_class(policy: str, scenario: Path, constructions) -> None:
    settings = load_scenario(scenario, [f"engine={{policy: {policy}, kv_blocks: 256, max_model_len: 128}}"])
    simulated = simulate(settings)
    assert list(constructions.values()) == [1]
    answers: dict[int, list[int]] = {}
    live = run_live(settings, on_answer=lambda request, tokens: answers.update({request.id: tokens}))
    assert list(constructions.values()) == [2], "another class, or a second scheduler"
    for column in ("id", "prompt_tokens", "output_tokens", "output_limit", "status"):
        assert live.tables.requests[column].tolist() == simulated.tables.requests[column].tolist(), column
    assert [len(answers[i]) for i in range(10)] == live.tables.requests["output_tokens"].tolist()
    paid = {"gpus", "gpu_seconds"}  # of a fleet that somebody rents
    assert live.summary.keys() == simulated.summary.keys() - paid | {"live"}


def test_all_policies_give_the_same_answers(scenario: Path) -> None:
    found: dict[str, dict[int, list[int]]] = {}
    for policy in POLICIES:
        answers = found[policy] = {}
        settings = load_scenario(
            scenario, [f"engine={{policy: {policy}, kv_blocks: 256, max_model_len: 128}}"]
        )
        run_live(
            settings,
            on_answer=lambda request, tokens, answers=answers: answers.update({request.id: tokens}),
        )
    assert all(answers == found["single"] for answers in found.values())


def test_a_burst_is_planned_alike_simulated_and_live(scenario: Path) -> None:
    """With every request there from the start, time decides nothing: the iterations are the same."""
    settings = load_scenario(scenario)
    shapes = []
    for tables in (simulate(settings).tables, run_live(settings).tables):
        table, rows = tables.iterations, []
        for i, repeats in enumerate(table["repeats"]):
            grown = int(table["decodes"][i])
            rows += [
                (int(table["prefill_tokens"][i]), grown, int(table["context_tokens"][i]) + run * grown)
                for run in range(repeats)
            ]
        shapes.append(rows)
    assert shapes[0] == shapes[1]


def test_closed_clients_have_one_request_in_flight(scenario: Path) -> None:
    settings = load_scenario(scenario, ["workload.arrivals={process: closed, concurrency: 3}"])
    requests = run_live(settings).tables.requests
    assert requests["status"].tolist() == [0] * 10
    for at in requests["arrival_ns"]:
        in_flight = (requests["arrival_ns"] <= at) & (requests["finished_ns"] > at)
        assert in_flight.sum() <= 3


def test_the_command_writes_the_same_files_as_simulate(scenario: Path, tmp_path: Path, capsys) -> None:
    assert main(["run", str(scenario), "--skip-idle", "--output", str(tmp_path / "live")]) == 0
    assert "10 of 10 requests completed" in capsys.readouterr().out
    assert main(["simulate", str(scenario), "--output", str(tmp_path / "twin")]) == 0
    names = [sorted(file.name for file in (tmp_path / folder).iterdir()) for folder in ("live", "twin")]
    assert names[0] == names[1]
    live = json.loads((tmp_path / "live" / "summary.json").read_text())["live"]
    assert 0 < live["scheduler_share"] < 1
    assert live["attention"]


def test_switching_the_policy_is_noted_live_too(scenario: Path, capsys) -> None:
    scenario.write_text(SCENARIO.replace("kv_blocks", "max_num_batched_tokens: 99, kv_blocks"))
    assert main(["run", str(scenario), "--set", "engine.policy=orca", "--json"]) == 0
    note = "note: the file's engine.max_num_batched_tokens is left out: no key of this policy"
    assert note in capsys.readouterr().err.splitlines()


def test_a_live_run_is_one_replica(scenario: Path) -> None:
    with pytest.raises(ScenarioError, match="one replica"):
        run_live(load_scenario(scenario, ["replicas=2"]))


def test_idle_time_can_be_skipped() -> None:
    clock = WallClock(skip_idle=True)
    clock.sleep_until(3_600_000_000_000)
    assert clock.now_ns() >= 3_600_000_000_000
    before = clock.now_ns()
    clock.sleep_until(5)
    assert before <= clock.now_ns() < before + 1_000_000_000


def test_half_precision_flips_tokens_only_where_two_are_nearly_tied(folder_of) -> None:
    """The first token that differs from float32's lies within what transformers' own bfloat16 errs."""
    oracle, rounded, asked = Oracle(folder_of("llama")), Oracle(folder_of("llama")), prompts(6)
    oracle.module.to(torch.bfloat16).float()
    rounded.module.to(torch.bfloat16)
    model = load_live_model(str(folder_of("llama")), "bfloat16")
    answers = serve(model, engine(), 64, 8, asked).answers
    for i, prompt in enumerate(asked):
        expected = oracle.answer(prompt.tokens, 24)
        if answers[i] == expected:
            continue
        first = next(k for k in range(24) if answers[i][k] != expected[k])
        known = torch.tensor([[*prompt.tokens, *expected[:first]]])
        with torch.inference_mode():
            exact, coarse = (side.module(known).logits[0, -1].float() for side in (oracle, rounded))
        error = (exact - coarse).abs().max()
        margin = exact[expected[first]] - exact[answers[i][first]]
        assert margin <= 3 * error, f"request {i}: token {first} flipped without a tie"
