"""Orca's selection and the buddy system beneath the vLLM paper's variants: policy notes 1.6 and 1.7."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.buddy import BuddyAllocator
from simulator.engine.orca import Orca
from simulator.engine.request import Request
from simulator.errors import RequestTooLarge
from tests.simulator.engine.stories import Bench


def orca(slots: int = 64, size: int = 1, **knobs: object) -> Bench:
    limits: dict[str, object] = {"max_num_seqs": 8, "max_model_len": 32, "reservation": "oracle"}
    return Bench(Orca(BuddyAllocator(slots // size, size), **{**limits, **knobs}))


def test_whole_prompts_run_beside_decodes() -> None:
    story = orca()
    story.add("a", 9, 3)
    assert story.step() == "a:0+9!"
    story.add("b", 20, 2)
    assert story.steps(3) == ["b:0+20! a", "a b", "idle"]


def test_selection_stops_at_the_first_request_without_room() -> None:
    """16 slots: a takes 8, large needs 16; small would fit, but never overtakes."""
    story = orca(slots=16)
    story.add("a", 4, 2)
    story.add("large", 8, 2)
    story.add("small", 2, 1)
    assert story.steps(4) == ["a:0+4!", "a", "large:0+8!", "large"]
    assert story.step() == "small:0+2!"


def test_max_batch_size_bounds_the_selection() -> None:
    story = orca(max_num_seqs=2)
    for name in "abc":
        story.add(name, 2, 2)
    assert story.steps(3) == ["a:0+2! b:0+2!", "a b", "c:0+2!"]


@pytest.mark.parametrize(
    ("reservation", "prompt", "limit", "blocks"),
    [
        ("max", 1, 1, 2048),
        ("oracle", 100, 25, 128),  # 125 slots, rounded up by the buddy system
        ("pow2", 100, 25, 256),  # 100 + 32: the paper's example rounds 25 to 32
        ("pow2", 96, 32, 128),
    ],
)
def test_reservations_of_the_vllm_paper(reservation: str, prompt: int, limit: int, blocks: int) -> None:
    story = orca(slots=4096, max_model_len=2048, reservation=reservation)
    request = story.add("a", prompt, limit)
    story.scheduler.plan()
    assert len(request.blocks) == blocks


def test_exactly_seven_requests_of_the_maximum_length_fit_the_papers_pool() -> None:
    """15.7K slots of OPT-13B on an A100-40 (vLLM paper, table 1) hold floor(15.7K / 2048) = 7."""
    for size in (1, 16):
        story = orca(
            slots=15_700 // size * size, size=size, max_num_seqs=64, max_model_len=2048, reservation="max"
        )
        for i in range(9):
            story.add(f"r{i}", 10, 10)
        plan = story.scheduler.plan()
        assert plan is not None
        assert len(plan.prefills) == 7


def test_a_reservation_larger_than_the_largest_chunk_is_refused() -> None:
    with pytest.raises(RequestTooLarge, match="reserves 33 contiguous KV slots, the largest chunk has 32"):
        orca(slots=63, max_model_len=64).add("a", 32, 1)
    with pytest.raises(RequestTooLarge, match="exceed max_model_len 32"):
        orca().add("a", 32, 1)


def test_slots_come_back_as_one_chunk() -> None:
    pool = BuddyAllocator(8, 1)
    holders = [Request(i, 0, 1, 1) for i in range(8)]
    for holder in holders:
        blocks = pool.take(1)
        assert blocks is not None
        holder.blocks = blocks
    for holder in holders[::2] + holders[1::2]:
        pool.release(holder)
    assert pool.take(8) == list(range(8))


@settings(max_examples=300, deadline=None)
@given(
    pool_blocks=st.integers(1, 200),
    wishes=st.lists(st.one_of(st.integers(1, 70), st.none()), max_size=60),
    data=st.data(),
)
def test_buddy_chunks_are_aligned_disjoint_and_complete(
    pool_blocks: int, wishes: list[int | None], data: st.DataObject
) -> None:
    pool = BuddyAllocator(pool_blocks, 1)
    held: list[Request] = []
    for wish in wishes:
        if wish is None:
            if held:
                pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        elif (blocks := pool.take(wish)) is not None:
            size = 1 << (wish - 1).bit_length()
            assert blocks == list(range(blocks[0], blocks[0] + size))
            assert blocks[0] % size == 0
            held.append(Request(0, 0, 1, 1, blocks=blocks))
        pool.check(held)
    for request in held:
        pool.release(request)
    assert pool.take(pool.largest_chunk) is not None
