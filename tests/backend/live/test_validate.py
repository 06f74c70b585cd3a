"""The same engine live and simulated: one scheduler class, one composition, every error told."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from backend import validate as live_side
from backend.executor import TorchExecutor
from backend.models import load_live_model
from backend.paged_kv import PagedKV
from backend.reference import time_reference
from backend.validate import LiveEngine
from simulator.cli import main
from simulator.errors import ScenarioError
from simulator.policies import POLICIES
from simulator.results import read_results
from simulator.scenario_file import load_scenario
from tests.backend.live.tiny import kernels_of

SCENARIO = """\
name: tiny
model: servetwin/llama-tiny
hardware: cpu
profile: roofline
dtype: float32
engine: {policy: vllm-v1, max_num_seqs: 4, max_num_batched_tokens: 32, kv_blocks: 48, max_model_len: 128}
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


@pytest.fixture
def quick_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference always takes the same; it is no part of what is tested."""
    monkeypatch.setattr(live_side, "time_reference", lambda _: (1e6, 1e6))


def executor_with(blocks: int, block_size: int = 16) -> TorchExecutor:
    model = load_live_model("servetwin/llama-tiny", "float32")
    kv = PagedKV(model.kv_shape, blocks, block_size, model.dtype, model.device)
    return TorchExecutor(model, kv, kernels_of(model))


@pytest.mark.usefixtures("quick_reference")
@pytest.mark.parametrize("policy", POLICIES)
def test_simulate_and_validate_construct_one_scheduler_class(
    policy: str, scenario: Path, constructions: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ["--set", f"engine={{policy: {policy}, kv_blocks: 48, max_model_len: 64}}"]
    assert main(["simulate", str(scenario), *engine]) == 0
    assert list(constructions.values()) == [1]
    command = ["validate", str(scenario), "--profile", "roofline", "--device", "cpu", "--repeat", "1"]
    assert main([*command, *engine, "--json"]) == 0
    # Live: to warm up and in earnest; simulated: as it is, at the live run's speed and at its cost.
    assert list(constructions.values()) == [1 + 2 + 3], "another class had a part in it"
    told = json.loads(capsys.readouterr().out.partition("\n{")[2].join(("{", "")))
    assert told["policy"] == policy


@pytest.mark.usefixtures("quick_reference")
@pytest.mark.parametrize("when", ["model", "files"])
def test_a_signal_ends_it_in_one_line(
    when: str, scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """While the model runs, and while files still lie under another name."""

    def end(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    if when == "files":
        monkeypatch.setattr(os, "fsync", end)
    else:
        monkeypatch.setattr(TorchExecutor, "begin", end)
    command = ["validate", str(scenario), "--profile", "roofline", "--repeat", "1"]
    assert main([*command, "--output", str(tmp_path / "out")]) == 143
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "interrupted\n")
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.usefixtures("quick_reference")
def test_a_burst_is_composed_alike_to_the_end(scenario: Path, tmp_path: Path, capsys) -> None:
    folder, page = tmp_path / "out", tmp_path / "page.html"
    command = ["validate", str(scenario), "--profile", "roofline", "--repeat", "2"]
    assert main([*command, "--json", "--output", str(folder), "--report", str(page)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [run["identical"] for run in told["composition"]] == [True, True]
    assert told["metrics"]["iterations"]["error"] == 0
    assert told == json.loads((folder / "validation.json").read_text())
    live, twin = (read_results(folder / name) for name in ("live-1", "twin"))
    for column in ("prompt_tokens", "output_tokens", "output_limit", "arrival_ns", "preemptions"):
        assert live.requests[column].tolist() == twin.requests[column].tolist(), column
    assert live.summary["kv"]["blocks"] == twin.summary["kv"]["blocks"] == told["kv_blocks"] == 48
    assert "live 2" in page.read_text()
    assert main([*command, "--output", str(folder), "--repeat", "1"]) == 0, "results may be replaced"


def test_sizes_that_the_live_engine_finds_are_those_of_the_twin(scenario: Path) -> None:
    settings = load_scenario(scenario, ["engine.kv_blocks=auto", "engine.max_model_len=null"])
    live = LiveEngine(settings)
    assert live.scenario.engine.kv_blocks == 4 * 2048 // 16, "what four seats of the longest can fill"
    assert live.scenario.engine.max_model_len == 2048
    assert live.run().kv_blocks == live.scenario.engine.kv_blocks


def test_a_check_that_fails_says_what_and_exits_with_one(scenario: Path, capsys) -> None:
    """The roofline of a data sheet does not price a model of a million parameters within a per mille."""
    command = ["validate", str(scenario), "--profile", "roofline", "--repeat", "1", "--max-error", "0.001"]
    assert main(command) == 1
    told = capsys.readouterr()
    assert "FAILED: " in told.out
    assert "failed: TPOT mean" in told.err


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--profile", "nowhere.json"], "error: profile nowhere.json: cannot be read: No such file"),
        (["--profile", "h100-sxm_qwen3-8b_bf16_tp1"], "does not belong to this scenario: its model is"),
        (["--profile", "roofline", "--max-error", "inf"], "error: --max-error inf: must be a share"),
        (["--profile", "roofline", "--repeat", "0"], "error: invalid value for '--repeat'"),
        (["--profile", "roofline", "--set", "replicas=2"], "one replica on one device"),
        (["--profile", "roofline", "--set", "engine.kv_blocks=5"], "engine.kv_blocks: "),
        (
            ["--profile", "roofline", "--report", "page.txt"],
            "error: --report page.txt: must end with .html",
        ),
        (["--profile", "roofline", "--device", "tpu"], "so its twin would be one of another machine"),
        (["--profile", "roofline", "--device", "cuda"], "--device cuda: the scenario's hardware is cpu"),
        ([], "missing option '--profile'"),
    ],
)
def test_bad_input_is_one_line(options: list[str], line: str, scenario: Path, capsys) -> None:
    assert main(["validate", str(scenario), *options]) == 2
    told = capsys.readouterr()
    assert line in told.err
    assert len(told.err.splitlines()) == 1
    assert not told.out


def test_the_reference_leaves_no_trace(scenario: Path) -> None:
    """Between two references the same scenario runs twice on one executor and is composed alike."""
    live = LiveEngine(load_scenario(scenario))
    prompts, decodes = live.time_reference()
    assert prompts > 0
    assert decodes > 0
    first = live.run()
    live.time_reference()
    second = live.run()
    assert live._executor.requests == 0
    for name in ("prefill_tokens", "prefill_pairs", "decodes", "context_tokens", "kv_blocks_used"):
        assert first.iterations[name].tolist() == second.iterations[name].tolist(), name


def test_a_small_cache_times_one_request_and_a_tiny_one_is_refused() -> None:
    assert len(time_reference(executor_with(blocks=8 * 6))) == 2
    assert len(time_reference(executor_with(blocks=8 * 6 - 1))) == 1
    with pytest.raises(ScenarioError, match="need 6 blocks of 16 tokens, there are 5"):
        time_reference(executor_with(blocks=5))
