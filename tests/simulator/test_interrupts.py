"""A command that is stopped says so in one line, and leaves neither half a file nor a process behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from simulator.cli import main
from simulator.cli_lists import LISTINGS
from tests.simulator.sweeps.test_resume import alive, children

SCENARIO = """\
name: a few requests
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
profile: roofline
slo: {ttft_ms: 500}
workload:
  arrivals: {process: poisson, rate_per_s: 8}
  lengths: {fixed: {prompt: 100, output: 10}}
  requests: 20
"""
KEPT = "what is done is kept in out; go on with it by --resume"


@pytest.fixture(autouse=True)
def beside_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(SCENARIO, encoding="utf-8")
    # Jobs in the background ignore some of them.
    heard = {signal.SIGINT: signal.default_int_handler}
    usual = dict.fromkeys((signal.SIGTERM, signal.SIGHUP), signal.SIG_DFL) | heard
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("simulate", "x.yaml", "--output", "out"), "interrupted"),
        (("simulate", "x.yaml", "--report", "x.html"), "interrupted"),
        (("simulate", "x.yaml", "--timeline", "x.json"), "interrupted"),
        (("compare", "x.yaml", "--vary", "engine.max_num_seqs=1,4", "--output", "out"), "interrupted"),
        (
            ("sweep", "x.yaml", "--vary", "seed=1,2", "--workers", "1", "--output", "out"),
            f"interrupted: {KEPT}",
        ),
        (("workload", "generate", "x.yaml", "--to", "lengths", "--output", "x.csv"), "interrupted"),
    ],
)
def test_a_signal_while_a_file_is_written(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    said: str,
    number: signal.Signals,
) -> None:
    """Files are flushed to the disk while they still lie under another name."""
    monkeypatch.setattr(os, "fsync", lambda _: signal.raise_signal(number))
    before = signal.getsignal(number)
    assert main(command) == 128 + number
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"{said}\n")
    assert not list(Path().rglob("*.part"))
    assert signal.getsignal(number) is before


def test_measuring_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scipy")
    from calibration import live_measure

    monkeypatch.setattr(live_measure, "run", lambda _: signal.raise_signal(signal.SIGTERM))
    assert main(["calibrate", "measure", "--output", "m.jsonl"]) == 143
    told = capsys.readouterr()
    assert (told.out, told.err) == (
        "",
        "interrupted: timings so far are kept in m.jsonl; the same command goes on\n",
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_workers_of_a_command_end_with_it(number: signal.Signals) -> None:
    command = ["capacity", "x.yaml", "--workers", "2", "--budget", "1000000000", "--output", "x.json"]
    with subprocess.Popen(
        [sys.executable, "-m", "simulator", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while len(workers := children(process.pid)) < 2:
                assert process.poll() is None, "the search ended before it could be stopped"
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(number)
            _, told = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, told) == (128 + number, "interrupted\n")
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "workers outlive a command that was stopped"
        time.sleep(0.05)


def test_an_interrupt_that_python_loses_comes_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Dropped:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def endless() -> None:
        Dropped()
        gc.collect()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            time.sleep(0.01)

    monkeypatch.setitem(LISTINGS, "models", endless)
    assert main(["list", "models"]) == 143
    assert capsys.readouterr().err == "interrupted\n"


def test_what_a_library_makes_of_an_interrupt_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("could not be loaded") from None

    monkeypatch.setitem(LISTINGS, "models", fail)
    assert main(["list", "models"]) == 143
    assert capsys.readouterr().err == "interrupted\n"


def test_a_signal_that_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def go_on() -> list[dict[str, object]]:
        signal.raise_signal(signal.SIGHUP)
        return []

    monkeypatch.setitem(LISTINGS, "models", go_on)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["list", "models"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
