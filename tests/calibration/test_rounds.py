"""Measuring keeps what it has, repeats nothing, and tells the machine's drift from the model's time."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.drift import Findings, find_values
from calibration.grid import Point
from calibration.rounds import Taken, measure
from calibration.timings import REFERENCE, Timing, TimingLog, read_timings
from simulator.errors import ProfileError
from tests.calibration.worlds import ENVIRONMENT, POINTS, WORKLOAD, Machine, true_ns

SOME = POINTS[:: len(POINTS) // 40]


def run(machine: Machine, path: Path, points: list[Point] = SOME, budget_s: float = 120) -> Findings:
    log = TimingLog(path, ENVIRONMENT)
    try:
        generator = np.random.default_rng(len(log.timings))
        return measure(points, machine, log, machine.now_ns, generator, budget_s=budget_s)
    finally:
        log.close()


class Killed(Exception):
    """The process is gone."""


class Doomed(Machine):
    """A machine on which the process is killed in the middle of a later execution."""

    left = 25

    def time(self, point: Point) -> Taken:
        self.left -= 1
        if self.left < 0:
            raise Killed
        return super().time(point)


def test_a_steady_machine_is_measured_as_it_is(tmp_path: Path) -> None:
    found = run(Machine(), tmp_path / "t.jsonl")
    assert set(found.values) == {*SOME, *WORKLOAD}
    for point, value in found.values.items():
        assert value.ns == pytest.approx(true_ns(point), rel=1e-6)
    assert (found.rescaled, found.drifting, found.disturbed) == (0, 0, 0)


@pytest.mark.parametrize("period_s", [20.0, 45.0, 300.0])
def test_ramps_to_half_the_speed_and_back_move_no_median_by_more_than_three_percent(
    tmp_path: Path, period_s: float
) -> None:
    def speed(now_s: float) -> float:
        phase = now_s / period_s % 1
        return 1 + (2 * phase if phase < 0.5 else 2 - 2 * phase)

    found = run(Machine(speed), tmp_path / "t.jsonl", budget_s=200)
    scale = found.reference_ns / 9e6
    errors = [value.ns / true_ns(point) / scale - 1 for point, value in found.values.items()]
    assert max(map(abs, errors)) < 0.03
    assert found.rescaled > 0


def test_a_restless_reference_moves_no_median(tmp_path: Path) -> None:
    """All timings tell the machine's speed together; one that is off by a third is one of many."""
    run(Machine(lambda now_s: 1 + now_s / 60 % 1), tmp_path / "t.jsonl", budget_s=200)
    timings = read_timings(tmp_path / "t.jsonl")[1]
    chance = np.random.default_rng(0)
    restless = [
        t._replace(ns=round(t.ns * chance.uniform(0.7, 1.3))) if t.piece == REFERENCE else t
        for t in timings
    ]
    values, moved = find_values(timings).values, find_values(restless).values
    assert max(abs(moved[point].ns / value.ns - 1) for point, value in values.items()) < 0.03


def test_what_is_quick_is_timed_more_often(tmp_path: Path) -> None:
    run(Machine(noise=0.5), tmp_path / "t.jsonl", budget_s=60)
    timings = [t for t in read_timings(tmp_path / "t.jsonl")[1] if t.point in SOME]
    counts = Counter(t.point for t in timings)
    quickest, *_, slowest = sorted(SOME, key=true_ns)
    assert counts[quickest] > 3 * counts[slowest] > 0


def test_what_others_disturb_is_left_out_and_counted(tmp_path: Path) -> None:
    found = run(Machine(waits=0.3, seed=4), tmp_path / "t.jsonl", budget_s=400)
    assert found.disturbed > 20
    for point, value in found.values.items():
        assert value.ns == pytest.approx(true_ns(point), rel=1e-6)


def test_a_killed_session_loses_nothing_and_its_successor_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    first = Doomed()
    with pytest.raises(Killed):
        run(first, path)
    kept = path.read_bytes()
    assert [t.point for t in read_timings(path)[1] if t.point in SOME] == first.timed
    second = Machine()
    found = run(second, path)
    assert path.read_bytes().startswith(kept)
    assert not set(second.timed[: len(SOME) - len(first.timed)]) & set(first.timed)
    whole = run(Machine(), tmp_path / "whole.jsonl")
    for point, value in whole.values.items():
        assert found.values[point].ns == pytest.approx(value.ns, rel=1e-6)
    for point in SOME:
        assert found.values[point].timings == whole.values[point].timings
    again = Machine()
    run(again, path)
    assert again.timed == []  # all is sure: a third session has nothing to do


def test_a_line_cut_short_is_dropped_and_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(Killed):
        run(Doomed(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    cut = whole[:-9].rpartition(b"\n")[0]
    run(Machine(), path)
    assert path.read_bytes().startswith(cut + b"\n{")
    assert len(read_timings(path)[1]) > len(cut.splitlines()) - 1


def test_the_budget_counts_earlier_sessions(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    run(Machine(noise=0.5), path, budget_s=5)
    spent_s = read_timings(path)[1][-1].at_s
    machine = Machine(noise=0.5)
    run(machine, path, budget_s=spent_s)
    assert machine.timed == []
    run(machine, path, budget_s=2 * spent_s)
    assert machine.timed


@pytest.mark.parametrize("name", [item.name for item in fields(ENVIRONMENT) if item.name != "clocks"])
def test_a_file_of_another_machine_model_or_dtype_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.jsonl"
    TimingLog(path, ENVIRONMENT).close()
    before = path.read_bytes()
    value = getattr(ENVIRONMENT, name)
    other = value + 1 if isinstance(value, int) else {"torch": "1"} if name == "versions" else "other"
    with pytest.raises(ProfileError, match=f"its {name} is") as refused:
        TimingLog(path, replace(ENVIRONMENT, **{name: other}))
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == before


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "t.jsonl"
    log = TimingLog(path, ENVIRONMENT)
    log.write(Timing("dense", (4,), 1000, 0, 0.5))
    log.write(Timing(REFERENCE, (), 900, 0, 0.6))
    log.close()
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path.write_bytes(bytes(content))
    try:
        find_values(read_timings(path)[1])
    except ProfileError as error:
        refused = error
    else:
        return
    assert "\n" not in str(refused)
