"""How much work a policy does, counted in calls and not in time: the same answer on any machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from benchmarks.policies import FCFS_VARIANTS, Queue, known, queue_scheduler

SHORT, LONG = 200, 10_000  # waiting requests
SERVED = 150


def calls_of(work: Callable[[], object]) -> int:
    """Function calls, Python's and built-in ones, that some work makes."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def calls_to_serve(variant: str, waiting: int) -> int:
    queue = Queue(queue_scheduler(variant), waiting)
    queue.serve(SERVED)  # until the seats have filled and emptied once
    return calls_of(lambda: queue.serve(SERVED))


@pytest.mark.parametrize("variant", known(FCFS_VARIANTS))
def test_a_request_costs_the_same_however_many_wait(variant: str) -> None:
    """The lengths of the requests repeat, so that both queues serve the same ones: the counts are equal."""
    few, many = calls_to_serve(variant, SHORT), calls_to_serve(variant, LONG)
    assert many <= 1.01 * few


def calls_to_decode(variant: str, rows: int) -> int:
    """Calls of three laps in which nobody comes or goes and every row takes three more blocks of 16."""
    queue = Queue(queue_scheduler(variant), 0)
    for _ in range(rows):
        queue.send(64, 400)
    while queue.iterate()[0].prefills:
        pass
    return calls_of(lambda: [queue.iterate() for _ in range(48)])


@pytest.mark.parametrize("variant", known(FCFS_VARIANTS))
def test_an_iteration_costs_as_much_as_changes_and_not_as_many_as_decode(variant: str) -> None:
    """45 rows more cost no call each iteration, only two at most for each block that they take."""
    few, many = calls_to_decode(variant, 15), calls_to_decode(variant, 60)
    assert many <= few + 45 * 3 * 2
