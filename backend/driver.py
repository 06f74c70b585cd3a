"""The live driver: the wall clock, a scheduler and an executor in one loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from simulator.engine.plan import Plan
from simulator.engine.request import Request
from simulator.engine.scheduler import Scheduler
from simulator.errors import RequestTooLarge
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

    def begin(self, plan: Plan) -> None:
        """Start the iteration; may return before it is done."""
        ...

    def finish(self, plan: Plan) -> Sequence[Request]:
        """Wait for the iteration; who produced its last token."""
        ...


class Driver:
    """Replays arrivals against a scheduler and an executor until everything is answered.

    Requests that fall due while an iteration runs are seen when it has ended, as a server sees its queue.
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
        self._offered = 0

    def run(self, arrivals: Iterator[Arrival]) -> None:
        """Serve every arrival, in order of time, to its last token."""
        upcoming = next(arrivals, None)
        while upcoming is not None or self.scheduler.busy:
            now = self.clock.now_ns()
            while upcoming is not None and upcoming.arrival_ns <= now:
                self._take_in(upcoming)
                upcoming = next(arrivals, None)
            if not self._iterate() and upcoming is not None:
                self.clock.sleep_until(upcoming.arrival_ns)

    def _take_in(self, arrival: Arrival) -> None:
        request = Request(
            self._offered,
            arrival.arrival_ns,
            arrival.prompt_tokens,
            arrival.output_limit,
            arrival.content,
            arrival.priority,
        )
        self._offered += 1
        try:
            self.scheduler.add(request)
        except RequestTooLarge as error:
            self.requests.turn_away(request, self.iterations.replica, REJECTED, str(error))
        else:
            self.executor.expect(request, arrival)

    def _iterate(self) -> bool:
        """One iteration, if there is anything to do."""
        start_ns = self.clock.now_ns()
        scheduler = self.scheduler
        plan = scheduler.plan()
        if plan is None:
            return False
        shape, waiting, used_blocks = plan.shape(), scheduler.waiting_requests, scheduler.used_blocks
        self.executor.begin(plan)
        stopped = self.executor.finish(plan)
        end_ns = self.clock.now_ns()
        self.iterations.write(plan, shape, start_ns, (end_ns,), waiting, used_blocks)
        for request in scheduler.commit(plan, stopped):
            self.requests.complete(request, self.iterations.replica, end_ns)
        return True
