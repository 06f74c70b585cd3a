"""The engine behind the server: one thread that plans, runs and commits, and nothing else does.

The event loop hands in tickets through a queue, looked at once per iteration, between commit and plan; the
thread hands out tokens in batches, one wake-up of the loop for all that has come since the last one. So a
client can neither stall the engine nor be seen by it in the middle of an iteration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Literal, NamedTuple

from backend.driver import Clock
from backend.serve.metrics import Metrics
from backend.serve.seam import Emitted, Order, ServingExecutor, StopReason
from backend.serve.ticket import Ending, Ticket
from simulator.engine.plan import Plan
from simulator.engine.request import Request
from simulator.engine.scheduler import Patient, Scheduler
from simulator.errors import QueueFull, RequestRefused

LOG = logging.getLogger(__name__)
NS_PER_S = 1e9


class EngineFull(Exception):
    """As many requests are waiting as the server holds."""


class EngineStopped(Exception):
    """The engine has stopped, at the end or after a failure: it takes nothing more."""


@dataclass(eq=False, slots=True)
class Run:
    """The engine's half of a request: its ticket and when things happened, in nanoseconds; -1: not yet."""

    ticket: Ticket
    scheduled_ns: int = -1
    first_token_ns: int = -1
    last_token_ns: int = -1
    output_tokens: int = 0
    held: list[int] = field(default_factory=list)  # tokens of an answer that leaves as a whole
    ended: StopReason | None = None


class Message(NamedTuple):
    """What the loop asks of the thread."""

    what: Literal["take", "drop", "look", "close"]
    ticket: Ticket | None = None


class Delivery(NamedTuple):
    """News for one ticket. ``accepted``: only that the engine has taken it in."""

    ticket: Ticket
    tokens: Sequence[int] = ()
    ended: Ending | None = None
    reason: str = ""
    accepted: bool = False


class Engine:
    """Runs a scheduler and an executor for as many clients as there are.

    ``capacity`` bounds the requests in it, running and waiting; ``backlog_tokens`` what may wait for one
    client that reads slowly. `submit` and `cancel` belong to the event loop.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: ServingExecutor,
        metrics: Metrics,
        clock: Clock,
        *,
        capacity: int,
        backlog_tokens: int,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.metrics = metrics
        self.clock = clock
        self.capacity = capacity
        self.backlog_tokens = backlog_tokens
        self.outstanding = 0  # tickets whose end the loop has not seen yet
        self.failure = ""
        self._patient: Patient | None = scheduler if isinstance(scheduler, Patient) else None
        self._runs: dict[Request, Run] = {}
        self._requests: dict[Ticket, Request] = {}
        self._taken = 0
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._outbox: list[Delivery] = []
        self._outbox_lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=self._work, name="engine", daemon=True)

    # --- the event loop's side ---

    @property
    def healthy(self) -> bool:
        """Whether requests are being served."""
        return self._thread.is_alive() and not self.failure

    @property
    def running_requests(self) -> int:
        """Requests that hold a seat; read from any thread, at most an iteration old."""
        return max(0, len(self._runs) - self.scheduler.waiting_requests)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to serve; news go to this loop."""
        self._loop = loop
        self._thread.start()

    def submit(self, order: Order) -> Ticket:
        """Hand in a request; `EngineFull` where too many are there already."""
        if not self.healthy:
            raise EngineStopped(self.failure or "the server is shutting down")
        if self.outstanding >= self.capacity:
            raise EngineFull(f"{self.outstanding} requests are running or waiting, and no more are held")
        ticket = Ticket(order, self.clock.now_ns(), self.backlog_tokens)
        self.outstanding += 1
        self._inbox.put(Message("take", ticket))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Forget a request before its next iteration; nothing happens where it has ended."""
        if not (ticket.ended or ticket.cancelled):
            self._abandon(ticket)

    def _abandon(self, ticket: Ticket) -> None:
        ticket.cancelled = True
        self._inbox.put(Message("drop", ticket))

    def stop(self) -> None:
        """End after the iteration under way; whatever is still there is cancelled and told so."""
        self._inbox.put(Message("close"))

    def close(self) -> None:
        """Stop, and wait for it."""
        self.stop()
        self._thread.join()
        self._hand_out()

    def _hand_out(self) -> None:
        with self._outbox_lock:
            news, self._outbox = self._outbox, []
        for ticket, tokens, ended, reason, accepted in news:
            if accepted:
                ticket.accept()
            if tokens and not ticket.push(tokens) and not ended:
                self._abandon(ticket)
            if ended:
                self.outstanding -= 1
                ticket.end(ended, reason)

    # --- the thread's side ---

    def _work(self) -> None:
        try:
            plan: Plan | None = None
            while self._take_messages(idle=plan is None):
                plan = self._plan()
                if plan is not None:
                    self._iterate(plan)
                else:
                    self.executor.rest()
        except Exception as error:  # the thread's boundary: clients must hear of it
            LOG.exception("the engine failed")
            self.failure = f"the engine failed: {type(error).__name__}: {error}"
            self._post([Delivery(ticket, ended="failed", reason=self.failure) for ticket in self._requests])
            self._refuse_until_closed()
        else:
            for ticket in list(self._requests):
                self._post(self._drop(ticket))

    def _take_messages(self, *, idle: bool) -> bool:
        """Look at all that was handed in, waiting for some where there is nothing to run. False: close."""
        news: list[Delivery] = []
        wait = idle
        while wait or not self._inbox.empty():
            what, ticket = self._next_message(wait=wait)
            if what == "close":
                return False
            if ticket is not None:
                news += self._take_in(ticket) if what == "take" else self._drop(ticket)
            wait = False
        self._post(news)
        return True

    def _next_message(self, *, wait: bool) -> Message:
        """The next message; while waiting, also a call to look again when the policy wanted it."""
        if not wait or self._patient is None or self._patient.wake_at_ns is None:
            return self._inbox.get()
        left_s = max(0, self._patient.wake_at_ns - self.clock.now_ns()) / NS_PER_S
        try:
            return self._inbox.get(timeout=left_s)
        except Empty:
            return Message("look")

    def _plan(self) -> Plan | None:
        """Plan, by the clock where the policy names times; what it gave up waiting is answered."""
        patient = self._patient
        if patient is None:
            return self.scheduler.plan()
        patient.tell(self.clock.now_ns())
        plan = self.scheduler.plan()
        expired = patient.take_expired()
        for request, _ in expired:
            self.executor.forget(request)
        self._post([Delivery(self._runs[r].ticket, ended="expired", reason=why) for r, why in expired])
        return plan

    def _take_in(self, ticket: Ticket) -> list[Delivery]:
        if ticket.cancelled:
            return [Delivery(ticket, ended="cancelled")]
        order = ticket.order
        request = Request(
            self._taken,
            ticket.arrival_ns,
            order.prompt.tokens,
            order.output_limit,
            order.prompt.content,
            order.priority,
        )
        self._taken += 1
        try:
            self.scheduler.add(request)
        except RequestRefused as error:
            ending: Ending = "full" if isinstance(error, QueueFull) else "refused"
            return [Delivery(ticket, ended=ending, reason=str(error))]
        self.executor.expect(request, order)
        self._runs[request] = Run(ticket)
        self._requests[ticket] = request
        return [Delivery(ticket, accepted=True)]

    def _drop(self, ticket: Ticket) -> list[Delivery]:
        """Cancel a request, unless it ended meanwhile or was never taken in."""
        request = self._requests.pop(ticket, None)
        if request is None:
            return []
        del self._runs[request]
        self.scheduler.cancel(request)
        self.executor.forget(request)
        with self.metrics.lock:
            self.metrics.abandon()
        return [Delivery(ticket, ended="cancelled", reason="the server is shutting down")]

    def _iterate(self, plan: Plan) -> None:
        start_ns = self.clock.now_ns()
        for chunk in plan.prefills:
            run = self._runs[chunk.request]
            if run.scheduled_ns < 0:
                run.scheduled_ns = start_ns
        tokens = sum(chunk.tokens for chunk in plan.prefills) + plan.shape().decodes
        self.executor.begin(plan)
        emitted = self.executor.finish(plan)
        done = self.scheduler.commit(plan, [e.request for e in emitted if e.ended])
        now_ns = self.clock.now_ns()
        with self.metrics.lock:
            self.metrics.count_iteration(tokens, len(plan.preempted))
            if self.scheduler.streams:
                news = self._stream(emitted, now_ns)
            else:
                self._hold(emitted)
                news = self._let_go(done, now_ns)
        self._post(news)

    def _stream(self, emitted: Sequence[Emitted], now_ns: int) -> list[Delivery]:
        """Book every token and send it on."""
        news: list[Delivery] = []
        gaps: dict[int, int] = {}
        runs, metrics = self._runs, self.metrics
        for request, token, ended in emitted:
            run = runs[request]
            run.output_tokens += 1
            if run.first_token_ns < 0:
                run.first_token_ns = now_ns
                run.ticket.cached_tokens = request.cached_tokens
                metrics.first_token(request, now_ns)
            else:
                gap = now_ns - run.last_token_ns
                gaps[gap] = gaps.get(gap, 0) + 1
            run.last_token_ns = now_ns
            if ended:
                metrics.end_request(request, run, ended)
            news.append(Delivery(run.ticket, (token,), ended))
        metrics.count_gaps(gaps)
        return news

    def _hold(self, emitted: Sequence[Emitted]) -> None:
        """Keep the tokens of answers that leave as a whole."""
        for request, token, ended in emitted:
            run = self._runs[request]
            run.held.append(token)
            run.ended = ended

    def _let_go(self, done: Sequence[Request], now_ns: int) -> list[Delivery]:
        """Answers that the scheduler lets go as a whole; all their tokens come at this moment."""
        news: list[Delivery] = []
        metrics = self.metrics
        for request in done:
            run = self._runs.get(request)
            if run is None or run.ended is None:  # cancelled, its seat kept to the batch's end
                continue
            run.output_tokens = len(run.held)
            run.first_token_ns = run.last_token_ns = now_ns
            run.ticket.cached_tokens = request.cached_tokens
            metrics.first_token(request, now_ns)
            metrics.count_gaps({0: run.output_tokens - 1})
            metrics.end_request(request, run, run.ended)
            news.append(Delivery(run.ticket, run.held, run.ended))
        return news

    def _post(self, news: list[Delivery]) -> None:
        """Send news to the loop and forget the requests that have ended."""
        if not news:
            return
        for delivery in news:
            if delivery.ended and (request := self._requests.pop(delivery.ticket, None)):
                del self._runs[request]
        assert self._loop is not None
        with self._outbox_lock:
            first = not self._outbox
            self._outbox += news
        if first:
            self._loop.call_soon_threadsafe(self._hand_out)

    def _refuse_until_closed(self) -> None:
        """After a failure: whoever handed in a request before hearing of it is answered too."""
        while (message := self._inbox.get()).ticket is not None:
            if message.what == "take":
                self._post([Delivery(message.ticket, ended="failed", reason=self.failure)])
