"""The GPU's kernels, run by Triton's interpreter on the CPU: right results, if not right speed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the live backend needs torch (pip install servetwin[live])")


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed (pip install triton)")
def test_the_triton_kernels_equal_the_reference() -> None:
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-m", "tests.backend.attention.interpreted"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("agrees") == 6
