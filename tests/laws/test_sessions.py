"""Sessions: every turn waits for the answer before it and then exactly for its think time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from backend.driver import Driver
from simulator.cluster import Cluster, alike
from simulator.recorder import IterationLog, RequestLog, tables
from simulator.routers import RoundRobin
from simulator.run_tables import RunTables
from simulator.workloads.arrival import Arrival, Turn
from tests.laws.engines import LONGEST
from tests.laws.test_leap import gap_counts, stepwise
from tests.laws.test_live_equals_simulated import FakeClock, FakeModel
from tests.laws.worlds import BLOCK_COPY_NS, World, contents, worlds

THINKS_NS = (0, 701, 25_003)  # odd, so that hardly ever two clients send at the same instant


@st.composite
def conversations(draw: st.DrawFn, *, clusters: bool = False) -> World:
    """A world whose requests go on; the number of a session stands in its priority."""
    world = draw(worlds(clusters=clusters))
    arrivals = []
    for number, arrival in enumerate(world.arrivals):
        later = tuple(draw(st.lists(turns(), max_size=3)))
        arrivals.append(arrival._replace(priority=number, later=later))
    return replace(world, arrivals=tuple(arrivals))


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    prompt, output = draw(st.integers(1, 60)), draw(st.integers(1, 30))
    limit = min(output + draw(st.sampled_from([0, 5])), LONGEST - prompt)
    said = contents(draw, prompt + limit)
    content = said and replace(said, names_answer=True)
    return Turn(draw(st.sampled_from(THINKS_NS)), prompt, min(output, limit), limit, content)


class Watched(Cluster):
    """Remembers what was sent, in the order of request ids."""

    def _send(self, arrival: Arrival) -> None:
        self.sent = [*getattr(self, "sent", []), arrival]
        super()._send(arrival)


def simulated(world: World, send_until_ns: int | None = None) -> tuple[RunTables, list[Arrival]]:
    engines = [world.engine() for _ in range(world.replicas)]
    fleet = alike(engines, world.cost, RoundRobin(), world.blocks, BLOCK_COPY_NS)
    cluster = Watched(fleet, world.workload(), send_until_ns=send_until_ns)
    return cluster.run(), getattr(cluster, "sent", [])


def by_session(sent: list[Arrival]) -> Iterator[tuple[int, list[int]]]:
    """Sessions with the ids of their requests in order of sending."""
    ids = sorted(range(len(sent)), key=lambda i: (sent[i].priority, i))
    for session, group in groupby(ids, key=lambda i: sent[i].priority):
        yield session, list(group)


@settings(max_examples=60, deadline=None)
@given(world=conversations(clusters=True))
def test_turns_come_in_order_each_its_think_time_after_the_answer_before(world: World) -> None:
    run, sent = simulated(world)
    arrival, finished = run.requests["arrival_ns"], run.requests["finished_ns"]
    for session, ids in by_session(sent):
        told = world.arrivals[session]
        prompts = [told.prompt_tokens, *(turn.prompt_tokens for turn in told.later)]
        assert [sent[i].prompt_tokens for i in ids] == prompts[: len(ids)]
        for (before, after), turn in zip(pairwise(ids), told.later, strict=False):
            assert arrival[after] == finished[before] + max(turn.think_ns, 1)


@settings(max_examples=60, deadline=None)
@given(world=conversations(clusters=True))
def test_no_turn_is_lost_but_behind_one_that_was_turned_away(world: World) -> None:
    run, sent = simulated(world)
    assert len(sent) == len(run.requests["id"])
    sessions = dict(by_session(sent))
    assert set(sessions) == set(range(len(world.arrivals)))
    for session, ids in sessions.items():
        missing = 1 + len(world.arrivals[session].later) - len(ids)
        status = [int(run.requests["status"][i]) for i in ids]
        assert status[:-1] == [0] * (len(ids) - 1)
        if missing:
            assert status[-1] == 1
            assert run.reasons[ids[-1]].endswith(f"; its session ends {missing} turns early")


@settings(max_examples=25, deadline=None)
@given(world=conversations(), until_ns=st.sampled_from([0, 2000, 60_000]))
def test_nobody_goes_on_after_the_end(world: World, until_ns: int) -> None:
    run, sent = simulated(world, until_ns)
    for _, (_, *later) in by_session(sent):
        assert all(run.requests["arrival_ns"][i] <= until_ns for i in later)


@settings(max_examples=60, deadline=None)
@given(world=conversations())
def test_live_and_simulated_sessions_are_identical(world: World) -> None:
    run, _ = simulated(world)
    clock, engine = FakeClock(), world.engine()
    requests, iterations = RequestLog(), IterationLog(0, streams=engine.streams)
    driver = Driver(engine, FakeModel(clock, world.cost), clock, requests, iterations)
    driver.run(iter(world.arrivals))
    live = tables(requests, [iterations], world.blocks)
    for name, column in run.requests.items():
        assert live.requests[name].tolist() == column.tolist(), name
    assert live.reasons == run.reasons
    assert stepwise(live) == stepwise(run)
    assert gap_counts(live) == gap_counts(run)
