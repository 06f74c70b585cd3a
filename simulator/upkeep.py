"""A run in which replicas fail, come back, start and stop: what happens to their requests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import simpy

from simulator.availability import (
    MOST_RETRIES,
    Autoscaler,
    Background,
    Changes,
    Gate,
    Outages,
    Record,
)
from simulator.engine.request import Request
from simulator.recorder import FAILED
from simulator.routers import Router
from simulator.workloads.arrival import Arrival

if TYPE_CHECKING:
    from simulator.cluster import Cluster

RESEND_NS = 1  # after a failure: whatever an event causes happens later than it


class Upkeep:
    """Keeps count of the requests of every replica, and sends those that a failure lost to another one.

    A request sent again begins from nothing and keeps its arrival. While no replica takes requests they
    wait in front of the router, in order.
    """

    def __init__(self, cluster: Cluster, router: Router, changes: Changes) -> None:
        self._cluster = cluster
        self._router = router
        self._held: list[tuple[Request, Arrival]] = []
        self._held_ns = 0  # when the last of them came
        self._under_way: list[dict[Request, Arrival]] = [{} for _ in cluster.replicas]
        self._tries: dict[int, int] = {}  # request -> how often it was lost
        self._retries = 0
        gate = self._gate = Gate(cluster.env, router, cluster.replicas)
        background = Background(cluster.env)
        first = changes.scaling.least if changes.scaling is not None else len(cluster.replicas)
        gate.begin(first)
        self._outages = Outages(changes, gate, background, self._fail, self._restore)
        if changes.scaling is not None:
            Autoscaler(
                changes.scaling, gate, background, lambda: len(self._held), self._renew, self._let_in
            )

    def admits(self, request: Request, arrival: Arrival) -> bool:
        """Whether a replica takes requests now; otherwise this one is kept until one does."""
        if self._gate.open_replicas:
            return True
        self._held.append((request, arrival))
        self._held_ns = self._cluster.env.now_ns
        return False

    def note(self, request: Request, arrival: Arrival, replica: int) -> None:
        """A replica has taken a request in."""
        self._under_way[replica][request] = arrival

    def left(self, request: Request, replica: int) -> None:
        """A replica is done with a request."""
        del self._under_way[replica][request]

    def record(self, end_ns: int) -> Record:
        """What happened, in a run that ended then."""
        gate = self._gate
        return Record(
            failures=self._outages.failures,
            retries=self._retries,
            started=gate.started,
            stopped=gate.stopped,
            fewest=gate.fewest,
            most=gate.most,
            replica_ns=gate.paid_ns(end_ns),
        )

    def give_up(self) -> None:
        """Nothing more will happen: whoever still waits for a replica failed as the last of them came.

        Whatever passed since then, such as the end of an iteration that was lost, is no part of the run.
        """
        env = self._cluster.env
        while self._held:
            env.back_to(self._held_ns)
            held, self._held = self._held, []
            for request, _ in held:
                self._cluster.turn_away(request, 0, FAILED, "no replica was left", env.now_ns)
            env.run()

    def _fail(self, index: int) -> None:
        """A replica is gone with all that it had, and with it those that share its stages."""
        for other in self._sharing(index):
            self._gate.alive[other] = False
            self._gate.settle(other)
            lost, self._under_way[other] = self._under_way[other], {}
            self._renew(other)
            for request, arrival in lost.items():
                self._router.left(request, other)
                self._cluster.after(RESEND_NS, partial(self._resend, request, arrival, other))

    def _restore(self, index: int) -> None:
        for other in self._sharing(index):
            self._gate.alive[other] = True
            self._gate.settle(other)
            self._let_in(other)

    def _sharing(self, index: int) -> list[int]:
        servers = self._cluster.servers
        pipeline = servers[index].pipeline
        if pipeline is None:
            return [index]
        return [other for other, server in enumerate(servers) if server.pipeline is pipeline]

    def _renew(self, index: int) -> None:
        """Let a replica begin afresh: empty caches, nothing under way."""
        server = self._cluster.servers[index]
        if server.pipeline is not None:
            server.pipeline.reset(self._cluster.env.now_ns)
        assert server.renew is not None, "a replica that can fail can be made again"
        self._cluster.replicas[index].restart(server.renew(), server.executor())

    def _let_in(self, _: int) -> None:
        """A replica takes requests: first those that have waited for it."""
        if not self._gate.open_replicas:
            return
        held, self._held = self._held, []
        for request, arrival in held:
            self._cluster.place(request, arrival)

    def _resend(self, lost: Request, arrival: Arrival, replica: int, _: simpy.Event) -> None:
        tries = self._tries[lost.id] = self._tries.get(lost.id, 0) + 1
        cluster = self._cluster
        if tries > MOST_RETRIES:
            reason = f"lost by failing replicas {tries} times"
            cluster.turn_away(lost, replica, FAILED, reason, cluster.env.now_ns)
            return
        self._retries += 1
        request = Request(
            lost.id,
            lost.arrival_ns,
            lost.prompt_tokens,
            lost.output_limit,
            arrival.content,
            lost.priority,
            lost.timeout_ns,
            lost.decoding,
        )
        if self.admits(request, arrival):
            cluster.place(request, arrival)
