"""The real thing with a tiny model: measured and fitted; and the dry run of the GPU check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="measuring needs torch: pip install 'servetwin[live]'")
pytest.importorskip("transformers", reason="measuring needs transformers: pip install 'servetwin[live]'")

from backend.attention import choose  # noqa: E402
from backend.models import load_live_model  # noqa: E402
from calibration import live_measure  # noqa: E402
from calibration.compose import fit_timings, read_sessions  # noqa: E402
from calibration.fit import as_profile  # noqa: E402
from calibration.grid import POINT_AXES, Limits, Point, grid  # noqa: E402
from calibration.timings import REFERENCE, read_timings  # noqa: E402
from simulator.models import load_model  # noqa: E402

TINY = "servetwin/llama-tiny"
SMALL = Limits(tokens=256, rows=16, context=512, keys=4096, padded_tokens=512)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_measure, "CPU_LIMITS", SMALL)


def test_every_piece_of_the_grid_can_be_timed(small: None) -> None:
    model = load_live_model(TINY, "bfloat16")
    kernels, _ = choose(model.device, model.dtype, model.kv_shape.head_dim)
    points, bench = live_measure.make_bench(model, kernels, load_model(TINY), np.random.default_rng(0))
    workload = bench.reference_workload()
    assert {point.piece for point in (*points, *workload)} == set(POINT_AXES)
    assert all(taken.ns > 0 for taken in workload.values())
    smallest = dict(sorted(points, reverse=True))
    for piece, at in smallest.items():
        assert bench.time(Point(piece, at)).ns > 0
    assert bench.reference().ns > 0
    assert bench._bench.executor.requests == 0  # nobody is left behind


def test_more_work_takes_longer_and_nothing_is_left_in_the_executor(small: None) -> None:
    """Each piece over a range that no noise can hide."""
    model = load_live_model(TINY, "bfloat16")
    kernels, _ = choose(model.device, model.dtype, model.kv_shape.head_dim)
    _, bench = live_measure.make_bench(model, kernels, load_model(TINY), np.random.default_rng(0))
    for piece, less, more in (("dense", (1,), (128,)), ("prefill_attention", (1, 2, 0), (1, 128, 64))):
        times = [min(bench.time(Point(piece, at)).ns for _ in range(5)) for at in (less, more)]
        assert times[0] < times[1]


def test_measure_then_fit_gives_a_profile_that_knows_its_range(small: None, tmp_path: Path) -> None:
    job = live_measure.Job(TINY, "bfloat16", "cpu", None, tmp_path / "t.jsonl", budget_s=20)
    live_measure.run(job)
    environment, timings = read_timings(job.output)
    assert environment.hardware == "cpu"
    beside = {REFERENCE, "reference_prompts", "reference_steps"}
    assert {timing.point for timing in timings if timing.piece not in beside} <= set(grid(SMALL))
    assert {timing.piece for timing in timings} == {REFERENCE, *POINT_AXES}
    profile = as_profile(fit_timings(*read_sessions([job.output])), "tiny")
    timed = [timing.at[0] for timing in timings if timing.piece == "dense"]
    assert profile.by_tokens["dense"].knots[-1] == max(timed)
    assert profile.padded_decode_attention is not None
    assert len(profile.reference_ns) == 2


def test_the_gpu_check_runs_dry_on_the_cpu(tmp_path: Path) -> None:
    """Every step is taken and leaves its result; a tiny model's accuracy is not the point."""
    script = Path(__file__).parents[2] / "benchmarks" / "gpu_check.sh"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHON": sys.executable, "BUDGET": "120"}
    done = subprocess.run(
        ["sh", str(script), str(tmp_path / "out"), "--device", "cpu"],
        cwd=script.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    steps = (tmp_path / "out" / "steps.txt").read_text()
    assert done.returncode == 0, steps + done.stderr
    assert steps.count(": done after") == 4
    profile = json.loads((tmp_path / "out" / "llama-tiny.profile.json").read_text())
    assert profile["hardware"] == "cpu"
    cases = json.loads((tmp_path / "out" / "kernels.json").read_text())
    assert all(case["right"] for case in cases)


def test_a_cache_too_small_for_the_whole_reference_workload_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks are whole: 46 of 16 tokens hold eight times 81 tokens, but not eight tables of six."""
    monkeypatch.setattr(live_measure, "CPU_LIMITS", SMALL._replace(keys=23 * live_measure.BLOCK_SIZE))
    model = load_live_model(TINY, "bfloat16")
    kernels, _ = choose(model.device, model.dtype, model.kv_shape.head_dim)
    _, bench = live_measure.make_bench(model, kernels, load_model(TINY), np.random.default_rng(0))
    assert bench._bench.kv.blocks == 46
    assert bench.reference_workload() == {}
