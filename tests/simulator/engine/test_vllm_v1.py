"""vLLM V1's rules as stories. Source: vllm/v1/core/sched/scheduler.py, as set out in policy notes 1.10."""

from __future__ import annotations

import pytest

from simulator.engine.kv_cache import KVCache
from simulator.engine.request import Content
from simulator.engine.vllm_v1 import VllmV1
from simulator.errors import RequestTooLarge
from tests.simulator.engine.stories import Bench


def bench(blocks: int = 100, size: int = 4, *, caching: bool = False, **knobs: object) -> Bench:
    limits: dict[str, object] = {"max_num_seqs": 8, "max_num_batched_tokens": 16, "max_model_len": 1000}
    return Bench(VllmV1(KVCache(blocks, size, prefix_caching=caching), **{**limits, **knobs}))


def test_prefills_and_decodes_share_one_token_budget() -> None:
    story = bench()
    story.add("a", 8, 5)
    story.add("b", 20, 5)
    assert story.steps(3) == ["a:0+8! b:0+8", "b:8+12! a", "a b"]


def test_decodes_come_before_new_prompts() -> None:
    story = bench(max_num_batched_tokens=8)
    story.add("a", 8, 9)
    story.step()
    story.add("b", 30, 2)
    assert story.steps(2) == ["b:0+7 a", "b:7+7 a"]


def test_a_prompt_that_exceeds_the_budget_waits_where_chunking_is_off() -> None:
    story = bench(chunked_prefill=False)
    story.add("a", 10, 3)
    story.add("b", 12, 3)
    assert story.steps(4) == ["a:0+10!", "b:0+12! a", "a b", "b"]


def test_a_threshold_lets_short_prompts_pass_beside_a_long_one() -> None:
    story = bench(long_prefill_token_threshold=4)
    story.add("long", 12, 2)
    story.add("short", 3, 2)
    assert story.steps(3) == ["long:0+4 short:0+3!", "long:4+4 short", "long:8+4!"]


def test_a_decode_behind_greedy_chunks_is_left_out_and_comes_back() -> None:
    """Running requests are served in order of admission until the budget is spent."""
    story = bench(max_num_batched_tokens=8, max_num_seqs=4, long_prefill_token_threshold=4)
    story.add("a", 12, 2)
    story.add("b", 3, 5)
    assert story.step() == "a:0+4 b:0+3!"
    story.add("c", 40, 2)
    assert story.steps(2) == ["a:4+4 c:0+3 b", "a:8+4! c:3+3 b"]
    story = bench(max_num_batched_tokens=8, max_num_seqs=4, long_prefill_token_threshold=6)
    for name in ("a", "b"):
        story.add(name, 40, 2)
    story.step()
    story.add("c", 1, 9)
    assert story.steps(3) == ["a:6+6 b:2+2", "a:12+6 b:4+2", "a:18+6 b:6+2"]


def test_seats_bound_the_running_requests() -> None:
    story = bench(max_num_seqs=2)
    for name in "abc":
        story.add(name, 2, 2)
    assert story.steps(3) == ["a:0+2! b:0+2!", "a b", "c:0+2!"]


def test_the_newest_request_makes_way_and_starts_again() -> None:
    """Three blocks of four tokens: a and b fit, until a needs its second block."""
    story = bench(blocks=3)
    story.add("a", 4, 5)
    b = story.add("b", 4, 3)
    assert story.steps(2) == ["a:0+4! b:0+4!", "a | -b"]
    assert (b.preemptions, b.generated_tokens, b.blocks) == (1, 1, [])
    assert story.steps(5) == ["a", "a", "a", "b:0+5!", "b"]
    assert story.completed == ["a", "b"]


def test_nobody_is_admitted_in_an_iteration_that_preempted() -> None:
    """b's first chunk would fit again at once, in the block that its own eviction has freed."""
    story = bench(blocks=3, max_num_seqs=2, max_num_batched_tokens=5, full_isl_gate=False)
    story.add("a", 4, 6)
    story.add("b", 8, 3)
    assert story.steps(3) == ["a:0+4! b:0+1", "a | -b", "b:0+4 a"]


def test_a_preempted_request_goes_to_the_front_of_the_queue() -> None:
    story = bench(blocks=4, max_num_seqs=2)
    story.add("a", 8, 9)
    story.add("b", 7, 9)
    story.add("c", 1, 1)
    assert story.steps(2) == ["a:0+8! b:0+7!", "a | -b"]
    assert [story.names[r] for r in story.scheduler.waiting] == ["b", "c"]


def test_an_unadmitted_head_is_never_overtaken() -> None:
    story = bench(blocks=4)
    story.add("a", 12, 3)
    story.add("large", 8, 2)
    story.add("small", 1, 1)
    assert story.steps(3) == ["a:0+12!", "a", "a"]
    assert story.step() == "large:0+8! small:0+1!"


def test_full_isl_gate_waits_for_the_whole_prompt() -> None:
    """Late-2026 releases; before, a prompt was admitted as soon as its first chunk fitted."""
    for gate, expected in ((True, ["a:0+8!", "a"]), (False, ["a:0+8! b:0+8", "a | -b"])):
        story = bench(blocks=5, full_isl_gate=gate)
        story.add("a", 8, 3)
        story.add("b", 16, 2)
        assert story.steps(2) == expected


def test_the_watermark_counts_only_while_something_runs() -> None:
    story = bench(blocks=10, watermark=0.5)
    story.add("a", 16, 3)
    story.add("b", 8, 3)
    assert story.steps(3) == ["a:0+16!", "a", "a"]
    assert story.step() == "b:0+8!"


def test_under_priorities_the_least_urgent_latest_arrival_makes_way() -> None:
    story = bench(blocks=4, priorities=True)
    story.add("late", 4, 9, priority=5)
    story.add("urgent", 7, 9, priority=0)
    assert story.step() == "urgent:0+7! late:0+4!"
    assert story.step() == "urgent late"
    assert story.step() == "urgent | -late"


def test_a_victim_that_was_already_served_gives_its_tokens_back() -> None:
    """The first in line takes the last free block, then a later one needs a block and evicts it."""
    story = bench(blocks=4, priorities=True, max_num_seqs=2)
    story.add("meek", 7, 9, priority=9)
    story.step()
    story.add("urgent", 7, 9, priority=0)
    assert story.step() == "urgent:0+7! meek"
    assert story.step() == "urgent | -meek"


def test_a_shared_prefix_is_computed_once_even_within_one_iteration() -> None:
    story = bench(caching=True)
    said = Content((1, 2), 4)
    story.add("a", 8, 2, content=said)
    b = story.add("b", 8, 2, content=said)
    assert story.step() == "a:0+8! b:4+4!"
    assert b.cached_tokens == 4


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    story = bench(blocks=5, caching=True)
    story.add("a", 8, 2)
    b = story.add("b", 11, 9)
    assert story.steps(2) == ["a:0+8! b:0+8", "a | -b"]
    assert story.step() == "b:8+3!"
    assert (b.cached_tokens, b.preemptions) == (0, 1)


@pytest.mark.parametrize(
    ("prompt", "output", "knobs", "message"),
    [
        (990, 11, {}, "1001 tokens (prompt and output limit) exceed max_model_len 1000"),
        (390, 12, {}, "needs 101 KV blocks, the cache has 100"),
        (
            17,
            1,
            {"chunked_prefill": False},
            "17 tokens to (re)compute exceed max_num_batched_tokens 16, unchunked",
        ),
    ],
)
def test_a_request_that_can_never_run_is_refused_with_its_reason(
    prompt: int, output: int, knobs: dict[str, object], message: str
) -> None:
    with pytest.raises(RequestTooLarge) as refusal:
        bench(**knobs).add("x", prompt, output)
    assert str(refusal.value) == message


def test_a_request_that_just_fits_runs_to_its_end() -> None:
    """The last token's KV is never stored: 400 tokens fit 100 blocks of 4, and so do 400 and one more."""
    story = bench()
    story.add("x", 396, 5)
    while story.step() != "idle":
        pass
    assert story.completed == ["x"]


def test_the_horizon_counts_laps_and_buckets_exactly() -> None:
    """Seven free blocks; a needs one every 4 steps from step 1 on, b from step 3 on."""
    story = bench(blocks=10)
    story.add("a", 3, 100, limit=30)
    story.add("b", 5, 100, limit=30)
    story.step()
    story.step()
    plan = story.scheduler.plan()
    assert plan is not None
    free, steps = story.scheduler.kv.free_blocks, 0
    while True:
        story.scheduler.commit(plan, ())
        following = story.scheduler.plan()
        if following is None or following.preempted:
            break
        steps += 1
    assert plan.horizon == steps + 1
    assert free > 0
