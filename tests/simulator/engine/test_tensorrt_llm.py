"""TensorRT-LLM's two schedulers as stories. Source: policy notes 1.13, and the traps of section 6."""

from __future__ import annotations

import pytest

from simulator.engine.kv_cache import KVCache
from simulator.engine.tensorrt_llm import TensorRtLlm
from simulator.errors import RequestTooLarge
from tests.simulator.engine.stories import Bench


def bench(blocks: int = 100, size: int = 4, **knobs: object) -> Bench:
    limits: dict[str, object] = {"max_num_seqs": 8, "max_num_batched_tokens": 16, "max_model_len": 1000}
    return Bench(TensorRtLlm(KVCache(blocks, size), **{**limits, **knobs}))


def test_the_toy_trace_of_the_documentation() -> None:
    """max_batch_size 4, max_num_tokens 12 (its page on tuning max batch size and max num tokens)."""
    story = bench(max_num_seqs=4, max_num_batched_tokens=12)
    for name, prompt in (("r1", 5), ("r2", 5), ("r3", 5), ("r4", 5), ("r5", 3)):
        story.add(name, prompt, 2 if name == "r1" else 4)
    assert story.step() == "r1:0+5! r2:0+5!"  # 10 tokens; r3 would make 15
    assert story.step() == "r3:0+5! r4:0+5! r1 r2"  # 12 tokens, four requests
    assert story.completed == ["r1"]
    assert story.step() == "r5:0+3! r2 r3 r4"  # its place is r1's; tokens were left before


def test_a_free_token_budget_does_not_help_where_the_batch_is_full() -> None:
    story = bench(max_num_seqs=4, max_num_batched_tokens=12)
    for name, prompt in (("r1", 5), ("r2", 5), ("r3", 3), ("r4", 3), ("r5", 3)):
        story.add(name, prompt, 4)
    assert story.steps(3) == ["r1:0+5! r2:0+5!", "r3:0+3! r4:0+3! r1 r2", "r1 r2 r3 r4"]


def test_without_chunking_a_prompt_that_exceeds_the_tokens_left_stops_all_behind_it() -> None:
    story = bench()
    story.add("a", 10, 3)
    story.add("long", 12, 3)
    story.add("short", 2, 3)
    assert story.steps(2) == ["a:0+10!", "long:0+12! short:0+2! a"]


def test_no_evict_reserves_the_output_limit_not_the_true_output() -> None:
    """Six blocks of four: a may grow to five of them, so b's two wait, although four are free."""
    story = bench(blocks=6)
    story.add("a", 8, 3, limit=12)
    story.add("b", 4, 2, limit=4)
    assert story.steps(4) == ["a:0+8!", "a", "a", "b:0+4!"]


def test_no_evict_never_lets_a_smaller_request_pass_the_first_that_does_not_fit() -> None:
    story = bench(blocks=6)
    story.add("a", 8, 3, limit=8)
    story.add("large", 12, 1, limit=4)
    story.add("small", 2, 1, limit=2)
    assert story.steps(4) == ["a:0+8!", "a", "a", "large:0+12! small:0+2!"]


def test_max_utilization_starts_what_fits_now_and_pauses_the_last_started() -> None:
    """Four blocks: both prompts fit; a's fifth token on the way needs b's block."""
    story = bench(blocks=4, capacity_policy="max-utilization")
    story.add("a", 8, 6)
    b = story.add("b", 8, 6)
    assert story.steps(2) == ["a:0+8! b:0+8!", "a | -b"]
    assert (b.preemptions, b.generated_tokens, b.blocks) == (1, 1, [])
    assert story.steps(4) == ["a", "a", "a", "a"]
    assert story.step() == "b:0+9!"  # prompt and what it had generated; its next token is the second
    assert story.steps(4) == ["b"] * 4
    assert story.completed == ["a", "b"]


def test_two_requests_that_fit_alone_but_not_together_both_finish() -> None:
    """The livelock trap: each grows to the whole cache, so they make way for each other, never forever."""
    for chunking in ("off", "fcfs", "equal-progress"):
        knobs = {"capacity_policy": "max-utilization", "context_chunking": chunking}
        story = bench(blocks=5, max_num_batched_tokens=32, **knobs)
        requests = [story.add("a", 4, 16), story.add("b", 4, 16)]
        log = story.steps(40)
        assert story.completed == ["a", "b"]
        assert [request.preemptions for request in requests] == [0, 1]
        assert log[-1] == "idle"


def test_a_paused_request_keeps_its_place_in_the_active_list() -> None:
    """c would fit beside a at once, but b stands before it."""
    story = bench(blocks=4, capacity_policy="max-utilization", max_num_seqs=2)
    story.add("a", 8, 6)
    story.add("b", 8, 2)
    story.add("c", 1, 1)
    assert story.steps(3) == ["a:0+8! b:0+8!", "a | -b", "a"]
    assert [story.names[r] for r in story.scheduler.waiting] == ["b", "c"]


def test_several_make_way_in_one_iteration_the_last_started_first() -> None:
    """a gets c's only block; b, which needs one as well, is then the last started itself."""
    story = bench(blocks=5, capacity_policy="max-utilization", max_num_batched_tokens=20)
    for name, prompt in (("a", 8), ("b", 8), ("c", 4)):
        story.add(name, prompt, 5)
    assert story.steps(2) == ["a:0+8! b:0+8! c:0+4!", "a | -c -b"]
    assert [story.names[r] for r in story.scheduler.waiting] == ["b", "c"]


def test_a_half_computed_prompt_makes_way_too_and_starts_again() -> None:
    """A prompt has all its blocks from the first chunk on: a's third block must come from b."""
    knobs = {"context_chunking": "fcfs", "max_num_batched_tokens": 12}
    story = bench(blocks=7, capacity_policy="max-utilization", **knobs)
    story.add("a", 8, 3)
    b = story.add("b", 20, 1)
    assert story.step() == "a:0+8! b:0+4"
    assert len(b.blocks) == 5
    assert story.steps(4) == ["a | -b", "a", "b:0+12", "b:12+8!"]


def test_a_static_batch_starts_when_the_last_one_is_done() -> None:
    story = bench(capacity_policy="static-batch", max_num_seqs=2)
    story.add("a", 3, 3)
    story.add("b", 3, 2)
    story.add("c", 3, 1)
    assert story.steps(4) == ["a:0+3! b:0+3!", "a b", "a", "c:0+3!"]


def test_a_static_batch_leaves_half_computed_prompts_until_nobody_generates() -> None:
    story = bench(capacity_policy="static-batch", context_chunking="fcfs", max_num_batched_tokens=12)
    story.add("a", 7, 3)
    story.add("b", 9, 1)
    assert story.steps(4) == ["a:0+7! b:0+4", "a", "a", "b:4+5!"]


def test_first_come_first_served_cuts_to_whole_blocks() -> None:
    """Of 16 tokens a leaves 9: two blocks of b; a block is also the least that a cut prompt gets."""
    story = bench(context_chunking="fcfs")
    story.add("a", 7, 2)
    story.add("b", 11, 2)
    assert story.steps(3) == ["a:0+7! b:0+8", "b:8+3! a", "b"]
    story = bench(context_chunking="fcfs", max_num_batched_tokens=10)
    story.add("a", 7, 1)
    story.add("b", 11, 1)
    assert story.steps(3) == ["a:0+7!", "b:0+8", "b:8+3!"]


def test_the_tokens_that_are_too_few_for_a_block_go_to_a_prompt_that_is_shorter() -> None:
    story = bench(context_chunking="fcfs", max_num_batched_tokens=10)
    story.add("a", 7, 2)
    story.add("b", 11, 1)
    story.add("c", 3, 2)
    assert story.steps(3) == ["a:0+7! c:0+3!", "b:0+8 a c", "b:8+3!"]


def test_equal_progress_hands_out_blocks_in_turn() -> None:
    """18 tokens: 4 + 4 + 4, then 4 + 2 (b's last two), and none of the others' blocks fits any more."""
    story = bench(context_chunking="equal-progress", max_num_batched_tokens=18)
    story.add("a", 20, 2)
    story.add("b", 6, 2)
    story.add("c", 20, 2)
    assert story.step() == "a:0+8 b:0+6! c:0+4"
    assert story.step() == "a:8+8 c:4+8 b"
    assert story.step() == "a:16+4! c:12+8!"


def test_prompts_that_all_fit_are_computed_whole_under_either_rule() -> None:
    for chunking in ("fcfs", "equal-progress"):
        story = bench(context_chunking=chunking)
        story.add("a", 7, 2)
        story.add("b", 9, 2)
        assert story.step() == "a:0+7! b:0+9!"


def test_generating_requests_come_first_in_the_token_budget() -> None:
    story = bench(context_chunking="fcfs", max_num_batched_tokens=9)
    story.add("a", 3, 9)
    story.add("b", 3, 9)
    story.step()
    story.add("c", 8, 2)
    assert story.steps(2) == ["c:0+4 a b", "c:4+4! a b"]


@pytest.mark.parametrize(
    ("prompt", "output", "knobs", "message"),
    [
        (990, 11, {}, "1001 tokens (prompt and output limit) exceed max_model_len 1000"),
        (390, 11, {}, "needs 101 KV blocks, the cache has 100"),
        (17, 1, {}, "17 tokens to (re)compute exceed max_num_batched_tokens 16, unchunked"),
        (
            10,
            8,
            {"capacity_policy": "max-utilization"},
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


def test_with_chunking_only_the_cache_and_the_model_bound_a_prompt() -> None:
    story = bench(context_chunking="fcfs")
    story.add("x", 390, 10)
    while story.step() != "idle":
        pass
    assert story.completed == ["x"]
