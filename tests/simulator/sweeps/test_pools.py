"""Workers that die, on this machine."""

from __future__ import annotations

import os
import signal
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from simulator.errors import UserError
from simulator.scenario import Scenario
from simulator.sweeps import pools
from simulator.sweeps.pools import DEAD, local_pool
from simulator.sweeps.work import Record, Task

DONE = Record({"fine": True})


def die_once(task: Task) -> Record:
    """Kills its process the first time that it is called for a point."""
    mark = Path(task.folder) / task.version
    if task.version.startswith("once") and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if task.version == "always":
        os.kill(os.getpid(), signal.SIGKILL)
    return DONE


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, Task]:
    names = ("a", "once-b", "c", "always", "d", "e")
    scenario = Scenario.model_construct()
    return {name: Task(scenario, str(tmp_path), (), name) for name in names}


def test_a_worker_that_dies_costs_a_point_only_if_it_dies_again(
    tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "evaluate", die_once)
    with local_pool(2) as pool:
        found = list(pool(tasks))
    assert sorted(address for address, _ in found) == sorted(tasks), "each exactly once"
    assert dict(found) == dict.fromkeys(tasks, DONE) | {"always": DEAD}


def test_a_pool_that_is_closed_as_it_hands_out_work_says_nothing(
    tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An interrupt may come between the two queues that loky keeps a task in."""
    monkeypatch.setattr(pools, "evaluate", die_once)
    local = pools._LocalPool(2)
    next(local.run({"a": tasks["a"]}))
    executor = local._executor
    executor._work_ids.put(-1)  # handed out, and dropped before it was looked at
    local.close()
    assert capfd.readouterr().err == ""


def test_what_died_is_not_kept_as_an_answer() -> None:
    assert not DEAD.lasting


def test_workers_that_cannot_start_are_told_and_not_tried_for_ever(
    tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def submit(self, *_: object) -> object:
            raise BrokenProcessPool("no process starts")

        def shutdown(self, **_: object) -> None:
            pass

    monkeypatch.setattr("joblib.externals.loky.ProcessPoolExecutor", lambda *_, **__: Broken())
    with local_pool(2) as pool, pytest.raises(UserError, match="die as they start; try --workers 1"):
        list(pool(tasks))
