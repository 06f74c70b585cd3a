"""Replicas behind a router, fed by a workload: one simulated run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import simpy

from simulator.alarm import OUTSIDE, Alarm, SimulatedClock
from simulator.availability import Changes, Record
from simulator.cost_model import CostModel
from simulator.disaggregation import Handover, Split
from simulator.engine.request import Request
from simulator.engine.scheduler import Scheduler
from simulator.errors import RequestRefused, ScenarioError
from simulator.executor import SimulatedExecutor
from simulator.pipeline import Pipeline, PipelinedExecutor
from simulator.recorder import REJECTED, IterationLog, RequestLog, tables
from simulator.replica import LONGEST_LEAP, Replica
from simulator.routers import Router
from simulator.run_tables import RunTables
from simulator.upkeep import Upkeep
from simulator.workloads.arrival import Arrival, next_turn, think_ns, with_session
from simulator.workloads.workload import Workload

REACTION_NS = 1  # whatever a completion causes happens this much later, so ties never depend on event order
PROGRESS_EVERY = 1024  # requests between two reports
MOST_UNDER_WAY = 10_000_000  # requests at once: each takes some 400 bytes, so 4 GB


class Server(NamedTuple):
    """What one replica is made of.

    ``block_copy_ns``: how long one KV block takes between the GPU and the host; ``block_split_ns``: to be
    copied within the GPU's memory. ``group``: which kind of replica it is. ``pipeline``: the stages that it
    shares with other engines, each of which counts as a replica here. ``renew`` makes a scheduler for when
    it starts afresh.
    """

    scheduler: Scheduler
    cost: CostModel
    kv_blocks: int
    block_copy_ns: float = 0.0
    block_split_ns: float = 0.0
    group: int = 0
    pipeline: Pipeline | None = None
    renew: Callable[[], Scheduler] | None = None

    def executor(self) -> SimulatedExecutor:
        """The model of this replica, idle."""
        if self.pipeline is not None:
            return PipelinedExecutor(self.pipeline, self.cost, self.block_copy_ns, self.block_split_ns)
        return SimulatedExecutor(self.cost, self.block_copy_ns, self.block_split_ns)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What serves the requests: replicas behind a router.

    ``split``: where prompts and answers have replicas of their own. ``changes``: what happens to replicas
    during the run, not both.
    """

    servers: Sequence[Server]
    router: Router
    split: Split | None = None
    changes: Changes | None = None


def alike(
    schedulers: Sequence[Scheduler],
    cost: CostModel,
    router: Router,
    kv_blocks: int,
    block_copy_ns: float = 0.0,
    block_split_ns: float = 0.0,
) -> Fleet:
    """Replicas that differ in nothing."""
    servers = [Server(s, cost, kv_blocks, block_copy_ns, block_split_ns) for s in schedulers]
    return Fleet(servers, router)


class Cluster:
    """Sends every request of a workload to a replica and waits for all the answers.

    A session's next turn is sent its think time after the answer before it; a request that is turned away
    ends its session. ``send_until_ns``: when the clients of a closed loop and of sessions stop sending.
    ``server_overhead_ns``: what a request spends in the server outside the engine; it reaches a replica so
    much later than it arrives.
    """

    def __init__(
        self,
        fleet: Fleet,
        workload: Workload,
        *,
        send_until_ns: int | None = None,
        server_overhead_ns: int = 0,
        longest_leap: int = LONGEST_LEAP,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.env = SimulatedClock()
        self.requests = RequestLog()
        self.logs = [IterationLog(i, streams=s.scheduler.streams) for i, s in enumerate(fleet.servers)]
        self._handover: Handover | None = None
        if fleet.split is not None:
            self._handover = Handover(self.env, fleet.split, fleet.router, self._on_complete)
        self.servers = fleet.servers
        self.replicas = [self._replica(log, longest_leap) for log in self.logs]
        self._router: Router | None = None
        self._upkeep: Upkeep | None = None
        self._open(fleet)
        self._workload = workload
        self._send_until_ns = send_until_ns
        self._overhead_ns = server_overhead_ns
        self._progress = progress
        self._source: Iterator[Arrival] = workload.arrivals()
        self._next: Arrival | None = None
        self._offered = 0
        self._sessions: dict[int, Arrival] = {}  # request under way -> what was sent, and what follows

    def _replica(self, log: IterationLog, longest_leap: int) -> Replica:
        handover, server = self._handover, self.servers[log.replica]
        return Replica(
            self.env,
            server.scheduler if handover is None else handover.side(log.replica, server.scheduler),
            server.executor(),
            log,
            self._on_complete if handover is None else handover.on_complete,
            self._on_expire,
            longest_leap=longest_leap,
        )

    def _open(self, fleet: Fleet) -> None:
        """Let the router know who takes requests; a replica that is always alone needs none."""
        if self._handover is not None:
            self._handover.open(self.replicas)
        elif fleet.changes is not None:
            self._upkeep = Upkeep(self, fleet.router, fleet.changes)
            self._router = fleet.router
        elif len(self.replicas) > 1:
            self._router = fleet.router
            for index in range(len(self.replicas)):
                fleet.router.open(index)

    def run(self) -> RunTables:
        """Simulate to the last answer."""
        if self._workload.concurrency is None:
            self._await_next()
        else:
            clients = self._workload.concurrency
            at_once = min(clients, self._workload.requests or clients)
            _refuse_beyond_memory(at_once)
            for _ in range(at_once):
                self.after(self._overhead_ns, self._send_next)
        self.env.run()
        if self._upkeep is not None:
            self._upkeep.give_up()
        found = tables(self.requests, self.logs, *(server.kv_blocks for server in self.servers))
        found.requests["arrival_ns"] -= self._overhead_ns
        return found

    def record(self, end_ns: int) -> Record | None:
        """What happened to replicas in a run that ended then; None where nothing could."""
        return None if self._upkeep is None else self._upkeep.record(end_ns)

    @property
    def fetched(self) -> tuple[int, int] | None:
        """Requests whose KV went from one replica to another, and their tokens; None where none could."""
        handover = self._handover
        return None if handover is None else (handover.fetches, handover.fetched_tokens)

    def after(self, delay_ns: int, action: Callable[[simpy.Event], None]) -> None:
        """Let something happen from outside, before any iteration boundary at the same time."""
        Alarm(self.env, delay_ns, OUTSIDE, action)

    def _await_next(self) -> None:
        self._next = next(self._source, None)
        if self._next is not None:
            self.after(self._next.arrival_ns + self._overhead_ns - self.env.now_ns, self._on_arrival)

    def _on_arrival(self, _: simpy.Event) -> None:
        """Open loop: send all that is due now, then wait for the next."""
        now, arrival = self.env.now_ns - self._overhead_ns, self._next
        while arrival is not None and arrival.arrival_ns <= now:
            self._send(arrival)
            arrival = next(self._source, None)
        self._next = arrival
        if arrival is not None:
            self.after(arrival.arrival_ns - now, self._on_arrival)

    def _send_next(self, _: simpy.Event) -> None:
        """Closed loop: a client sends its next request, if there is any left in time."""
        if self._send_until_ns is not None and self.env.now_ns >= self._send_until_ns:
            return
        arrival = next(self._source, None)
        if arrival is not None:
            self._send(arrival)

    def _send(self, arrival: Arrival) -> None:
        request = Request(
            self._offered,
            self.env.now_ns,
            arrival.prompt_tokens,
            arrival.output_limit,
            arrival.content,
            arrival.priority,
            arrival.timeout_ns,
            self._workload.decoding,
        )
        self._offered += 1
        _refuse_beyond_memory(self._offered - self.requests.ended)
        if self._progress is not None and self._offered % PROGRESS_EVERY == 0:
            self._progress(self.requests.completed)
        if arrival.later:
            self._sessions[request.id] = arrival
        if self._handover is not None:
            self._split(request, arrival)
        elif self._upkeep is None or self._upkeep.admits(request, arrival):
            self.place(request, arrival)

    def place(self, request: Request, arrival: Arrival) -> None:
        """Hand a request to a replica."""
        index = self._router.choose(request) if self._router is not None else 0
        replica = self.replicas[index]
        try:
            replica.add(request)
        except RequestRefused as error:
            if self._router is not None:
                self._router.left(request, index)
            self.turn_away(request, index, REJECTED, str(error))
        else:
            replica.executor.expect(request, arrival.output_tokens)
            if self._upkeep is not None:
                self._upkeep.note(request, arrival, index)

    def _split(self, request: Request, arrival: Arrival) -> None:
        """Hand a request to the replicas that serve its prompt and its answer."""
        assert self._handover is not None
        try:
            self._handover.take(request, arrival.output_tokens)
        except RequestRefused as error:
            self.turn_away(request, 0, REJECTED, str(error))

    def _send_turn(self, answered: Arrival, _: simpy.Event) -> None:
        """A session goes on, if there is time left."""
        now = self.env.now_ns
        if self._send_until_ns is None or now <= self._send_until_ns:
            self._send(next_turn(answered, now))

    def _on_complete(self, request: Request, replica: int) -> None:
        self.requests.complete(request, replica, self.env.now_ns)
        self._leave(request, replica)
        self._go_on(request)

    def _on_expire(self, request: Request, replica: int, reason: str) -> None:
        self._leave(request, replica)
        self.turn_away(request, replica, REJECTED, reason, self.env.now_ns)

    def turn_away(self, request: Request, replica: int, status: int, reason: str, now_ns: int = -1) -> None:
        """A request ends without its answer, and its session with it; ``now_ns`` if it was let in."""
        reason = with_session(reason, self._sessions.pop(request.id, None))
        self.requests.turn_away(request, replica, status, reason, now_ns)
        self._go_on(request)

    def _leave(self, request: Request, replica: int) -> None:
        if self._router is not None:
            self._router.left(request, replica)
        if self._upkeep is not None:
            self._upkeep.left(request, replica)

    def _go_on(self, request: Request) -> None:
        """What the client does once a request has ended."""
        session = self._sessions.pop(request.id, None)
        if session is not None:
            wait_ns = think_ns(session) + self._overhead_ns
            self.after(wait_ns, partial(self._send_turn, session))
        elif self._workload.concurrency is not None:
            self.after(REACTION_NS + self._overhead_ns, self._send_next)


def _refuse_beyond_memory(under_way: int) -> None:
    if under_way > MOST_UNDER_WAY:
        raise ScenarioError(
            f"workload: more than {MOST_UNDER_WAY:,} requests are in the system at once, more than "
            "memory should hold; offer fewer clients, a lower rate or fewer requests, or add replicas"
        )
