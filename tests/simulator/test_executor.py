"""The simulated model finds every stop, also of requests that were left out when it would have been due."""

from __future__ import annotations

import pytest

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.plan import BlockCopy, Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.executor import SimulatedExecutor
from tests.laws.worlds import ToyCost


@pytest.mark.parametrize("away", [1, 2, 5])
@pytest.mark.parametrize("kind", ["stalled", "swapped"])
def test_who_is_left_out_at_its_last_token_stops_when_it_is_back(kind: str, away: int) -> None:
    group, executor = DecodeGroup(4), SimulatedExecutor(ToyCost())
    leaver, stayer = Request(0, 0, 4, 9), Request(1, 0, 4, 99)
    executor.expect(leaver, 2)
    executor.expect(stayer, 99)
    chunks = tuple(PrefillChunk(request, 0, 4, completes=True) for request in (leaver, stayer))
    assert executor.finish(Plan(chunks, group)) == []
    group.steps += 1
    for request in (leaver, stayer):
        request.generated_tokens = 1
        group.join(request)
    group.leave(leaver)
    copies = (BlockCopy(leaver, 1),)
    for iteration in range(away):
        plan = Plan((), group, stalled=(leaver,))
        if kind == "swapped":
            plan = Plan((), group, swapped_out=() if iteration else copies)
        assert executor.finish(plan) == []
        group.steps += 1
    group.join(leaver)
    assert executor.finish(Plan((), group, swapped_in=copies if kind == "swapped" else ())) == [leaver]
