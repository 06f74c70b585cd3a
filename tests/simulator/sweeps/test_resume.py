"""A sweep that dies goes on where it was, and ends as if nothing had happened."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.sweeps.work import Record, record_of
from tests.simulator.sweeps.conftest import Run

GRID = ("--vary", "workload.arrivals.rate_per_s=6:20:2", "--vary", "engine.max_num_seqs=16,64")
POINTS = 16
SLOWER = ("--set", "workload.requests=1200", "--set", "workload.lengths={preset: sharegpt}")


def kept(directory: Path) -> dict[str, int]:
    """Every point that is kept, and when it was written."""
    return {path.name: path.stat().st_mtime_ns for path in directory.glob("points/*/*.json")}


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def children(parent: int) -> list[int]:
    """Processes whose parent this is, and theirs."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            pid = int(status.parent.name)
            found += [pid, *children(pid)]
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def started(beside_scenario: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A sweep in a process of its own, two workers."""
    command = [sys.executable, "-m", "simulator", "sweep", "x.yaml", *GRID, *SLOWER]
    process = subprocess.Popen(
        [*command, "--output", "killed", "--workers", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        # Jobs in the background ignore it; no thread is running here.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert process.stderr is not None
    with closing(process.stderr):
        yield process
        process.kill()
        process.wait()


def test_kill_9_in_the_middle_then_resume(run: Run, started: subprocess.Popen[bytes]) -> None:
    """Acceptance 2 of the capacity-planning issue: the table is the same, nothing finished runs again."""
    deadline = time.monotonic() + 120
    while len(kept(Path("killed"))) < 3:
        assert started.poll() is None, "the sweep ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = children(started.pid)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    before = kept(Path("killed"))
    assert 3 <= len(before) < POINTS, "killed in the middle"
    assert not Path("killed/results.parquet").exists(), "no table that looks whole"

    code, out, _ = run("x.yaml", *GRID, *SLOWER, "--output", "killed", "--resume", "--json")
    told = json.loads(out)
    assert (code, told["points"]) == (0, POINTS)
    assert (told["computed"], told["reused"]) == (POINTS - len(before), len(before))
    after = kept(Path("killed"))
    assert {name: after[name] for name in before} == before, "finished points were not written again"

    run("x.yaml", *GRID, *SLOWER, "--output", "whole", "--workers", "1")
    assert contents(Path("killed")) == contents(Path("whole"))

    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "workers outlive a sweep that was killed"
        time.sleep(0.1)


def test_what_a_killed_writer_left_is_removed(run: Run) -> None:
    grid = ("--vary", "engine.max_num_seqs=1,4", "--workers", "1", "--output", "a")
    run("x.yaml", *grid)
    first = contents(Path("a"))
    place = next(Path("a").glob("points/*/*.json"))
    place.rename(place.with_name(f"{place.name}.1234.part"))
    Path("a/results.parquet.1234.part").write_bytes(b"PAR1")
    code, out, _ = run("x.yaml", *grid, "--resume", "--json")
    assert (code, json.loads(out)["computed"]) == (0, 1)
    assert contents(Path("a")) == first


def test_a_folder_where_a_sweep_is_at_work_is_refused(run: Run) -> None:
    grid = ("--vary", "engine.max_num_seqs=1,4", "--workers", "1", "--output", "a", "--resume")
    run("x.yaml", *grid)
    first = contents(Path("a"))
    handle = os.open("a", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        code, out, err = run("x.yaml", *grid)
    finally:
        os.close(handle)
    assert (code, out) == (2, "")
    assert "--output a: another sweep is at work there" in err
    assert run("x.yaml", *grid)[0] == 0
    assert contents(Path("a")) == first


def test_an_interrupt_ends_with_one_line_and_is_resumable(
    run: Run, started: subprocess.Popen[bytes]
) -> None:
    deadline = time.monotonic() + 120
    while len(kept(Path("killed"))) < 2:
        assert started.poll() is None, "the sweep ended before it could be interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    assert started.stderr is not None
    told = started.stderr.read().decode()
    assert started.wait(30) == 130
    assert told == "interrupted: what is done is kept in killed; go on with it by --resume\n"
    before = len(kept(Path("killed")))
    _, out, _ = run("x.yaml", *GRID, *SLOWER, "--output", "killed", "--resume", "--json")
    assert json.loads(out)["computed"] == POINTS - before


def test_a_point_that_was_half_written_is_computed_again(run: Run) -> None:
    grid = ("--vary", "engine.max_num_seqs=1,4,16", "--workers", "1")
    run("x.yaml", *grid, "--output", "a")
    first = contents(Path("a"))
    place = next(Path("a").glob("points/*/*.json"))
    place.write_bytes(place.read_bytes()[:-20])
    code, out, _ = run("x.yaml", *grid, "--output", "a", "--resume", "--json")
    assert (code, json.loads(out)["computed"], json.loads(out)["reused"]) == (0, 1, 2)
    assert contents(Path("a")) == first


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a figure that is no number": lambda record: record["summary"]["e2e_ms"].update(p99=float("nan")),
    "a figure that is text": lambda record: record["summary"]["e2e_ms"].update(p99="fast"),
    "another figure": lambda record: record["summary"]["e2e_ms"].update(p99=1.0),
    "a figure that is missing": lambda record: record["summary"]["e2e_ms"].pop("p99"),
    "a summary that is a list": lambda record: record.update(summary=[]),
    "no summary and no reason": lambda record: record.update(summary=None),
    "notes that are a number": lambda record: record.update(notes=5),
    "a note that is a number": lambda record: record.update(notes=[5]),
    "a reason that is a number": lambda record: record.update(reason=5),
    "no digest": lambda record: record.pop("digest"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_point_that_was_changed_is_computed_again(run: Run, change: str) -> None:
    grid = ("--vary", "engine.max_num_seqs=1,4", "--workers", "1")
    run("x.yaml", *grid, "--output", "a")
    first = contents(Path("a"))
    place = next(Path("a").glob("points/*/*.json"))
    record = json.loads(place.read_text())
    CHANGES[change](record)
    place.write_text(json.dumps(record))
    code, out, _ = run("x.yaml", *grid, "--output", "a", "--resume", "--json")
    assert (code, json.loads(out)["computed"]) == (0, 1)
    assert contents(Path("a")) == first


@pytest.mark.parametrize(
    "text", ["[]", "5", "[" * 100_000, "\0", '{"summary": {}, "notes": [], "reason": ""}']
)
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the record of a point"):
        record_of(text)


@given(
    summary=st.none() | st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    notes=st.lists(st.text()).map(tuple),
    reason=st.text(),
)
def test_a_record_is_read_back_as_it_was(
    summary: dict[str, Any] | None, notes: tuple[str, ...], reason: str
) -> None:
    record = Record(summary, notes, reason)
    assert record_of(record.text()) == record


def test_a_finished_sweep_is_never_computed_again(run: Run) -> None:
    grid = ("--vary", "engine.max_num_seqs=1,4,16", "--workers", "1", "--output", "a")
    run("x.yaml", *grid)
    first = contents(Path("a"))
    code, out, _ = run("x.yaml", *grid, "--resume", "--json")
    assert (code, json.loads(out)["computed"], json.loads(out)["reused"]) == (0, 0, 3)
    assert contents(Path("a")) == first


def test_a_wider_grid_reuses_what_it_shares(run: Run) -> None:
    run("x.yaml", "--vary", "engine.max_num_seqs=1,4", "--output", "a", "--workers", "1")
    wider = ("--vary", "engine.max_num_seqs=1,4,16", "--output", "a", "--workers", "1", "--json")
    code, out, err = run("x.yaml", *wider)
    assert (code, out) == (2, "")
    assert "holds another sweep that shares points with this one" in err
    code, out, err = run("x.yaml", *wider, "--resume")
    assert (code, json.loads(out)["computed"], json.loads(out)["reused"]) == (0, 1, 2)
    assert "a held another sweep; its points that this one shares are reused" in err


def test_points_depend_on_what_files_hold_and_not_on_the_name(run: Run) -> None:
    Path("lengths.csv").write_text("prompt_tokens,output_tokens\n100,10\n", encoding="utf-8")
    grid = ("--vary", "engine.max_num_seqs=1,4", "--output", "a", "--workers", "1", "--json")
    drawn = ("--set", "workload.lengths={empirical: lengths.csv}")
    run("x.yaml", *grid, *drawn)
    drawn += ("--set", "name=other")
    renamed = json.loads(run("x.yaml", *grid, *drawn, "--resume")[1])
    assert (renamed["computed"], renamed["scenario"]) == (0, "other")
    Path("lengths.csv").write_text("prompt_tokens,output_tokens\n200,10\n", encoding="utf-8")
    assert json.loads(run("x.yaml", *grid, *drawn, "--resume")[1])["computed"] == 2


def test_points_of_another_version_are_computed_afresh(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = ("--vary", "engine.max_num_seqs=1,4", "--output", "a", "--workers", "1", "--json")
    run("x.yaml", *grid)
    for module in ("address", "points", "sweep", "work"):
        monkeypatch.setattr(f"simulator.sweeps.{module}.version", lambda: "9.9.9")
    code, out, err = run("x.yaml", *grid, "--resume")
    assert (code, json.loads(out)["computed"], json.loads(out)["reused"]) == (0, 2, 0)
    assert "those points are computed afresh" in err
