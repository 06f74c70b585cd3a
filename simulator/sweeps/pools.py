"""Who computes the points: this process, the processors of this machine, or the workers of a cluster.

All give the same records; only when they come differs. A worker that dies costs nothing but time: what it
was at is tried again, and a point that takes its worker along a second time is told as such.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, TypeAlias

from simulator.errors import UserError
from simulator.extras import needing
from simulator.sweeps.work import Record, Task, evaluate

if TYPE_CHECKING:
    from distributed import Client

Tasks: TypeAlias = Mapping[str, Task]
Records: TypeAlias = Iterator[tuple[str, Record]]
Pool: TypeAlias = Callable[[Tasks], Records]
"""Gives the record of every task, by its address, as they are done."""

AHEAD = 2  # tasks handed out per worker, so that none waits for the next one
CONNECT_S = 10
WORKERS_S = 30
LOOK_S = 0.5
DEAD = Record(
    None,
    reason="its worker process died, and died again on another try: killed, perhaps for want of memory",
    lasting=False,
)
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@contextmanager
def local_pool(workers: int) -> Iterator[Pool]:
    """Worker processes of this machine; with one worker the work is done here."""
    if workers == 1:
        yield lambda tasks: ((address, evaluate(task)) for address, task in tasks.items())
        return
    local = _LocalPool(workers)
    try:
        yield local.run
    finally:
        local.close()


class _LocalPool:
    """Worker processes that are started when first needed, and again after one of them died."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._executor: Any = None
        self._size = 0

    def run(self, tasks: Tasks) -> Records:
        """Every task; those that were under way when a worker died are tried again one by one."""
        left = dict(tasks)
        while left:
            before, suspects = len(left), list[str]()
            for address, record in self._stream(dict(left), self.workers, suspects):
                del left[address]
                yield address, record
            for address in suspects:
                yield address, self._alone(left.pop(address))
            if len(left) == before:
                raise UserError("sweep: worker processes die as they start; try --workers 1")

    def _alone(self, task: Task) -> Record:
        """A task in a process of its own, twice if need be, so that nobody else's death is blamed on it."""
        for _ in range(2):
            found = next((record for _, record in self._stream({"": task}, 1, [])), None)
            self.close()
            if found is not None:
                return found
        return DEAD

    def _stream(self, tasks: Tasks, workers: int, suspects: list[str]) -> Records:
        """Records until all are there or a worker died; then ``suspects`` are those that may be why."""
        executor = self._started(min(workers, len(tasks)))
        waiting, running = iter(tasks.items()), dict[Future[Record], str]()
        try:
            while True:
                for address, task in islice(waiting, AHEAD * workers - len(running)):
                    running[executor.submit(evaluate, task)] = address
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in [future for future in running if future in done]:
                    record = future.result()
                    yield running.pop(future), record
        except BrokenProcessPool:
            self.close()
            suspects.extend(running.values())

    def _started(self, workers: int) -> Any:
        """The executor, made anew where it was begun for fewer tasks than there are now."""
        if workers > self._size:
            from joblib.externals.loky import ProcessPoolExecutor

            self.close()
            self._size = workers
            self._executor = ProcessPoolExecutor(
                workers, initializer=_live_with, initargs=(os.getpid(),), env=SINGLE_THREADED
            )
        return self._executor

    def close(self) -> None:
        """End the workers, whatever they are at."""
        if self._executor is not None:
            with _closing_quietly():
                self._executor.shutdown(wait=True, kill_workers=True)
            self._executor, self._size = None, 0


@contextmanager
def _closing_quietly() -> Iterator[None]:
    """A task handed out just before is dropped, and the thread that loky hands them out by stumbles over it
    (KeyError) once it has ended the workers, which is all that was wanted of it."""
    before = threading.excepthook
    threading.excepthook = lambda told: None if told.exc_type is KeyError else before(told)
    try:
        yield
    finally:
        threading.excepthook = before


def _live_with(parent: int) -> None:
    """Make a worker leave interrupts to its parent, and end when that has gone without a word."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def cluster_pool(address: str) -> Iterator[Pool]:
    """The workers of a Dask cluster that is already there, by the address of its scheduler."""
    with needing(("distributed", "dask"), "--cluster needs {}: pip install 'servetwin[cluster]'"):
        from distributed import Client
        from distributed.comm import resolve_address
    with _quiet():
        try:
            resolve_address(address)  # a client that gets as far as to refuse it talks as it goes
            client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            told = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"--cluster {address}: no Dask scheduler answers there ({told})") from None
        try:
            _await_workers(client, address)
            yield lambda tasks: _on_cluster(client, address, tasks)
        finally:
            client.close(timeout=1)


def _await_workers(client: Client, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=WORKERS_S)
    except TimeoutError:
        raise UserError(
            f"--cluster {address}: the scheduler has no workers; start some: dask worker {address}"
        ) from None
    except OSError:
        raise _gone(address) from None


def _on_cluster(client: Client, address: str, tasks: Tasks) -> Records:
    finished: Queue[Any] = Queue()
    running: dict[Any, str] = {}
    with _in_touch(client, address):
        window = AHEAD * max(sum(client.nthreads().values()), 1)
    for place, task in tasks.items():
        if len(running) == window:
            yield _first_done(client, address, finished, running)
        with _in_touch(client, address):
            future = client.submit(evaluate, task, pure=False)
        running[future] = place
        future.add_done_callback(finished.put)
    while running:
        yield _first_done(client, address, finished, running)


def _first_done(
    client: Client, address: str, finished: Queue[Any], running: dict[Any, str]
) -> tuple[str, Record]:
    """Wait for any of those running; a UserError once the scheduler has gone."""
    while client.status == "running":
        try:
            future = finished.get(timeout=LOOK_S)
        except Empty:
            continue
        return running.pop(future), _result(client, address, future)
    raise _gone(address)


def _result(client: Client, address: str, future: Any) -> Record:
    from distributed import KilledWorker

    if future.status in ("cancelled", "lost"):
        raise _gone(address)
    if future.status == "finished":
        with _in_touch(client, address):
            record: Record = future.result()  # fetched only now: the scheduler may have gone since
        return record
    error = future.exception()
    if isinstance(error, KilledWorker):
        return DEAD
    if isinstance(error, ImportError):
        raise UserError(f"--cluster {address}: workers lack ServeTwin ({error}): install it there")
    if isinstance(error, UserError):
        raise UserError(f"--cluster {address}: {error}")
    raise error


@contextmanager
def _in_touch(client: Client, address: str) -> Iterator[None]:
    """Tell as one line what a call to the scheduler raises once that has gone.

    A connection ends as an OSError, what waits on it is cancelled, and a closed client has exceptions of
    its own, which differ between releases.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError | CancelledError) or client.status != "running":
            raise _gone(address) from None
        raise


def _gone(address: str) -> UserError:
    return UserError(
        f"--cluster {address}: the connection to the scheduler is lost; what is done is kept, "
        "go on with it by --resume"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """What Dask logs of lost connections is told by our one line instead."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
