"""What every executor owes a scheduler: one contract, run on the simulated one and on a real model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.engine.plan import Plan
from simulator.engine.request import Request
from simulator.executor import SimulatedExecutor
from simulator.workloads.arrival import Arrival
from tests.laws.worlds import CountingModel, Pace, ToyCost, World, offer, worlds


class Subject(Protocol):
    """An executor, and how many requests it still remembers."""

    def expect(self, request: Request, arrival: Arrival) -> None: ...
    def forget(self, request: Request) -> None: ...
    def begin(self, plan: Plan) -> None: ...
    def finish(self, plan: Plan) -> Sequence[Request]: ...
    @property
    def requests(self) -> int: ...


class Simulated:
    """The simulator's executor in the live protocol: it works while time is said to pass."""

    def __init__(self) -> None:
        self._inner = SimulatedExecutor(ToyCost())
        self.finish = self._inner.finish
        self.forget = self._inner.forget

    def expect(self, request: Request, arrival: Arrival) -> None:
        self._inner.expect(request, arrival.output_tokens)

    def begin(self, plan: Plan) -> None:
        """The cost of an iteration is another matter; see the tests of the cost model."""

    @property
    def requests(self) -> int:
        return len(self._inner._output_tokens)


def live(world: World) -> Subject:
    """A real model over a real paged cache of the world's size."""
    pytest.importorskip("torch", reason="live execution needs torch: pip install 'servetwin[live]'")
    pytest.importorskip("transformers", reason="live execution needs transformers")
    from backend.attention import choose
    from backend.executor import TorchExecutor
    from backend.models import load_live_model
    from backend.paged_kv import PagedKV

    if "model" not in MODEL:
        MODEL["model"] = load_live_model("servetwin/llama-tiny", "float32")
    model = MODEL["model"]
    kv = PagedKV(model.kv_shape, world.blocks, world.block_size, model.dtype, model.device)
    return TorchExecutor(model, kv, choose(model.device, model.dtype, model.kv_shape.head_dim)[0])


MODEL: dict[str, object] = {}
EXECUTORS: dict[str, Callable[[World], Subject]] = {"simulated": lambda _: Simulated(), "live": live}


def log(world: World, subject: Subject) -> list[object]:
    """Every plan's shape and who stopped, for all requests offered at once."""
    engine, lines = world.engine(), []
    pace = Pace(engine)
    taken = offer(engine, world.arrivals, subject)
    while (plan := pace.plan()) is not None:
        for request, _ in pace.expired:
            subject.forget(request)
        pace.expired.clear()
        subject.begin(plan)
        shape = plan.shape()
        stopped = subject.finish(plan)
        lines.append((shape, plan.paused, sorted(r.id for r in stopped)))
        engine.commit(plan, stopped)
    for request, _ in pace.expired:
        subject.forget(request)
    lines.append([(r.id, r.generated_tokens, r.preemptions) for r in taken])
    return lines


@pytest.mark.parametrize("executor", EXECUTORS)
class TestContract:
    """Deadlines and health checks are off: a real model runs beneath."""

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(world=worlds())
    def test_it_stops_each_request_where_counting_tokens_would(self, executor: str, world: World) -> None:
        """Same plans, same stops, same tokens as the plainest model; and nothing is remembered."""
        subject = EXECUTORS[executor](world)
        assert log(world, subject) == log(world, Counting())
        assert subject.requests == 0

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(world=worlds(), data=st.data())
    def test_cancelled_requests_are_forgotten_and_others_unharmed(
        self, executor: str, world: World, data: st.DataObject
    ) -> None:
        subject, engine = EXECUTORS[executor](world), world.engine()
        pace, rounds = Pace(engine), 0
        arrivals = world.arrivals
        alive = dict.fromkeys(offer(engine, arrivals, subject))
        answered: list[Request] = []
        while (plan := pace.plan()) is not None:
            for request, _ in pace.expired:
                subject.forget(request)
                del alive[request]
            pace.expired.clear()
            subject.begin(plan)
            for request in engine.commit(plan, subject.finish(plan)):
                answered.append(request)
                alive.pop(request, None)
            rounds += 1
            if alive and rounds % 5 == 0 and data.draw(st.booleans()):
                victim = data.draw(st.sampled_from(list(alive)))
                del alive[victim]
                engine.cancel(victim)
                subject.forget(victim)
        for request, _ in pace.expired:
            subject.forget(request)
        for request in answered:
            assert request.generated_tokens == min(arrivals[request.id].output_tokens, request.output_limit)
        assert engine.used_blocks == 0
        assert subject.requests == 0


class Counting(CountingModel):
    """The laws' plain model behind the contract's protocol."""

    @property
    def requests(self) -> int:
        return len(self.left)
