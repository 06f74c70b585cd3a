"""One simulated server: the loop of plan, execute, commit, driven by the SimPy clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import simpy

from simulator.alarm import Alarm, SimulatedClock
from simulator.engine.plan import IterationShape, Plan
from simulator.engine.request import Request
from simulator.engine.scheduler import Scheduler
from simulator.executor import SimulatedExecutor
from simulator.recorder import IterationLog

LONGEST_LEAP = 256  # iterations looked ahead at once; bounds what an interruption throws away


class Replica:
    """Lets a scheduler run on simulated time, leaping over iterations that repeat.

    While one plan repeats, nothing happens until its last end; an arrival shortens the leap to the
    iteration under way, exactly where a server that looks at its queue once per iteration would see it.
    Simultaneous boundaries come in order of replicas, see `Alarm`.
    """

    def __init__(
        self,
        env: SimulatedClock,
        scheduler: Scheduler,
        executor: SimulatedExecutor,
        log: IterationLog,
        on_complete: Callable[[Request, int], None],
        *,
        longest_leap: int = LONGEST_LEAP,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.executor = executor
        self.log = log
        self.outstanding = 0
        self._on_complete = on_complete
        self._longest_leap = longest_leap
        self._plan: Plan | None = None
        self._shape: IterationShape
        self._start_ns = self._waiting = 0  # as the plan began
        self._ends: list[int] = []
        self._boundary: Alarm | None = None
        self._rank = log.replica + 1

    def add(self, request: Request) -> None:
        """Take in a request now; `RequestTooLarge` passes through."""
        self.scheduler.add(request)
        self.outstanding += 1
        if self._boundary is None:
            self._wake_at(self.env.now_ns)
        elif len(self._ends) > 1:
            self._shorten_leap()

    def _shorten_leap(self) -> None:
        """Let the leap end with the iteration under way."""
        under_way = bisect_left(self._ends, self.env.now_ns)
        if under_way < len(self._ends) - 1:
            del self._ends[under_way + 1 :]
            self._wake_at(self._ends[under_way])

    def _wake_at(self, time_ns: int) -> None:
        """Schedule the next boundary. An earlier one still in SimPy's heap is recognised and ignored."""
        self._boundary = Alarm(self.env, time_ns - self.env.now_ns, self._rank, self._on_boundary)

    def _on_boundary(self, event: simpy.Event) -> None:
        if event is not self._boundary:
            return
        if self._plan is not None:
            self._end(self._plan)
        self._begin()

    def _begin(self) -> None:
        self._plan = plan = self.scheduler.plan()
        if plan is None:
            self._boundary = None
            return
        self._start_ns = now = self.env.now_ns
        self._shape = shape = plan.shape()
        self._waiting = self.scheduler.waiting_requests
        look_ahead = min(2 * len(self._ends) + 8, self._longest_leap)
        self._ends = self.executor.ends_ns(plan, shape, now, look_ahead)
        self._wake_at(self._ends[-1])

    def _end(self, plan: Plan) -> None:
        scheduler, ends = self.scheduler, self._ends
        if len(ends) > 1:
            scheduler.repeat(plan, len(ends) - 1)
        self.log.write(plan, self._shape, self._start_ns, ends, self._waiting, scheduler.used_blocks)
        self._answer(scheduler.commit(plan, self.executor.finish(plan)))

    def _answer(self, completed: Sequence[Request]) -> None:
        self.outstanding -= len(completed)
        for request in completed:
            self._on_complete(request, self.log.replica)
