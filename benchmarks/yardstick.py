"""A unit of CPU time that drifts with the machine, so that figures from different days can be compared."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import TypeVar

T = TypeVar("T")


def unit_s() -> float:
    """CPU seconds of three million dictionary writes: about 0.3 on a 2024 server core."""
    start = process_time()
    n = 0
    d: dict[int, int] = {}
    for i in range(3_000_000):
        d[i & 1023] = n
        n += i
    return process_time() - start


def in_units(work: Callable[[], T]) -> tuple[float, float, T]:
    """CPU time of some work in units and in seconds, the unit timed before and after; and its result."""
    before = unit_s()
    start = process_time()
    result = work()
    spent_s = process_time() - start
    return spent_s / ((before + unit_s()) / 2), spent_s, result
