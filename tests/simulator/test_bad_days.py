"""What a hostile afternoon found: each ended in a traceback, a lost file or a silent wrong answer once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.cli import main
from simulator.errors import TraceError
from simulator.results import write_results
from simulator.workloads.describe import describe
from tests.simulator.run_examples import random_run, summary_of

SCENARIO = """
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
workload:
  arrivals: {process: poisson, rate_per_s: 8}
  lengths: {fixed: {prompt: 100, output: 10}}
  requests: 5
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO)
    return file


@pytest.mark.parametrize("target", ["s.yaml", "results/summary.json", "page.txt"])
def test_a_report_replaces_nothing_but_pages(
    scenario: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = scenario.parent / target
    results = str(scenario.parent / "results")
    assert main(["simulate", str(scenario), "--output", results, "--report", str(place)]) == 2
    assert (
        capsys.readouterr().err
        == f"error: --report {place}: must end with .html; nothing else is ever replaced\n"
    )
    assert scenario.read_text() == SCENARIO
    assert not Path(results).exists()


def test_a_report_never_follows_a_link_or_replaces_a_device(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = scenario.parent / "page.html"
    link.symlink_to(scenario)
    assert main(["simulate", str(scenario), "--report", str(link)]) == 2
    assert capsys.readouterr().err == f"error: --report {link}: is not an ordinary file\n"
    assert scenario.read_text() == SCENARIO


def test_comparing_alternatives_that_serve_nobody_says_so(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(scenario), "--vary", "engine.kv_blocks=1,2"]) == 0
    shown = capsys.readouterr().out
    assert "rejected" in shown


def test_results_that_could_not_be_written_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise RuntimeError("INTERRUPT Error: Interrupted!")

    monkeypatch.setattr("simulator.results._flush", interrupted)
    tables = random_run(20)
    with pytest.raises(KeyboardInterrupt):
        write_results(tmp_path / "results", SCENARIO, summary_of(tables), tables)
    assert list((tmp_path / "results").iterdir()) == []


def test_a_time_that_went_wrong_is_no_placeholder(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    for time in ("NaN", ""):
        trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{time},10,10\n")
        with pytest.raises(TraceError, match=r"t\.csv:2: TIMESTAMP"):
            describe(trace)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_behind_standard_output_is_one_line(scenario: Path) -> None:
    command = [sys.executable, "-m", "simulator", "simulate", str(scenario)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: No space left on device\n"


def test_a_profile_nested_beyond_reason_is_one_line(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = scenario.parent / "deep.json"
    profile.write_text("[" * 100_000)
    assert main(["simulate", str(scenario), "--set", f"profile={profile}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_ten_thousand_replicas_cost_no_memory_before_they_work(scenario: Path) -> None:
    """A replica's free blocks are counted, not listed."""
    assert main(["simulate", str(scenario), "--set", "replicas=10000", "--json"]) == 0
