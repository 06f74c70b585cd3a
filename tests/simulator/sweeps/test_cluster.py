"""A sweep on a real Dask cluster: a scheduler and two worker processes on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.simulator.sweeps.conftest import Run
from tests.simulator.sweeps.test_resume import contents, kept

distributed = pytest.importorskip("distributed", reason="the extra [cluster] is not installed")

GRID = (
    "--vary",
    "engine.max_num_seqs=1,4,16",
    "--vary",
    "engine.kv_blocks=2,auto",
    "--vary",
    "replicas=0,1,2",
)
LONGER = (
    "--vary",
    "seed=1:8",
    "--set",
    "workload.requests=800",
    "--set",
    "workload.lengths={preset: lmsys}",
)


class Cluster(NamedTuple):
    """Where its scheduler listens, and the processes that it is made of."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: subprocess.Popen[bytes]


def start(folder: Path) -> Cluster:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    place = folder / "scheduler.json"
    common = ("--scheduler-file", str(place), "--no-dashboard", "--host", "127.0.0.1")
    python = (sys.executable, "-m")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment, "cwd": folder}
    scheduler = subprocess.Popen(
        [*python, "distributed.cli.dask_scheduler", "--port", "0", *common],
        **quiet,  # type: ignore[call-overload]
    )
    two = ("--nworkers", "2", "--nthreads", "1", "--local-directory", str(folder))
    workers = subprocess.Popen([*python, "distributed.cli.dask_worker", *common, *two], **quiet)  # type: ignore[call-overload]
    deadline = time.monotonic() + 120
    while not place.exists():
        if time.monotonic() > deadline:
            stop(Cluster("", scheduler, workers))
            pytest.fail("the scheduler did not start")
        time.sleep(0.1)
    address = json.loads(place.read_text(encoding="utf-8"))["address"]
    return Cluster(address, scheduler, workers)


def stop(cluster: Cluster) -> None:
    for process in (cluster.workers, cluster.scheduler):
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = start(tmp_path_factory.mktemp("cluster"))
    yield started
    stop(started)


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that the test may end."""
    started = start(tmp_path_factory.mktemp("mortal"))
    yield started
    stop(started)


def lost(cluster: Cluster) -> str:
    return (
        f"error: --cluster {cluster.address}: the connection to the scheduler is lost; "
        "what is done is kept, go on with it by --resume\n"
    )


def worker_pids(cluster: Cluster) -> list[int]:
    client = distributed.Client(cluster.address, set_as_default=False)
    client.wait_for_workers(2, timeout=120)
    pids = list(client.run(os.getpid).values())
    client.close()
    return pids


def test_the_same_sweep_on_a_cluster_has_the_same_bytes(run: Run, cluster: Cluster) -> None:
    """Acceptance 3 of the capacity-planning issue: every file, failing and losing points included."""
    assert len(worker_pids(cluster)) == 2
    here = run("x.yaml", *GRID, "--output", "here", "--workers", "2")
    there = run("x.yaml", *GRID, "--output", "there", "--cluster", cluster.address)
    assert (here[0], here[1]) == (0, there[1])
    assert contents(Path("here")) == contents(Path("there"))


def test_a_worker_that_dies_is_made_up_for(run: Run, cluster: Cluster) -> None:
    victim = worker_pids(cluster)[0]

    def kill() -> None:
        while not kept(Path("there")):
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    code, out, _ = run("x.yaml", *LONGER, "--output", "there", "--cluster", cluster.address, "--json")
    killer.join()
    told = json.loads(out)
    assert (code, told["computed"], told["failed"]) == (0, 8, 0)
    assert victim not in worker_pids(cluster)


def test_a_scheduler_that_vanishes_is_one_line_and_the_sweep_goes_on_here(
    run: Run, mortal: Cluster
) -> None:
    worker_pids(mortal)

    def kill() -> None:
        while len(kept(Path("a"))) < 2:
            time.sleep(0.01)
        mortal.scheduler.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    code, out, err = run("x.yaml", *LONGER, "--output", "a", "--cluster", mortal.address)
    killer.join()
    assert (code, out, err) == (2, "", lost(mortal))
    done = len(kept(Path("a")))
    assert 2 <= done < 8
    told = json.loads(run("x.yaml", *LONGER, "--output", "a", "--resume", "--json")[1])
    assert (told["computed"], told["reused"]) == (8 - done, done)


def test_a_scheduler_that_vanishes_as_a_result_is_fetched_is_the_same_line(
    run: Run, mortal: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_pids(mortal)
    fetch = distributed.Future.result

    def bereaved(future: object) -> object:
        mortal.scheduler.kill()
        mortal.scheduler.wait()
        return fetch(future)

    monkeypatch.setattr("distributed.Future.result", bereaved)
    told = run("x.yaml", *LONGER, "--output", "a", "--cluster", mortal.address)
    assert told == (2, "", lost(mortal))


def test_workers_with_other_code_are_refused(
    run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_pids(cluster)
    for module in ("points", "sweep"):
        monkeypatch.setattr(f"simulator.sweeps.{module}.version", lambda: "9.9.9")
    code, _, err = run("x.yaml", *GRID, "--output", "a", "--cluster", cluster.address)
    assert code == 2
    assert "this is 9.9.9: install the same everywhere, and" in err.splitlines()[-1]


def test_nobody_at_the_address_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.sweeps.pools.CONNECT_S", 1)
    code, out, err = run("x.yaml", *GRID, "--output", "a", "--cluster", "tcp://127.0.0.1:1")
    assert (code, out) == (2, "")
    assert err.startswith("error: --cluster tcp://127.0.0.1:1: no Dask scheduler answers there (")
    assert len(err.splitlines()) == 1
    assert not Path("a").exists()


@pytest.mark.parametrize("address", ["nonsense", "nonsense://", ""])
def test_an_address_that_is_none_is_one_line(run: Run, address: str) -> None:
    code, _, err = run("x.yaml", *GRID, "--output", "a", "--cluster", address)
    assert code == 2
    assert err.startswith(f"error: --cluster {address}: ")
    assert len(err.splitlines()) == 1
