"""The core promise: a live server with this model and this clock would have written the same log."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings

from backend.driver import Driver
from simulator.engine.plan import Plan
from simulator.engine.request import Request
from simulator.recorder import IterationLog, RequestLog, tables
from tests.laws.test_leap import gap_counts, stepwise
from tests.laws.worlds import BLOCK_COPY_NS, CountingModel, ToyCost, World, worlds


class FakeClock:
    """Time that passes only when somebody works or sleeps."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until(self, time_ns: int) -> None:
        assert time_ns > self.time_ns
        self.time_ns = time_ns


class FakeModel(CountingModel):
    """Takes as long as the cost model says and finds the stops by counting tokens."""

    def __init__(self, clock: FakeClock, cost: ToyCost) -> None:
        super().__init__()
        self.clock = clock
        self.cost = cost

    def finish(self, plan: Plan) -> Sequence[Request]:
        copying_ns = int(BLOCK_COPY_NS * plan.copied_blocks)
        self.clock.time_ns += copying_ns + self.cost.iteration_ns(plan.shape())
        return super().finish(plan)


@settings(max_examples=300, deadline=None)
@given(world=worlds())
def test_live_and_simulated_logs_are_identical(world: World) -> None:
    simulated = world.run()
    clock = FakeClock()
    engine = world.engine()
    requests, iterations = RequestLog(), IterationLog(0, streams=engine.streams)
    Driver(engine, FakeModel(clock, world.cost), clock, requests, iterations).run(iter(world.arrivals))
    live = tables(requests, [iterations], world.blocks)
    for name, column in simulated.requests.items():
        assert live.requests[name].tolist() == column.tolist(), name
    assert live.reasons == simulated.reasons
    assert stepwise(live) == stepwise(simulated)
    assert gap_counts(live) == gap_counts(simulated)
