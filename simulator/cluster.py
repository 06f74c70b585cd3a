"""Replicas behind a router, fed by a workload: one simulated run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import simpy

from simulator.alarm import OUTSIDE, Alarm, SimulatedClock
from simulator.cost_model import CostModel
from simulator.engine.request import Request
from simulator.engine.scheduler import Scheduler
from simulator.errors import RequestRefused
from simulator.executor import SimulatedExecutor
from simulator.recorder import REJECTED, IterationLog, RequestLog, tables
from simulator.replica import LONGEST_LEAP, Replica
from simulator.routers import Router
from simulator.run_tables import RunTables
from simulator.workloads.arrival import Arrival
from simulator.workloads.workload import Workload

REACTION_NS = 1  # whatever a completion causes happens this much later, so ties never depend on event order
PROGRESS_EVERY = 1024  # requests between two reports


@dataclass(frozen=True, slots=True)
class Fleet:
    """What serves the requests: a scheduler per replica, one cost model, a router, blocks per replica.

    ``block_copy_ns``: how long one KV block takes between the GPU and the host.
    """

    schedulers: Sequence[Scheduler]
    cost: CostModel
    router: Router
    kv_blocks: int
    block_copy_ns: float = 0.0


class Cluster:
    """Sends every request of a workload to a replica and waits for all the answers.

    ``send_until_ns``: when the clients of a closed loop stop sending.
    """

    def __init__(
        self,
        fleet: Fleet,
        workload: Workload,
        *,
        send_until_ns: int | None = None,
        longest_leap: int = LONGEST_LEAP,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.env = SimulatedClock()
        self.requests = RequestLog()
        self.logs = [IterationLog(i, streams=s.streams) for i, s in enumerate(fleet.schedulers)]
        self.replicas = [
            Replica(
                self.env,
                scheduler,
                SimulatedExecutor(fleet.cost, fleet.block_copy_ns),
                log,
                self._on_complete,
                self._on_expire,
                longest_leap=longest_leap,
            )
            for scheduler, log in zip(fleet.schedulers, self.logs, strict=True)
        ]
        self._fleet = fleet
        self._workload = workload
        self._send_until_ns = send_until_ns
        self._progress = progress
        self._source: Iterator[Arrival] = workload.arrivals()
        self._next: Arrival | None = None
        self._offered = 0

    def run(self) -> RunTables:
        """Simulate to the last answer."""
        if self._workload.concurrency is None:
            self._await_next()
        else:
            for _ in range(self._workload.concurrency):
                self._after(0, self._send_next)
        self.env.run()
        return tables(self.requests, self.logs, self._fleet.kv_blocks)

    def _after(self, delay_ns: int, action: Callable[[simpy.Event], None]) -> None:
        """Let something happen from outside, before any iteration boundary at the same time."""
        Alarm(self.env, delay_ns, OUTSIDE, action)

    def _await_next(self) -> None:
        self._next = next(self._source, None)
        if self._next is not None:
            self._after(self._next.arrival_ns - self.env.now_ns, self._on_arrival)

    def _on_arrival(self, _: simpy.Event) -> None:
        """Open loop: send all that is due now, then wait for the next."""
        now, arrival = self.env.now_ns, self._next
        while arrival is not None and arrival.arrival_ns <= now:
            self._send(arrival)
            arrival = next(self._source, None)
        self._next = arrival
        if arrival is not None:
            self._after(arrival.arrival_ns - now, self._on_arrival)

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
        )
        self._offered += 1
        if self._progress is not None and self._offered % PROGRESS_EVERY == 0:
            self._progress(self.requests.completed)
        index = self._fleet.router(request, self.replicas) if len(self.replicas) > 1 else 0
        replica = self.replicas[index]
        try:
            replica.add(request)
        except RequestRefused as error:
            self.requests.turn_away(request, index, REJECTED, str(error))
            self._on_end()
        else:
            replica.executor.expect(request, arrival.output_tokens)

    def _on_complete(self, request: Request, replica: int) -> None:
        self.requests.complete(request, replica, self.env.now_ns)
        self._on_end()

    def _on_expire(self, request: Request, replica: int, reason: str) -> None:
        self.requests.turn_away(request, replica, REJECTED, reason, self.env.now_ns)
        self._on_end()

    def _on_end(self) -> None:
        if self._workload.concurrency is not None:
            self._after(REACTION_NS, self._send_next)
