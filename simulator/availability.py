"""Replicas that come and go: which take requests, which fail, how many there should be, what they cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import simpy
from numpy.random import Generator

from simulator.alarm import OUTSIDE, Alarm, SimulatedClock
from simulator.replica import Replica
from simulator.routers import Router

MOST_RETRIES = 5  # SGLang's model gateway (--retry-max-retries): then a request has failed for good


class Outage(NamedTuple):
    """A failure that is planned. ``restart_ns``: how long until the replica is back; None: never."""

    replica: int
    at_ns: int
    restart_ns: int | None


class Wear(NamedTuple):
    """Failures by chance, exponential in the time since a replica came up; ``replica`` None: of each."""

    replica: int | None
    mtbf_ns: float
    restart_ns: int


class Scaling(NamedTuple):
    """How many replicas there should be, decided every so often.

    The number whose mean of unanswered requests is nearest below the target, as Kubernetes' horizontal pod
    autoscaler computes it: ceil(unanswered / target), between bounds. Down it follows the largest number
    wanted within ``stabilisation_ns``.
    """

    least: int
    most: int
    target_outstanding: float
    start_up_ns: int
    interval_ns: int
    stabilisation_ns: int


class Changes(NamedTuple):
    """What is to happen to replicas during a run. ``random`` draws the failures by chance."""

    outages: Sequence[Outage] = ()
    wear: Sequence[Wear] = ()
    scaling: Scaling | None = None
    random: Generator | None = None


class Record(NamedTuple):
    """What happened to replicas in a run.

    ``fewest`` and ``most``: that were paid for at a time. ``replica_ns``: the time of that, all together.
    """

    failures: int
    retries: int
    started: int
    stopped: int
    fewest: int
    most: int
    replica_ns: int


class Gate:
    """Opens a replica to the router while it is wanted and alive, and knows since when each is paid for."""

    def __init__(self, env: SimulatedClock, router: Router, replicas: Sequence[Replica]) -> None:
        self.env = env
        self.router = router
        self.replicas = replicas
        self.wanted = [False] * len(replicas)
        self.alive = [True] * len(replicas)
        self.open_replicas = 0
        self.started = self.stopped = 0
        self._is_open = [False] * len(replicas)
        self._paid_since_ns = [-1] * len(replicas)  # -1: not running
        self._paid_ns = 0
        self._paid = 0
        self.fewest = self.most = 0

    def begin(self, count: int) -> None:
        """The first replicas run from the start."""
        for index in range(count):
            self.launch(index)
            self.want(index, True)
        self.fewest = count

    def launch(self, index: int) -> None:
        """A replica is paid for from now on."""
        self._paid_since_ns[index] = self.env.now_ns
        self._paid += 1
        self.most = max(self.most, self._paid)

    def want(self, index: int, wanted: bool) -> None:
        """Let a replica that runs take requests, or no more of them."""
        self.wanted[index] = wanted
        self.settle(index)

    def settle(self, index: int) -> None:
        """Tell the router whether a replica takes requests."""
        should = self.wanted[index] and self.alive[index]
        if should == self._is_open[index]:
            return
        self._is_open[index] = should
        self.open_replicas += 1 if should else -1
        if should:
            self.router.open(index)
        else:
            self.router.close(index)

    def is_running(self, index: int) -> bool:
        return self.wanted[index] or self.replicas[index].outstanding > 0

    def is_paid(self, index: int) -> bool:
        return self._paid_since_ns[index] >= 0

    def stop(self, index: int) -> None:
        """A replica is no longer paid for."""
        self.stopped += 1
        self._paid_ns += self.env.now_ns - self._paid_since_ns[index]
        self._paid_since_ns[index] = -1
        self._paid -= 1
        self.fewest = min(self.fewest, self._paid)

    def paid_ns(self, end_ns: int) -> int:
        """What all replicas together have been paid for, up to the end of the run."""
        running = [since for since in self._paid_since_ns if since >= 0]
        return self._paid_ns + sum(max(0, end_ns - since) for since in running)


class Background:
    """Alarms that alone do not keep a run going."""

    def __init__(self, env: SimulatedClock) -> None:
        self.env = env
        self._pending = 0

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do something then, unless by then nothing else is left to happen."""
        self._pending += 1
        Alarm(self.env, delay_ns, OUTSIDE, partial(self._on_alarm, action))

    def _on_alarm(self, action: Callable[[], None], _: simpy.Event) -> None:
        self._pending -= 1
        if self.env.scheduled_events > self._pending:
            action()


class Outages:
    """Lets replicas fail and come back, by ``fail`` and ``restore``; what does not run cannot fail."""

    def __init__(
        self,
        changes: Changes,
        gate: Gate,
        background: Background,
        fail: Callable[[int], None],
        restore: Callable[[int], None],
    ) -> None:
        self.failures = 0
        self._gate = gate
        self._background = background
        self._random = changes.random
        self._fail = fail
        self._restore = restore
        for outage in changes.outages:
            self._plan(outage.at_ns, outage.replica, outage.restart_ns)
        for wear in changes.wear:
            every = range(len(gate.replicas)) if wear.replica is None else (wear.replica,)
            for index in every:
                self._wear_out(index, wear)

    def _plan(self, delay_ns: int, index: int, restart_ns: int | None) -> None:
        self._background.after(delay_ns, lambda: self._strike(index, restart_ns))

    def _wear_out(self, index: int, wear: Wear) -> None:
        """The next failure by chance, counted from now."""
        assert self._random is not None
        delay_ns = 1 + int(self._random.exponential(wear.mtbf_ns))
        self._background.after(delay_ns, partial(self._strike, index, wear.restart_ns, wear))

    def _strike(self, index: int, restart_ns: int | None, wear: Wear | None = None) -> None:
        gate = self._gate
        if gate.alive[index] and gate.is_running(index):
            self.failures += 1
            self._fail(index)
            if restart_ns is not None:
                Alarm(gate.env, restart_ns, OUTSIDE, lambda _: self._come_back(index, wear))
                return
        if wear is not None:
            self._wear_out(index, wear)

    def _come_back(self, index: int, wear: Wear | None) -> None:
        self._restore(index)
        if wear is not None:
            self._wear_out(index, wear)


class Autoscaler:
    """Starts and stops replicas so that each has about so many unanswered requests.

    ``waiting`` counts requests that no replica could take. ``renew`` makes a replica's memory empty again.
    """

    def __init__(
        self,
        scaling: Scaling,
        gate: Gate,
        background: Background,
        waiting: Callable[[], int],
        renew: Callable[[int], None],
        opened: Callable[[int], None],
    ) -> None:
        self._scaling = scaling
        self._gate = gate
        self._background = background
        self._waiting = waiting
        self._renew = renew
        self._opened = opened
        self._starting: dict[int, int] = {}  # replica -> when it will be ready
        self._wishes: deque[tuple[int, int]] = deque()  # when, and how many replicas were wanted
        background.after(scaling.interval_ns, self._on_interval)

    def _on_interval(self) -> None:
        self._stop_drained()
        wanted, settled = self._wish()
        current = sum(self._gate.wanted) + len(self._starting)
        if wanted > current:
            self._start(wanted - current)
        elif settled < current:
            self._close(current - settled)
        self._background.after(self._scaling.interval_ns, self._on_interval)

    def _wish(self) -> tuple[int, int]:
        """How many replicas the load asks for now, and the most that it lately asked for."""
        scaling, now = self._scaling, self._gate.env.now_ns
        load = self._waiting() + sum(replica.outstanding for replica in self._gate.replicas)
        wanted = min(max(-int(-load // scaling.target_outstanding), scaling.least), scaling.most)
        self._wishes.append((now, wanted))
        while self._wishes[0][0] < now - scaling.stabilisation_ns:
            self._wishes.popleft()
        return wanted, max(count for _, count in self._wishes)

    def _start(self, count: int) -> None:
        """First take back those that are about to stop, then start others."""
        gate = self._gate
        for index in range(len(gate.replicas)):
            if not count:
                return
            if gate.wanted[index] or index in self._starting:
                continue
            count -= 1
            if gate.is_paid(index):
                gate.want(index, True)
                self._opened(index)
            else:
                self._launch(index)

    def _launch(self, index: int) -> None:
        gate, start_up_ns = self._gate, self._scaling.start_up_ns
        gate.started += 1
        gate.launch(index)
        ready_ns = self._starting[index] = gate.env.now_ns + start_up_ns
        Alarm(gate.env, start_up_ns, OUTSIDE, lambda _: self._on_started(index, ready_ns))

    def _on_started(self, index: int, ready_ns: int) -> None:
        """Unless it was stopped meanwhile."""
        if self._starting.get(index) == ready_ns:
            del self._starting[index]
            self._renew(index)
            self._gate.want(index, True)
            self._opened(index)

    def _close(self, count: int) -> None:
        """Stop those that are starting, then let those that run finish what they have, the last first."""
        gate = self._gate
        for index in reversed(range(len(gate.replicas))):
            if not count:
                return
            if index in self._starting:
                del self._starting[index]
                gate.stop(index)
                count -= 1
            elif gate.wanted[index]:
                gate.want(index, False)
                count -= 1

    def _stop_drained(self) -> None:
        gate = self._gate
        for index, replica in enumerate(gate.replicas):
            drained = not gate.wanted[index] and not replica.outstanding and index not in self._starting
            if drained and gate.is_paid(index):
                gate.stop(index)
