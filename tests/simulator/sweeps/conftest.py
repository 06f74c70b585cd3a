"""A short scenario to sweep, and the command line beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulator import cli

SCENARIO = """\
name: a few requests
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
profile: roofline
engine: {max_num_batched_tokens: 4096, max_model_len: 4096}
workload:
  arrivals: {process: poisson, rate_per_s: 8}
  lengths: {fixed: {prompt: 100, output: 10}}
  requests: 20
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def beside_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``x.yaml``, which is also where the test works."""
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(SCENARIO, encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], beside_scenario: Path) -> Run:
    """Run ``sweep`` beside a short scenario; gives exit code, standard output and standard error."""

    def command(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["sweep", *arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    return command
