"""The same question has the same answer, byte for byte."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIO = """
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
replicas: 2
router: least-outstanding
engine: {policy: vllm-v1, max_num_seqs: 24, kv_blocks: 700, scheduling: priority}
workload:
  arrivals: {process: gamma, rate_per_s: 30, cv: 2}
  lengths: {preset: sharegpt}
  requests: 300
"""

CHANGING = """
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
router: power-of-two
autoscaling: {min: 2, max: 6, target_outstanding: 8, start_up_s: 2, interval_s: 1, stabilisation_s: 3}
failures: [{mtbf_s: 10, restart_s: 2}]
engine: {policy: vllm-v1, max_num_seqs: 24}
workload:
  arrivals: {process: gamma, rate_per_s: 30, cv: 2}
  lengths: {preset: sharegpt}
  requests: 300
"""
APART = """
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
router: prefix-affinity
disaggregation: {prefill: {replicas: 2}, decode: {replicas: 2, engine: {kv_blocks: 500}}}
workload:
  arrivals: {process: gamma, rate_per_s: 30, cv: 2}
  lengths: {preset: mooncake-conv, max_prompt_tokens: 4000}
  requests: 100
"""


def digests(scenario: Path, output: Path, *flags: str, hash_seed: str) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "simulator",
        "simulate",
        str(scenario),
        "--output",
        str(output),
        *flags,
    ]
    environment = {"PYTHONHASHSEED": hash_seed, "PATH": ""}
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=Path(__file__).parents[2])
    tables = ("requests.parquet", "iterations.parquet", "scenario.yaml")
    return [hashlib.sha256((output / name).read_bytes()).hexdigest() for name in tables]


def test_one_seed_gives_the_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO)
    first = digests(scenario, tmp_path / "a", hash_seed="0")
    assert digests(scenario, tmp_path / "b", hash_seed="0") == first
    assert digests(scenario, tmp_path / "c", hash_seed="4242") == first
    assert digests(scenario, tmp_path / "d", "--seed", "1", hash_seed="0") != first


@pytest.mark.parametrize("text", [CHANGING, APART], ids=["failures and scaling", "prompts apart"])
def test_whatever_happens_to_replicas_happens_again(tmp_path: Path, text: str) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(text)
    first = digests(scenario, tmp_path / "a", hash_seed="0")
    assert digests(scenario, tmp_path / "b", hash_seed="4242") == first
