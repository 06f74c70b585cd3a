"""The live driver: the wall clock, a scheduler and an executor in one loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter_ns
from typing import Protocol

from simulator.engine.plan import Plan
from simulator.engine.request import Request
from simulator.engine.scheduler import Patient, Scheduler
from simulator.errors import RequestRefused
from simulator.recorder import REJECTED, IterationLog, RequestLog
from simulator.workloads.arrival import Arrival


class Clock(Protocol):
    """Time since the run began."""

    def now_ns(self) -> int: ...

    def sleep_until(self, time_ns: int) -> None: ...


class Executor(Protocol):
    """Runs the model for one plan and finds out who stopped."""

    def expect(self, request: Request, arrival: Arrival) -> None:
        """Learn what the client sent, before the request is first planned."""
        ...

    def forget(self, request: Request) -> None:
        """A request was given up, between two iterations."""
        ...

    def begin(self, plan: Plan) -> None:
        """Start the iteration; may return before it is done."""
        ...

    def finish(self, plan: Plan) -> Sequence[Request]:
        """Wait for the iteration; who produced its last token."""
        ...


class Driver:
    """Replays arrivals against a scheduler and an executor until everything is answered.

    Requests that fall due while an iteration runs are seen when it has ended, as a server sees its queue.
    ``scheduler_ns`` is the processor time that the scheduler's decisions took, all iterations together.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        requests: RequestLog,
        iterations: IterationLog,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.requests = requests
        self.iterations = iterations
        self.scheduler_ns = 0
        self._patient: Patient | None = scheduler if isinstance(scheduler, Patient) else None
        self._offered = 0
        self._outstanding = 0  # taken in and not yet answered

    def run(self, arrivals: Iterator[Arrival]) -> None:
        """Serve every arrival, in order of time, to its last token."""
        upcoming = next(arrivals, None)
        while upcoming is not None or self.scheduler.busy:
            now = self.clock.now_ns()
            while upcoming is not None and upcoming.arrival_ns <= now:
                self._take_in(upcoming)
                upcoming = next(arrivals, None)
            if not self._iterate():
                self._sleep(upcoming)

    def _sleep(self, upcoming: Arrival | None) -> None:
        """Until the next arrival, or until the policy wants to look at its queue again."""
        times = [] if upcoming is None else [upcoming.arrival_ns]
        if self._patient is not None and self._patient.wake_at_ns is not None:
            times.append(self._patient.wake_at_ns)
        if times:
            self.clock.sleep_until(min(times))

    def run_closed(
        self, arrivals: Iterator[Arrival], clients: int, send_until_ns: int | None = None
    ) -> None:
        """Serve clients that each send their next request when the last one is answered."""
        while True:
            now = self.clock.now_ns()
            while self._outstanding < clients and (send_until_ns is None or now < send_until_ns):
                arrival = next(arrivals, None)
                if arrival is None:
                    break
                self._take_in(arrival._replace(arrival_ns=now))
            if self._iterate():
                continue
            if self._patient is None or self._patient.wake_at_ns is None:
                return
            self._sleep(None)

    def _take_in(self, arrival: Arrival) -> None:
        request = Request(
            self._offered,
            arrival.arrival_ns,
            arrival.prompt_tokens,
            arrival.output_limit,
            arrival.content,
            arrival.priority,
            arrival.timeout_ns,
        )
        self._offered += 1
        try:
            self.scheduler.add(request)
        except RequestRefused as error:
            self.requests.turn_away(request, self.iterations.replica, REJECTED, str(error))
            return
        self._outstanding += 1
        self.executor.expect(request, arrival)

    def _iterate(self) -> bool:
        """One iteration, if there is anything to do."""
        start_ns = self.clock.now_ns()
        scheduler, began = self.scheduler, perf_counter_ns()
        plan = scheduler.plan() if self._patient is None else self._plan_in_time(self._patient, start_ns)
        self.scheduler_ns += perf_counter_ns() - began
        if plan is None:
            return False
        shape, waiting, used_blocks = plan.shape(), scheduler.waiting_requests, scheduler.used_blocks
        self.executor.begin(plan)
        stopped = self.executor.finish(plan)
        end_ns = self.clock.now_ns()
        self.iterations.write(plan, shape, start_ns, (end_ns,), waiting, used_blocks)
        began = perf_counter_ns()
        answered = scheduler.commit(plan, stopped)
        self.scheduler_ns += perf_counter_ns() - began
        self._outstanding -= len(answered)
        for request in answered:
            self.requests.complete(request, self.iterations.replica, end_ns)
        return True

    def _plan_in_time(self, patient: Patient, now_ns: int) -> Plan | None:
        """Plan by the clock; what the policy gives up counts as rejected."""
        patient.tell(now_ns)
        plan = self.scheduler.plan()
        for request, reason in patient.take_expired():
            self._outstanding -= 1
            self.executor.forget(request)
            self.requests.turn_away(request, self.iterations.replica, REJECTED, reason, now_ns)
        return plan
