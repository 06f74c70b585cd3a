"""Routers as rules: what each promises of the replica that it chooses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.request import Content, Request
from simulator.routers import (
    DRAWS,
    OVERLOAD_REQUESTS,
    ROUTERS,
    STALE_PER_REPLICA,
    LeastLoaded,
    PowerOfTwo,
    PrefixAffinity,
    RoundRobin,
    one_request,
    prompt_tokens,
)


def request(tokens: int = 10, ids: tuple[int, ...] | None = None) -> Request:
    return Request(0, 0, tokens, 1, None if ids is None else Content(ids, 16))


def opened(router, replicas: int):
    for replica in range(replicas):
        router.open(replica)
    return router


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99), st.integers(1, 50)), max_size=120))
def test_the_least_loaded_is_what_a_look_at_every_replica_finds(
    events: list[tuple[int, int, int]],
) -> None:
    router, loads, is_open = opened(LeastLoaded(prompt_tokens), 3), [0, 0, 0], [True] * 3
    sent: list[tuple[Request, int]] = []
    for kind, which, tokens in events:
        replica = which % 3
        if kind == 0 and is_open[replica] and sum(is_open) > 1:
            router.close(replica)
            is_open[replica] = False
        elif kind == 1 and not is_open[replica]:
            router.open(replica)
            is_open[replica] = True
        elif kind == 2 and sent:
            done, replica = sent.pop(which % len(sent))
            router.left(done, replica)
            loads[replica] -= done.prompt_tokens
        else:
            expected = min((load, i) for i, load in enumerate(loads) if is_open[i])[1]
            asked = request(tokens)
            assert router.choose(asked) == expected
            loads[expected] += tokens
            sent.append((asked, expected))


def test_a_long_run_keeps_no_more_entries_than_a_few_per_replica() -> None:
    """Stale loads never surface while the least load stays below them, so they must be cleared away."""
    router = opened(LeastLoaded(one_request), 20)
    asked = request()
    for _ in range(20_000):
        replica = router.choose(asked)
        router.left(asked, replica)
    assert len(router._heap) <= STALE_PER_REPLICA * 20 + DRAWS + 1


def test_round_robin_takes_open_replicas_in_turn() -> None:
    router = opened(RoundRobin(), 3)
    assert [router.choose(request()) for _ in range(4)] == [0, 1, 2, 0]
    router.close(1)
    assert {router.choose(request()) for _ in range(4)} == {0, 2}


def test_of_two_replicas_the_power_of_two_choices_takes_the_less_loaded() -> None:
    router, loads = opened(PowerOfTwo(np.random.default_rng(1)), 2), [0, 0]
    for _ in range(2000):
        replica = router.choose(request())
        assert loads[replica] <= loads[1 - replica]
        loads[replica] += 1


def test_two_choices_keep_the_fullest_of_a_thousand_replicas_far_below_one_choice() -> None:
    """Mitzenmacher 2001: as many requests as replicas leave ln ln n / ln 2 + O(1) on the fullest."""
    random, two = np.random.default_rng(2), np.zeros(1000, int)
    router = opened(PowerOfTwo(random), 1000)
    for _ in range(1000):
        two[router.choose(request())] += 1
    seeds = map(np.random.default_rng, range(20))
    most = [np.bincount(one.integers(0, 1000, 1000)).max() for one in seeds]
    assert two.max() <= 3
    assert min(most) >= 4
    assert (two > 0).sum() > 650, "every replica can be drawn"


def test_a_conversation_stays_with_its_replica_and_new_ones_are_spread() -> None:
    router = opened(PrefixAffinity(), 3)
    first = router.choose(request(ids=(1, 2)))
    second = router.choose(request(ids=(7, 8)))
    assert first != second
    assert router.choose(request(ids=(1, 2, 3))) == first
    assert router.choose(request(ids=(7, 8, 9))) == second
    assert router.choose(request(ids=(1, 2, 3, 4, 5))) == first
    assert router.choose(request()) not in (first, second)


def test_a_short_common_beginning_does_not_bind() -> None:
    """One known id of four, such as a system prompt: less than half, so balance decides."""
    router = opened(PrefixAffinity(), 2)
    home = router.choose(request(ids=(1, 2, 3, 4)))
    assert router.choose(request(ids=(1, 20, 30, 40))) != home


def test_an_overloaded_home_is_left_and_the_new_home_is_remembered() -> None:
    router = opened(PrefixAffinity(), 2)
    asked = request(ids=(1, 2))
    home = router.choose(asked)
    sent = 1
    while router.choose(asked) == home:
        sent += 1
    assert sent == OVERLOAD_REQUESTS + 1
    assert router.choose(asked) == 1 - home


def test_a_home_that_is_closed_is_forgotten() -> None:
    router = opened(PrefixAffinity(), 2)
    home = router.choose(request(ids=(1, 2)))
    router.close(home)
    assert router.choose(request(ids=(1, 2, 3))) == 1 - home
    router.open(home)
    assert router.choose(request(ids=(1, 2, 3, 4))) == 1 - home


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_every_router_sends_only_to_open_replicas(name: str) -> None:
    router = opened(ROUTERS[name](np.random.default_rng(3)), 4)
    router.close(2)
    chosen = {router.choose(request(ids=(i,))) for i in range(200)}
    assert chosen == {0, 1, 3}
