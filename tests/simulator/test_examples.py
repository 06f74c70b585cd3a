"""The scripts under ``examples/`` run and say what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str, folder: Path, *arguments: str) -> list[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_compare_policies(tmp_path: Path) -> None:
    lines = example("compare_policies.py", tmp_path)
    figures = {line.split()[0]: float(line.split()[1].replace(",", "")) for line in lines[2:7]}
    assert figures["vllm-v1"] > figures["static"], "batches that end together waste seats"
    assert lines[7].startswith("nobody beats ")
    assert "nobody beats static" not in lines


def test_replay_trace(tmp_path: Path) -> None:
    first, second, _ = example("replay_trace.py", tmp_path)
    assert first.startswith("trace at 1x: 400 requests, TTFT p99 ")
    p99_ms = [float(line.split("TTFT p99 ")[1].split()[0]) for line in (first, second)]
    assert p99_ms[1] > p99_ms[0], "twice the load waits longer"
    page = (tmp_path / "percentiles.html").read_text(encoding="utf-8")
    assert "trace at 2x" in page


def test_chat_capacity(tmp_path: Path) -> None:
    lines = example("chat_capacity.py", tmp_path, "60")
    assert lines[0].startswith("chat service: 1 replicas on h100-sxm for 60 requests/s")
    assert any(line.startswith("2.50 USD per hour") for line in lines)
