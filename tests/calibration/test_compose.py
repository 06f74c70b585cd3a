"""Known coefficients come back from the timings they made; a damaged profile is never taken for whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.cli import app
from calibration.compose import FACTORS, fit_timings
from calibration.fit import as_profile, compact_json, write_profile
from calibration.timings import Timing, TimingLog
from simulator.cli import main
from simulator.cost_model import ProfileCostModel
from simulator.engine.plan import IterationShape
from simulator.errors import ProfileError
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.profile import read_profile
from simulator.roofline import Roofline
from tests.calibration.worlds import BETWEEN_NS, ENVIRONMENT, Machine, iteration_ns, measured, timings

BOUNDS = Roofline(load_model(ENVIRONMENT.model), load_hardware("cpu"), "bfloat16", 1)


@cache
def fitted() -> str:
    return json.dumps(fit_timings(ENVIRONMENT, timings()))


def shapes(padded: bool) -> list[IterationShape]:
    """Iterations that no grid holds, within the measured range."""
    chance = np.random.default_rng(11)
    found = []
    for kind in range(60):
        chunks = 0 if kind % 3 == 0 else int(chance.integers(1, 5))
        tokens = int(chance.integers(10, 400))
        start = 0 if padded else int(chance.integers(0, 600))
        rows = 0 if kind % 3 == 1 or (padded and chunks) else int(chance.integers(1, 60))
        pairs = chunks * (tokens * start + tokens * (tokens + 1) // 2)
        found.append(
            IterationShape(chunks, chunks * tokens, pairs, rows, int(rows * chance.integers(20, 500)))
        )
    return found


def errors(fields: dict[str, Any], padded: bool = False) -> list[float]:
    profile = as_profile(fields, "mine")
    cost = ProfileCostModel(profile.for_padded_batches() if padded else profile, BOUNDS)
    return [
        cost.iteration_ns(shape) / (iteration_ns(shape, padded) + BETWEEN_NS) - 1
        for shape in shapes(padded)
    ]


@pytest.mark.parametrize("padded", [False, True])
def test_known_coefficients_are_recovered_within_one_percent(padded: bool) -> None:
    found = errors(json.loads(fitted()), padded)
    assert np.median(np.abs(found)) < 0.005
    assert np.max(np.abs(found)) < 0.01


def test_twenty_percent_outliers_move_nothing_by_more_than_three_percent(tmp_path: Path) -> None:
    """An outlier takes up to four times as long; measuring goes on until the medians do not mind."""
    found = measured(Machine(outliers=0.2, seed=6), tmp_path / "t.jsonl", budget_s=1000)
    fields = fit_timings(ENVIRONMENT, found)
    assert np.max(np.abs(errors(fields))) < 0.03
    assert np.max(np.abs(errors(fields, padded=True))) < 0.03


def test_the_hosts_shares_and_the_time_between_iterations_are_told_apart() -> None:
    host = json.loads(fitted())["host"]
    assert host["scheduling"]["iteration_ns"] == pytest.approx(BETWEEN_NS, rel=0.01)
    assert host["iteration_ns"] == pytest.approx(320_000, rel=0.25)
    assert host["row_ns"] == pytest.approx(4_000, rel=0.5)


def test_what_costs_more_in_place_than_alone_is_priced_as_in_place() -> None:
    """All whole iterations take a tenth longer than their pieces, as they do where caches are cold."""
    slower = [
        timing._replace(ns=int(timing.ns * 1.1))
        if timing.piece.startswith(("iteration", "padded_p", "padded_s"))
        else timing
        for timing in timings()
    ]
    fields = fit_timings(ENVIRONMENT, slower)
    assert all(1.05 < fields["in_place"][name] < 1.12 for name in FACTORS[:3])
    found = [(error + 1) / 1.1 - 1 for error in errors(fields)]
    assert np.max(np.abs(found)) < 0.02


def test_held_out_errors_are_of_iterations_and_see_what_the_composition_misses() -> None:
    good = json.loads(fitted())["held_out_error"]["iterations"]
    spoiled = [
        timing._replace(ns=timing.ns * 2)
        if timing.piece == "iteration" and timing.at[0] and timing.at[3]
        else timing
        for timing in timings()
    ]
    bad = fit_timings(ENVIRONMENT, spoiled)["held_out_error"]["iterations"]
    assert good["p95"] < 0.01
    assert bad["p95"] > 0.1


def test_a_profile_is_small_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    write_profile(json.loads(fitted()), path)
    assert len(path.read_text().splitlines()) < 180
    profile = read_profile(path)
    assert profile.kind == "measured"
    assert len(profile.reference_ns) == 2


@pytest.mark.parametrize("missing", ["dense", "head", "prefill_attention", "decode_attention"])
def test_timings_without_an_operator_are_refused(missing: str) -> None:
    rest = [timing for timing in timings(3) if timing.piece != missing]
    with pytest.raises(ProfileError, match=f"hold '{missing}' at 0 places"):
        fit_timings(ENVIRONMENT, rest)


def test_timings_without_whole_iterations_are_refused() -> None:
    rest = [timing for timing in timings(3) if timing.piece != "iteration"]
    with pytest.raises(ProfileError, match="a larger --budget"):
        fit_timings(ENVIRONMENT, rest)


def write(path: Path, found: list[Timing]) -> None:
    log = TimingLog(path, ENVIRONMENT)
    for timing in found:
        log.write(timing)
    log.close()


def test_the_command_fits_files_of_timings_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = timings(4)
    half = next(i for i, timing in enumerate(found) if i > len(found) // 2 and timing.piece == "reference")
    for name, part in (("a.jsonl", found[: half + 1]), ("b.jsonl", found[half:])):
        write(tmp_path / name, part)
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    app(["fit", *files, "--output", str(tmp_path / "p.json")], standalone_mode=False)
    assert "iterations" in capsys.readouterr().out
    read_profile(tmp_path / "p.json")


SCENARIO = """\
model: servetwin/llama-50m
hardware: cpu
engine: {policy: vllm-v1, kv_blocks: 512, max_model_len: 512}
workload: {arrivals: {process: burst}, lengths: {fixed: {prompt: 30, output: 4}}, requests: 3}
"""


def edited(change: Callable[[dict[str, Any]], object], honest: bool = True) -> str:
    """A profile with a change; ``honest``: whoever made it took the checksum out."""
    fields = json.loads(fitted())
    change(fields)
    return compact_json(fields if honest else {**fields, "checksum": "0123456789abcdef"})


DAMAGED: dict[str, Callable[[], tuple[str, str]]] = {
    "truncated": lambda: (compact_json(json.loads(fitted()))[:-700], "not valid JSON"),
    "edited": lambda: (edited(lambda f: f["host"].update(iteration_ns=1), honest=False), "checksum"),
    "other model": lambda: (edited(lambda f: f.update(model="servetwin/llama-250m")), "its model is"),
    "other dtype": lambda: (edited(lambda f: f.update(dtype="float32")), "its dtype is float32"),
    "missing operator": lambda: (
        edited(lambda f: f["operators"].pop("head")),
        "operator 'head' is missing",
    ),
    "NaN": lambda: (edited(lambda f: f["operators"]["head"]["ns"].insert(0, float("nan"))), "holds NaN"),
    "falling": lambda: (edited(lambda f: f["operators"]["dense"]["ns"].reverse()), "falls from"),
    "half a padded batch": lambda: (
        edited(lambda f: f["operators"].update(padded_decode_attention={"rows": [1]})),
        "padded_decode_attention.contexts",
    ),
    "empty": lambda: ("", "not valid JSON"),
    "not text": lambda: ("\0\0", "not valid JSON"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_profile_is_refused_in_one_line(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, complaint = DAMAGED[damage]()
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    (tmp_path / "mine.json").write_text(text)
    code = main(
        [
            "simulate",
            str(tmp_path / "scenario.yaml"),
            "--set",
            f"profile={tmp_path / 'mine.json'}",
            "--json",
        ]
    )
    written = capsys.readouterr()
    assert code == 2
    assert written.out == ""
    assert complaint in written.err
    assert len(written.err.splitlines()) == 1


def test_a_sound_one_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    write_profile(json.loads(fitted()), tmp_path / "mine.json")
    code = main(
        [
            "simulate",
            str(tmp_path / "scenario.yaml"),
            "--set",
            f"profile={tmp_path / 'mine.json'}",
            "--json",
        ]
    )
    assert code == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["profile"] == {"name": "mine", "kind": "measured", "extrapolated": 0.0}
