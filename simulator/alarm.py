"""SimPy events at a chosen time and rank, for a clock on which simultaneous events have a fixed order."""

from __future__ import annotations

from collections.abc import Callable

import simpy

OUTSIDE = 0  # rank of all that comes from outside; iteration boundaries of replica i have rank i + 1


class SimulatedClock(simpy.Environment):
    """SimPy's clock, counted in whole nanoseconds."""

    @property
    def now_ns(self) -> int:
        """Simulated time since the run began."""
        return self._now  # type: ignore[return-value]  # an int as long as every delay is one

    abandoned = 0  # alarms still in the queue that will do nothing

    @property
    def scheduled_events(self) -> int:
        """Events still to come, those left out at which nothing will happen."""
        return len(self._queue) - self.abandoned

    def back_to(self, time_ns: int) -> None:
        """Forget the time since then, in which nothing happened, with nothing left to happen."""
        assert not self._queue
        self._now = time_ns


class Alarm(simpy.Event):
    """Calls ``action(alarm)`` after ``delay_ns``. At equal times lower ranks come first, then older alarms.

    SimPy's own `Timeout` offers no rank, and its order of creation would differ between leap and step.
    """

    def __init__(
        self, env: SimulatedClock, delay_ns: int, rank: int, action: Callable[[simpy.Event], None]
    ) -> None:
        self.env = env
        self.callbacks = [action]
        self._value = None
        self._ok = True
        env.schedule(self, rank, delay_ns)  # type: ignore[arg-type]  # any whole number ranks
