"""Random small worlds: an engine under pressure, requests that share prefixes, and a simple clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from simulator.cluster import Cluster, alike
from simulator.cost_model import DecodeLine
from simulator.engine.plan import IterationShape, Plan
from simulator.engine.request import Content, Request
from simulator.engine.scheduler import Patient, Scheduler
from simulator.errors import RequestRefused
from simulator.replica import LONGEST_LEAP
from simulator.routers import LeastLoaded, RoundRobin, one_request
from simulator.run_tables import RunTables
from simulator.workloads.arrival import Arrival
from simulator.workloads.workload import Workload
from tests.laws.engines import ENGINES, LONGEST

BLOCK_COPY_NS = 97.3


class ToyCost:
    """A clock with all the terms of a real one: a broken line over the context, odd numbers throughout."""

    KNEE = 157

    def decode_line(self, decodes: int, context_tokens: int) -> DecodeLine:
        base = 1000.7 + 13.3 * decodes
        if context_tokens <= self.KNEE:
            return DecodeLine(base, 3.1, self.KNEE)
        return DecodeLine(base - 1.4 * self.KNEE, 4.5, 1 << 60)

    def iteration_ns(self, shape: IterationShape) -> int:
        line = self.decode_line(shape.decodes, shape.context_tokens)
        decode = line.base_ns + line.slope_ns * shape.context_tokens
        if not shape.prefills:
            return max(1, int(decode))
        return int(decode + 31.7 * shape.prefill_tokens + 1.3 * shape.prefill_pairs + 17.9 * shape.prefills)

    def extrapolated(self, columns: dict[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
        return np.zeros(len(columns["decodes"]), dtype=bool)


class EvenCost(ToyCost):
    """A clock of whole microseconds: arrivals and iteration ends fall on the same instant all the time."""

    def decode_line(self, decodes: int, context_tokens: int) -> DecodeLine:
        return DecodeLine(1000.0, 0.0, 1 << 60)

    def iteration_ns(self, shape: IterationShape) -> int:
        return 2000 if shape.prefills else 1000


@dataclass(frozen=True)
class World:
    """One random case; ``engine()`` makes a fresh scheduler each time."""

    policy: str
    knobs: dict[str, object]
    blocks: int
    block_size: int
    arrivals: tuple[Arrival, ...]
    replicas: int = 1
    concurrency: int | None = None
    balance: bool = False
    cost: ToyCost = field(default_factory=ToyCost, compare=False)
    engines: list[Scheduler] = field(default_factory=list, compare=False)

    def engine(self) -> Scheduler:
        return ENGINES[self.policy].make(self.blocks, self.block_size, dict(self.knobs))

    def workload(self) -> Workload:
        return Workload(
            lambda: iter(self.arrivals), concurrency=self.concurrency, requests=len(self.arrivals)
        )

    def run(self, longest_leap: int = LONGEST_LEAP) -> RunTables:
        """Simulate; the engines that did it are left in ``engines``."""
        self.engines[:] = [self.engine() for _ in range(self.replicas)]
        router = LeastLoaded(one_request) if self.balance else RoundRobin()
        fleet = alike(self.engines, self.cost, router, self.blocks, BLOCK_COPY_NS)
        return Cluster(fleet, self.workload(), longest_leap=longest_leap).run()


class CountingModel:
    """The plainest executor: it counts every token of every row in every iteration.

    It reads who takes part from the plan alone, so it also checks what a plan promises.
    """

    def __init__(self) -> None:
        self.left: dict[Request, int] = {}
        self.tokens: dict[int, int] = {}  # tokens computed per request since it last lost its KV

    def expect(self, request: Request, arrival: Arrival) -> None:
        self.left[request] = arrival.output_tokens
        self.tokens[request.id] = 0

    def forget(self, request: Request) -> None:
        self.left.pop(request, None)

    def begin(self, plan: Plan) -> None:
        for request in plan.preempted:
            self.tokens[request.id] = 0
        for request, start, tokens, _ in plan.prefills:
            self.tokens[request.id] = start + tokens

    def finish(self, plan: Plan) -> list[Request]:
        yields = [chunk.request for chunk in plan.prefills if chunk.completes]
        if not plan.paused:
            yields += [request for request in plan.decodes.members if request in self.left]
        for request in yields:
            self.left[request] -= 1
        stopped = [request for request in yields if self.left[request] == 0]
        for request in stopped:
            del self.left[request]
        return stopped


def offer(engine: Scheduler, arrivals: Sequence[Arrival], model: CountingModel) -> list[Request]:
    """Hand over every request at once; those that were not turned away."""
    taken = []
    for i, arrival in enumerate(arrivals):
        request = Request(
            i, arrival.arrival_ns, arrival.prompt_tokens, arrival.output_limit, arrival.content
        )
        request.priority, request.timeout_ns = arrival.priority, arrival.timeout_ns
        try:
            engine.add(request)
        except RequestRefused:
            continue
        model.expect(request, arrival)
        taken.append(request)
    return taken


class Pace:
    """Asks an engine for plans at odd moments, as a driver would, and keeps what it gives up."""

    def __init__(self, engine: Scheduler) -> None:
        self.engine = engine
        self.now_ns = 0
        self.expired: list[tuple[Request, str]] = []

    def plan(self) -> Plan | None:
        engine = self.engine
        if not isinstance(engine, Patient):
            return engine.plan()
        self.now_ns += 997
        while True:
            engine.tell(self.now_ns)
            plan = engine.plan()
            self.expired += engine.take_expired()
            if plan is not None or engine.wake_at_ns is None:
                return plan
            assert engine.wake_at_ns > self.now_ns, "to be woken in the past"
            self.now_ns = engine.wake_at_ns


def contents(draw: st.DrawFn, prompt: int) -> Content | None:
    """A prompt that starts like others: one of three openings, then perhaps its own continuation."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return None
    span = 8
    ids = -(-prompt // span)
    shared = draw(st.integers(0, ids))
    own = draw(st.integers(0, 3))
    branch = 100 * (1 + shared + 20 * own)  # ids name all that precedes them, so a branch keeps its own
    return Content(tuple(10_000 * kind + i + (branch if i >= shared else 0) for i in range(ids)), span)


@st.composite
def arrival_lists(draw: st.DrawFn, most: int = 14) -> tuple[Arrival, ...]:
    arrivals, now = [], 0
    for _ in range(draw(st.integers(1, most))):
        now += draw(st.sampled_from([0, 0, 1, 500, 1013, 2000, 3000, 20_000, 100_000]))
        prompt = draw(st.integers(1, 60))
        output = draw(st.integers(1, 30))
        slack = draw(st.sampled_from([0, 0, 5]))
        limit = min(output + slack, LONGEST - prompt)
        content, priority = contents(draw, prompt), draw(st.integers(0, 2))
        timeout = draw(st.sampled_from([0, 0, 1500, 30_000]))
        arrivals.append(Arrival(now, prompt, min(output, limit), limit, content, priority, timeout))
    return tuple(arrivals)


@st.composite
def worlds(draw: st.DrawFn, policy: str | None = None, *, clusters: bool = False) -> World:
    """A case tight enough that queues, evictions and rejections happen."""
    policy = policy or draw(st.sampled_from(sorted(ENGINES)))
    block_size = draw(st.sampled_from([1, 2, 4, 8] if policy == "orca" else [1, 3, 4, 8]))  # buddies halve
    longest_blocks = -(-LONGEST // block_size)
    blocks = draw(st.integers(longest_blocks // 2, 3 * longest_blocks))
    return World(
        policy,
        draw(ENGINES[policy].knobs),
        blocks,
        block_size,
        draw(arrival_lists()),
        replicas=draw(st.integers(1, 3)) if clusters else 1,
        concurrency=draw(st.sampled_from([None, None, 1, 4])) if clusters else None,
        balance=draw(st.booleans()),
        cost=draw(st.sampled_from([ToyCost(), EvenCost()])),
    )
