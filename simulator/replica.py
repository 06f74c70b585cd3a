"""One simulated server: the loop of plan, execute, commit, driven by the SimPy clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import simpy

from simulator.alarm import Alarm, SimulatedClock
from simulator.engine.plan import IterationShape, Plan
from simulator.engine.request import Request
from simulator.engine.scheduler import Patient, Scheduler
from simulator.executor import SimulatedExecutor
from simulator.recorder import IterationLog

LONGEST_LEAP = 1 << 20  # iterations; what a simulated second of the fastest model does not reach
LOOK_AHEAD = 8  # iterations priced at first, then twice as many each time nothing has come between


class Replica:
    """Lets a scheduler run on simulated time, leaping over iterations that repeat.

    While one plan repeats, nothing happens until its last end; an arrival shortens the leap to the
    iteration under way, exactly where a server that looks at its queue once per iteration would see it.
    A leap is priced piece by piece, so that an interruption throws little away.
    Simultaneous boundaries come in order of replicas, see `Alarm`.
    """

    def __init__(
        self,
        env: SimulatedClock,
        scheduler: Scheduler,
        executor: SimulatedExecutor,
        log: IterationLog,
        on_complete: Callable[[Request, int], None],
        on_expire: Callable[[Request, int, str], None],
        *,
        longest_leap: int = LONGEST_LEAP,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.executor = executor
        self.log = log
        self.outstanding = 0
        self._on_complete = on_complete
        self._on_expire = on_expire
        self._longest_leap = longest_leap
        self._plan: Plan | None = None
        self._shape: IterationShape
        self._start_ns = self._waiting = 0  # as the plan began
        self._ends: list[int] = []  # of the plan's runs, as far as priced
        self._runs = 0  # how many there will be unless somebody comes
        self._boundary: Alarm | None = None
        self._patient: Patient | None = scheduler if isinstance(scheduler, Patient) else None
        self._nap: Alarm | None = None
        self._rank = log.replica + 1

    def add(self, request: Request) -> None:
        """Take in a request now; `RequestRefused` passes through."""
        self.scheduler.add(request)
        self.outstanding += 1
        self.look_again()

    def restart(self, scheduler: Scheduler, executor: SimulatedExecutor) -> None:
        """Lose all that waits and runs, and begin afresh. Iterations that had ended stay on record."""
        ended = bisect_left(self._ends, self.env.now_ns) if self._plan is not None else 0
        if self._plan is not None and ended:
            used = self.scheduler.used_blocks
            self.log.write(self._plan, self._shape, self._start_ns, self._ends[:ended], self._waiting, used)
        self.log.lose()
        self.scheduler, self.executor = scheduler, executor
        self._patient = scheduler if isinstance(scheduler, Patient) else None
        self.outstanding = 0
        self.env.abandoned += self._boundary is not None
        self._plan = self._boundary = self._nap = None
        self._ends = []

    def look_again(self) -> None:
        """Something has come from outside: ask the scheduler at the next boundary, or now if it is idle."""
        if self._boundary is None:
            self._wake_at(self.env.now_ns)
        elif self._runs > 1:
            self._shorten_leap()

    def _shorten_leap(self) -> None:
        """Let the leap end with the iteration under way."""
        ends = self._ends
        self._runs = runs = bisect_left(ends, self.env.now_ns) + 1
        if runs < len(ends):
            del ends[runs:]
            self.env.abandoned += 1
            self._wake_at(ends[-1])

    def _wake_at(self, time_ns: int) -> None:
        """Schedule the next boundary. An earlier one still in SimPy's heap is recognised and ignored."""
        self._boundary = Alarm(self.env, time_ns - self.env.now_ns, self._rank, self._on_boundary)

    def _on_boundary(self, event: simpy.Event) -> None:
        if event is not self._boundary:
            self.env.abandoned -= 1
            return
        now_ns = self.env.now_ns
        if self._plan is not None:
            if len(self._ends) < self._runs:
                self._look_further(now_ns, now_ns)
                return
            self._end(self._plan)
        self._begin(now_ns)

    def _begin(self, now_ns: int) -> None:
        patient = self._patient
        self._plan = plan = self.scheduler.plan() if patient is None else self._plan_in_time(patient)
        if plan is None:
            self._boundary = None
            return
        executor = self.executor
        self._start_ns = now_ns
        self._shape = shape = plan.shape()
        self._waiting = self.scheduler.waiting_requests
        self._runs = 1 if plan.prefills else min(executor.runs(plan, shape), self._longest_leap)
        self._ends = []
        copies = plan.swapped_out or plan.swapped_in or plan.copies
        copying_ns = executor.copy_ns(plan) if copies else 0
        self._look_further(now_ns, now_ns + copying_ns)

    def _plan_in_time(self, patient: Patient) -> Plan | None:
        """Plan by the clock; where there is nothing to do yet, look again when the policy says so."""
        now = self.env.now_ns
        patient.tell(now)
        plan = self.scheduler.plan()
        for request, reason in patient.take_expired():
            self.outstanding -= 1
            self.executor.forget(request)
            self._on_expire(request, self.log.replica, reason)
        if plan is None and (wake_at_ns := patient.wake_at_ns) is not None:
            self._nap = Alarm(self.env, wake_at_ns - now, self._rank, self._on_wake)
        return plan

    def _on_wake(self, event: simpy.Event) -> None:
        if event is self._nap and self._boundary is None:
            self._begin(self.env.now_ns)

    def _look_further(self, now_ns: int, start_ns: int) -> None:
        """Price the next runs of the plan, the first of them starting then, and sleep through them."""
        ends, priced = self._ends, len(self._ends)
        more = min(max(LOOK_AHEAD, priced), self._runs - priced)
        ends += self.executor.ends_ns(self._shape, priced, start_ns, more)
        self._boundary = Alarm(self.env, ends[-1] - now_ns, self._rank, self._on_boundary)

    def _end(self, plan: Plan) -> None:
        scheduler, ends = self.scheduler, self._ends
        if len(ends) > 1:
            scheduler.repeat(plan, len(ends) - 1)
        self.log.write(plan, self._shape, self._start_ns, ends, self._waiting, scheduler.used_blocks)
        completed = scheduler.commit(plan, self.executor.finish(plan))
        if completed:
            self.outstanding -= len(completed)
            for request in completed:
                self._on_complete(request, self.log.replica)
