"""The live driver: the wall clock, a scheduler and an executor in one loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count, islice
from time import perf_counter_ns
from typing import Protocol

from simulator.engine.plan import Plan
from simulator.engine.request import ONE_SEQUENCE, Decoding, Request
from simulator.engine.scheduler import Patient, Scheduler
from simulator.errors import RequestRefused
from simulator.recorder import REJECTED, IterationLog, RequestLog
from simulator.workloads.arrival import Arrival, next_turn, think_ns, with_session


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
    A session's next turn falls due its think time after the answer before it.
    ``decoding`` is how each request is answered. ``scheduler_ns`` is the processor time that the
    scheduler's decisions took, all iterations together.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        requests: RequestLog,
        iterations: IterationLog,
        decoding: Decoding = ONE_SEQUENCE,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.requests = requests
        self.iterations = iterations
        self.decoding = decoding
        self.scheduler_ns = 0
        self._patient: Patient | None = scheduler if isinstance(scheduler, Patient) else None
        self._offered = 0
        self._outstanding = 0  # taken in and not yet answered
        self._sessions: dict[int, Arrival] = {}  # request under way -> what was sent, and what follows
        self._answers = count()
        self._thinking: list[tuple[int, int, Arrival]] = []  # a heap: when who goes on, and after what

    def run(self, arrivals: Iterator[Arrival], send_until_ns: int | None = None) -> None:
        """Serve every arrival, in order of time, to its last token; sessions go on until then at most."""
        upcoming = next(arrivals, None)
        while upcoming is not None or self.scheduler.busy or self._thinking:
            now = self.clock.now_ns()
            while upcoming is not None and upcoming.arrival_ns <= now:
                self._take_turns(upcoming.arrival_ns - 1, send_until_ns)
                self._take_in(upcoming)
                upcoming = next(arrivals, None)
            self._take_turns(now, send_until_ns)
            if not self._iterate():
                self._sleep(upcoming)

    def _take_turns(self, now_ns: int, send_until_ns: int | None) -> None:
        """Sessions whose clients have thought long enough go on."""
        while self._thinking and self._thinking[0][0] <= now_ns:
            due_ns, _, answered = heappop(self._thinking)
            if send_until_ns is None or due_ns <= send_until_ns:
                self._take_in(next_turn(answered, due_ns))

    def _sleep(self, upcoming: Arrival | None) -> None:
        """Until the next arrival, or until the policy wants to look at its queue again."""
        times = [] if upcoming is None else [upcoming.arrival_ns]
        if self._thinking:
            times.append(self._thinking[0][0])
        if self._patient is not None and self._patient.wake_at_ns is not None:
            times.append(self._patient.wake_at_ns)
        if times:
            self.clock.sleep_until(min(times))

    def run_closed(
        self, arrivals: Iterator[Arrival], clients: int, send_until_ns: int | None = None
    ) -> None:
        """Serve clients that each send their next request when the last one is answered.

        They react while the next iteration runs, so what they send is seen when that has ended: the twin
        has it arrive just after the iteration that answered them.
        """
        sent: list[Arrival] = []
        while True:
            for arrival in sent:
                self._take_in(arrival)
            now = self.clock.now_ns()
            self._take_turns(now, send_until_ns)
            free = clients - self._outstanding - len(self._thinking)
            in_time = send_until_ns is None or now < send_until_ns
            sent = [a._replace(arrival_ns=now) for a in islice(arrivals, free if in_time else 0)]
            if self._iterate() or sent:
                continue
            waits = self._patient is not None and self._patient.wake_at_ns is not None
            if not (waits or self._thinking):
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
            self.decoding,
        )
        self._offered += 1
        try:
            self.scheduler.add(request)
        except RequestRefused as error:
            reason = with_session(str(error), arrival)
            self.requests.turn_away(request, self.iterations.replica, REJECTED, reason)
            return
        self._outstanding += 1
        self.executor.expect(request, arrival)
        if arrival.later:
            self._sessions[request.id] = arrival

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
            session = self._sessions.pop(request.id, None)
            if session is not None:
                heappush(self._thinking, (end_ns + think_ns(session), next(self._answers), session))
        return True

    def _plan_in_time(self, patient: Patient, now_ns: int) -> Plan | None:
        """Plan by the clock; what the policy gives up counts as rejected."""
        patient.tell(now_ns)
        plan = self.scheduler.plan()
        for request, reason in patient.take_expired():
            self._outstanding -= 1
            self.executor.forget(request)
            told = with_session(reason, self._sessions.pop(request.id, None))
            self.requests.turn_away(request, self.iterations.replica, REJECTED, told, now_ns)
        return plan
