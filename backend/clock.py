"""The wall clock of a live run."""

from __future__ import annotations

import time


class WallClock:
    """Nanoseconds since the run began. With ``skip_idle`` the clock is set forward instead of waiting."""

    def __init__(self, *, skip_idle: bool = False) -> None:
        self._skip_idle = skip_idle
        self._zero_ns = time.perf_counter_ns()

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._zero_ns

    def sleep_until(self, time_ns: int) -> None:
        remaining_ns = time_ns - self.now_ns()
        if remaining_ns <= 0:
            return
        if self._skip_idle:
            self._zero_ns -= remaining_ns
        else:
            time.sleep(remaining_ns / 1e9)
