"""Asks the real scheduler, which lives in an environment of its own, for its decisions."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.differential.vllm_v1.replay import Step
from tests.differential.vllm_v1.workloads import LONGEST, Workload

PYTHON_VARIABLE = "SERVETWIN_VLLM_PYTHON"
RECORD = Path(__file__).with_name("record.py")


class Recording(NamedTuple):
    vllm: str  # version
    decisions: list[list[Step]]  # of each workload


def record(workloads: list[Workload]) -> Recording:
    """Run `record.py`."""
    asked = {"max_model_len": LONGEST, "workloads": workloads}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "workloads.json"), Path(folder, "decisions.json")
        source.write_text(json.dumps(asked), encoding="utf-8")
        command = [_python(), str(RECORD), str(source), str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return Recording(**json.loads(target.read_text(encoding="utf-8")))


def _python() -> str:
    python = os.environ.get(PYTHON_VARIABLE)
    if not python:
        pytest.skip(f"{PYTHON_VARIABLE} is not set: see tests/differential/make_vllm_env.sh")
    return python
