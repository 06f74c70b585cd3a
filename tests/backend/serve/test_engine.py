"""The engine's thread: what it hands out, whatever policy plans and whatever goes wrong."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator, Sequence
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.clock import WallClock
from backend.serve.engine import Engine, EngineStopped
from backend.serve.metrics import Metrics
from backend.serve.seam import Emitted, Order, Prompt
from backend.serve.simulated import PacedExecutor, answer_lengths
from backend.serve.ticket import Ticket
from simulator.engine.dynamic import Dynamic
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import Plan
from simulator.engine.queue_policy import QueuePolicy
from simulator.engine.request import Request
from simulator.engine.scheduler import Scheduler
from simulator.engine.static import Static
from simulator.workloads.arrival import Arrival
from tests.backend.serve.running import FlatCost, backing, running, scheduler
from tests.laws.engines import ENGINES
from tests.laws.worlds import LONGEST, World, worlds

Answer = tuple[list[int], str]


class Late:
    """A clock that always wakes up late and counts what was asked of it."""

    def __init__(self, late_ns: int) -> None:
        self.late_ns = late_ns
        self.time_ns = 0
        self.ends: list[int] = []

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until(self, time_ns: int) -> None:
        self.ends.append(time_ns)
        self.time_ns = max(self.time_ns, time_ns) + self.late_ns


def engine_of(policy: Scheduler, lengths: Iterator[int], capacity: int = 1000) -> Engine:
    clock = WallClock()
    executor = PacedExecutor(FlatCost(1), lengths, clock)
    metrics = Metrics("m", LONGEST, {})
    return Engine(policy, executor, metrics, clock, capacity=capacity, backlog_tokens=10_000)


async def collect(ticket: Ticket) -> Answer:
    """All tokens of an answer and how it ended."""
    tokens: list[int] = []
    ended = None
    while ended is None:
        more, ended = await ticket.read()
        tokens += more
    return tokens, ended


def orders_of(world: World) -> list[Order]:
    return [
        Order(Prompt(a.prompt_tokens, None, a.content), a.output_limit, priority=a.priority)
        for a in world.arrivals
    ]


async def serve(engine: Engine, orders: Sequence[Order], cancel: Sequence[bool]) -> list[Answer]:
    engine.start(asyncio.get_running_loop())
    tickets = [engine.submit(order) for order in orders]
    for ticket, unwanted in zip(tickets, cancel, strict=False):
        if unwanted:
            await asyncio.sleep(0)
            engine.cancel(ticket)
    answers = [await asyncio.wait_for(collect(ticket), 60) for ticket in tickets]
    async with asyncio.timeout(60):
        while engine.scheduler.busy:  # a padded batch runs to its end whoever has left
            await asyncio.sleep(0.001)
    engine.close()
    return answers


@pytest.mark.parametrize("policy", sorted(ENGINES))
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_every_policy_serves_every_token_once(policy: str, data: st.DataObject) -> None:
    """Placeholder tokens are places in the answer, so a token lost, doubled or swapped would show."""
    world = data.draw(worlds(policy))
    engine = engine_of(world.engine(), iter([a.output_tokens for a in world.arrivals]))
    orders = orders_of(world)
    answers = asyncio.run(serve(engine, orders, ()))
    drawn = iter([a.output_tokens for a in world.arrivals])  # by those that are taken in, in order
    for order, (tokens, ended) in zip(orders, answers, strict=True):
        length = 0 if ended in {"refused", "full"} else min(next(drawn), order.output_limit)
        assert tokens == list(range(0 if ended == "expired" else length))
    assert {ended for _, ended in answers} <= {"stop", "length", "refused", "full", "expired"}
    assert engine.scheduler.used_blocks == 0
    assert engine.outstanding == 0


@pytest.mark.parametrize("policy", sorted(ENGINES))
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_cancelling_anywhere_leaves_nothing_behind(policy: str, data: st.DataObject) -> None:
    world = data.draw(worlds(policy))
    cancel = data.draw(st.lists(st.booleans(), min_size=len(world.arrivals), max_size=len(world.arrivals)))
    engine = engine_of(world.engine(), cycle([a.output_tokens for a in world.arrivals]))
    answers = asyncio.run(serve(engine, orders_of(world), cancel))
    wanted = [ended for (_, ended), unwanted in zip(answers, cancel, strict=True) if not unwanted]
    assert "cancelled" not in wanted
    assert engine.outstanding == 0
    assert not engine._runs
    assert not engine._requests
    assert not engine.executor._lengths  # type: ignore[attr-defined]
    assert not engine.executor._model._output_tokens  # type: ignore[attr-defined]
    assert not engine.scheduler.busy
    assert engine.scheduler.used_blocks == 0


class Broken(PacedExecutor):
    """A model that fails in its third iteration."""

    def finish(self, plan: Plan) -> Sequence[Emitted]:
        found = super().finish(plan)
        if plan.decodes.steps == 2:
            raise ValueError("the device fell off the bus")
        return found


def test_a_failing_model_is_told_to_everybody(caplog: pytest.LogCaptureFixture) -> None:
    stands_behind = backing()
    object.__setattr__(stands_behind, "executor", Broken(FlatCost(1), cycle([5]), WallClock()))
    with running(stands_behind) as server:
        assert server.ask("GET", "/health")[0] == 200
        status, answer = server.post("/v1/completions", prompt="hi")
        assert (status, answer["error"]["type"]) == (500, "server_error")
        assert "ValueError: the device fell off the bus" in answer["error"]["message"]
        status, answer = server.post("/v1/completions", prompt="hi")
        assert (status, answer["error"]["type"]) == (503, "unavailable_error")
        assert server.ask("GET", "/health")[0] == 503
        assert server.ask("GET", "/metrics")[0] == 200
    assert "the engine failed" in caplog.text


def test_after_the_end_nothing_is_taken() -> None:
    async def scenario() -> None:
        engine = engine_of(scheduler(), cycle([5]))
        engine.start(asyncio.get_running_loop())
        waiting = engine.submit(Order(Prompt(5), 4000, ignore_eos=True))
        engine.close()
        assert (await collect(waiting))[1] == "cancelled"
        with pytest.raises(EngineStopped):
            engine.submit(Order(Prompt(5), 5))

    asyncio.run(scenario())


def test_answers_that_do_not_stream_come_whole_when_their_batch_ends() -> None:
    """Whichever rows share a batch: every answer is one piece, at its batch's end."""

    async def scenario() -> None:
        policy = Static(KVCache(100, 16), max_num_seqs=2, max_model_len=1000)
        engine = engine_of(policy, iter([1, 30, 9]))
        engine.start(asyncio.get_running_loop())
        tickets = [engine.submit(Order(Prompt(10), 50)) for _ in range(3)]
        pieces = [await ticket.read() for ticket in tickets]
        assert [len(piece.tokens) for piece in pieces] == [1, 30, 9]
        assert [piece.ended for piece in pieces] == ["stop"] * 3
        engine.close()

    asyncio.run(scenario())


def test_a_policy_with_a_window_is_woken_and_its_timeouts_are_answered() -> None:
    async def scenario() -> None:
        policy = Dynamic(
            KVCache(100, 16),
            max_num_seqs=4,
            max_model_len=1000,
            max_queue_delay_ns=20_000_000,
            queue_policy=QueuePolicy(timeout_ns=1),
            streaming=True,
        )
        engine = engine_of(policy, cycle([3]))
        engine.start(asyncio.get_running_loop())
        tokens, ended = await asyncio.wait_for(collect(engine.submit(Order(Prompt(10), 50))), 60)
        assert (tokens, ended) == ([], "expired")
        assert engine.outstanding == 0
        engine.close()

    asyncio.run(scenario())


def test_the_pace_holds_although_every_sleep_is_late() -> None:
    """Iterations follow each other on the model's clock; only after a rest does it start anew."""
    clock = Late(late_ns=300)
    executor = PacedExecutor(FlatCost(1000), cycle([5]), clock)
    engine = scheduler()

    def answer_one(number: int) -> None:
        request = Request(number, 0, 5, 5)
        engine.add(request)
        executor.expect(request, Order(Prompt(5), 5))
        while (plan := engine.plan()) is not None:
            executor.begin(plan)
            emitted = executor.finish(plan)
            engine.commit(plan, [e.request for e in emitted if e.ended])
        executor.rest()

    answer_one(0)
    assert clock.ends == [1000, 2000, 3000, 4000, 5000]
    clock.time_ns = 50_000
    answer_one(1)
    assert clock.ends[5:] == [51_000, 52_000, 53_000, 54_000, 55_000]


def test_hidden_lengths_follow_the_workload_over_and_over() -> None:
    arrivals = [Arrival(0, 1, n, 9) for n in (3, 1, 2)]
    lengths = answer_lengths(lambda: iter(arrivals))
    assert [next(lengths) for _ in range(7)] == [3, 1, 2, 3, 1, 2, 3]


def requests_in_memory() -> int:
    gc.collect()
    return sum(type(found) is Request for found in gc.get_objects())  # isinstance would wake lazy modules


def test_nothing_is_kept_of_requests_that_are_gone() -> None:
    """3,000 short requests, a third of them cancelled at random moments; a last one passes the time."""
    chance = random.Random(5)
    engine = engine_of(scheduler(blocks=300, seats=16), cycle([3, 9, 1, 30]), capacity=64)

    async def client(number: int, gate: asyncio.Semaphore) -> None:
        async with gate:
            ticket = engine.submit(Order(Prompt(20 + number % 50), 40))
            if number % 3 == 0:
                await asyncio.sleep(chance.random() / 1000)
                engine.cancel(ticket)
            await collect(ticket)

    async def everybody() -> None:
        engine.start(asyncio.get_running_loop())
        gate = asyncio.Semaphore(60)
        await asyncio.wait_for(asyncio.gather(*(client(i, gate) for i in range(3000))), 120)
        await collect(engine.submit(Order(Prompt(5), 100, ignore_eos=True)))
        engine.close()

    before = requests_in_memory()
    asyncio.run(everybody())
    assert engine.scheduler.used_blocks == engine.outstanding == 0
    assert requests_in_memory() == before
