"""Random fleets: every router, pipelines, replicas that fail or are scaled, prompts and answers apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from hypothesis import strategies as st

from simulator.availability import Changes, Outage, Scaling, Wear
from simulator.cluster import Cluster, Fleet, Server
from simulator.disaggregation import Link, Split
from simulator.engine.plan import IterationShape
from simulator.engine.scheduler import Scheduler
from simulator.pipeline import Pipeline
from simulator.replica import LONGEST_LEAP
from simulator.routers import ROUTERS
from simulator.run_tables import RunTables
from tests.laws.worlds import BLOCK_COPY_NS, World, worlds

HOP_NS = 37


def stages_ns(world: World, stages: int, shape: IterationShape) -> list[int]:
    """Uneven on purpose: the first stage takes a little longer."""
    each = world.cost.iteration_ns(shape) // stages
    return [each + 11, *[each] * (stages - 1)]


@dataclass(frozen=True)
class RandomFleet:
    """A world served by a fleet; ``servers`` are those of the latest run."""

    world: World
    router: str
    stages: int = 1
    changes: Changes | None = None
    split: Split | None = None
    servers: list[Server] = field(default_factory=list, compare=False)

    def run(self, longest_leap: int = LONGEST_LEAP) -> RunTables:
        return self.cluster(longest_leap).run()

    def cluster(self, longest_leap: int = LONGEST_LEAP) -> Cluster:
        world = self.world
        self.servers[:] = [server for _ in range(world.replicas) for server in self._replica()]
        random = np.random.default_rng(1)
        changes = self.changes and self.changes._replace(random=np.random.default_rng(2))
        fleet = Fleet(self.servers, ROUTERS[self.router](random), self.split, changes)
        return Cluster(fleet, world.workload(), longest_leap=longest_leap)

    def _replica(self) -> list[Server]:
        world, pipeline = self.world, None
        if self.stages > 1:
            pipeline = Pipeline(self.stages, partial(stages_ns, world, self.stages), lambda _: HOP_NS)
        make: Callable[[], Scheduler] = world.engine
        return [
            Server(make(), world.cost, world.blocks, BLOCK_COPY_NS, 0.0, 0, pipeline, make)
            for _ in range(self.stages)
        ]


routers = st.sampled_from(sorted(ROUTERS))
times = st.integers(0, 200_000)


@st.composite
def happenings(draw: st.DrawFn, replicas: int) -> Changes:
    """Failures planned and by chance, with and without a way back."""
    which = st.integers(0, replicas - 1)
    outages = st.builds(Outage, which, times, st.none() | st.integers(1, 100_000))
    wear = st.builds(Wear, st.none() | which, st.floats(20_000, 500_000), st.integers(1, 50_000))
    return Changes(
        draw(st.lists(outages, max_size=3)),
        draw(st.lists(wear, max_size=1)),
    )


def of_replicas(world: World, replicas: int) -> World:
    """The same world on so many replicas."""
    return World(
        world.policy,
        world.knobs,
        world.blocks,
        world.block_size,
        world.arrivals,
        replicas,
        world.concurrency,
        cost=world.cost,
    )


@st.composite
def changing_fleets(draw: st.DrawFn) -> RandomFleet:
    """Replicas, some of them pipelines, to which things happen."""
    world = draw(worlds(clusters=True))
    stages = draw(st.sampled_from([1, 1, 2, 3]))
    return RandomFleet(world, draw(routers), stages, draw(happenings(world.replicas * stages)))


@st.composite
def scaled_fleets(draw: st.DrawFn) -> RandomFleet:
    """One to three replicas, by load, some of which fail."""
    world = of_replicas(draw(worlds(clusters=True)), 3)
    scaling = st.builds(
        Scaling,
        st.integers(1, 2),
        st.just(3),
        st.floats(0.3, 3),
        st.integers(1, 20_000),
        st.sampled_from([100, 500, 3000]),
        st.sampled_from([0, 0, 4000]),
    )
    changes = draw(st.just(Changes()) | happenings(3))
    return RandomFleet(world, draw(routers), changes=changes._replace(scaling=draw(scaling)))


@st.composite
def steady_fleets(draw: st.DrawFn) -> RandomFleet:
    """Replicas and pipelines to which nothing happens."""
    return RandomFleet(draw(worlds(clusters=True)), draw(routers), draw(st.sampled_from([1, 2, 3])))


@st.composite
def split_fleets(draw: st.DrawFn) -> RandomFleet:
    """Prompts on the first replicas, answers on the others."""
    world = draw(worlds("vllm-v1", clusters=True))
    prompts, answers = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    world = of_replicas(world, prompts + answers)
    link = Link(draw(st.sampled_from([0, 1, 5000])), draw(st.sampled_from([0.0, 3.3, 400.0])))
    return RandomFleet(world, draw(routers), split=Split(prompts, link))
