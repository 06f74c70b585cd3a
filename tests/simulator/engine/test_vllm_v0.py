"""vLLM V0's rules as stories. Source: release 0.6.1, vllm/core/scheduler.py; policy notes 1.9."""

from __future__ import annotations

import pytest

from simulator.engine.kv_cache import KVCache
from simulator.engine.vllm_v0 import VllmV0
from simulator.errors import RequestTooLarge
from tests.simulator.engine.stories import Bench


def bench(blocks: int = 100, size: int = 4, **knobs: object) -> Bench:
    limits: dict[str, object] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 40,
        "max_model_len": 1000,
        "watermark": 0.0,
        "eager": False,
    }
    return Bench(VllmV0(KVCache(blocks, size), **{**limits, **knobs}))


class TestPromptsFirst:
    def test_a_burst_of_prompts_stalls_the_decodes(self) -> None:
        """Trap: 0.1 and V1 mix. Each prompt fills an iteration; a's next token waits for both."""
        story = bench()
        story.add("a", 9, 3)
        story.step()
        story.add("b", 30, 2)
        story.add("c", 30, 2)
        assert story.steps(5) == ["b:0+30!", "c:0+30!", "a b c", "a", "idle"]

    def test_prompts_are_admitted_in_order_within_the_token_limit(self) -> None:
        story = bench()
        story.add("a", 20, 2)
        story.add("b", 25, 2)
        story.add("c", 1, 2)
        assert story.steps(3) == ["a:0+20!", "b:0+25! c:0+1!", "a b c"]

    def test_up_to_0_2_a_batch_of_prompts_counted_as_rows_times_longest_row(self) -> None:
        """20 + 10 tokens fit 40; 2 rows of 20 do, 3 rows of 20 do not."""
        story = bench(padded_budget=True)
        for name, prompt in (("a", 20), ("b", 10), ("c", 5)):
            story.add(name, prompt, 2)
        assert story.steps(2) == ["a:0+20! b:0+10!", "c:0+5!"]

    def test_running_requests_take_seats_from_new_ones(self) -> None:
        story = bench(max_num_seqs=2)
        for name in "abc":
            story.add(name, 2, 2)
        assert story.steps(3) == ["a:0+2! b:0+2!", "a b", "c:0+2!"]

    def test_the_watermark_binds_admission_but_not_growth(self) -> None:
        """Trap: two of ten blocks stay free, too few for c; a and b grow into both of them."""
        story = bench(blocks=10, watermark=0.2)
        story.add("a", 16, 6)
        story.add("b", 13, 6)
        story.add("c", 1, 1)
        assert story.steps(5) == ["a:0+16! b:0+13!", "a b", "a b", "a b", "a b"]
        assert story.scheduler.kv.free_blocks == 0

    def test_the_newest_makes_way_and_is_computed_again_before_others(self) -> None:
        story = bench(blocks=4)
        story.add("a", 8, 4)
        b = story.add("b", 7, 3)
        story.add("c", 1, 1)
        assert story.steps(2) == ["a:0+8! b:0+7!", "a | -b"]
        assert (b.preemptions, b.generated_tokens, b.blocks) == (1, 1, [])
        assert story.steps(4) == ["a", "a", "b:0+8! c:0+1!", "b"]

    def test_the_first_block_manager_wants_a_block_for_rows_that_need_none(self) -> None:
        for eager, expected in ((True, "a | -b"), (False, "a b")):
            story = bench(blocks=4, eager=eager)
            story.add("a", 5, 3)
            story.add("b", 5, 3)
            assert story.steps(2)[1] == expected

    def test_two_requests_that_fit_alone_but_not_together_both_finish(self) -> None:
        for swap_blocks in (None, 0, 3, 100):
            story = bench(blocks=6, swap_blocks=swap_blocks)
            story.add("a", 8, 12)
            story.add("b", 8, 12)
            while story.step() != "idle":
                pass
            assert story.completed == ["a", "b"]


class TestSwapping:
    def test_who_was_swapped_out_comes_back_before_anybody_is_admitted(self) -> None:
        """c would fit all along; b has its tokens still and needs no prompt iteration."""
        story = bench(blocks=5, swap_blocks=10)
        story.add("a", 8, 6)
        b = story.add("b", 7, 4)
        assert story.steps(2) == ["a:0+8! b:0+7!", "a b"]
        story.add("c", 1, 2)
        assert story.step() == "a | >b"
        assert (b.preemptions, b.computed_tokens, b.generated_tokens, b.blocks) == (1, 8, 2, [])
        assert story.scheduler.swap.held == {b: 2}
        assert story.scheduler.waiting_requests == 2
        assert story.steps(5) == ["a", "a", "a", "b | <b", "c:0+1!"]
        assert story.steps(2) == ["b c", "idle"]
        assert story.scheduler.swap.free_blocks == 10

    def test_coming_back_takes_room_for_one_more_block_above_the_watermark(self) -> None:
        """Seven blocks are free when x is done: room for b's five and one more, not for the watermark."""
        for watermark, expected in ((0.0, "a b | <b"), (0.2, "a")):
            story = bench(blocks=10, watermark=watermark, swap_blocks=10)
            story.add("x", 8, 7)
            story.add("a", 4, 14)
            story.add("b", 13, 8)
            assert story.steps(7)[5:] == ["x a | >b", "x a"]
            assert story.step() == expected

    def test_without_room_on_the_host_the_victim_is_computed_again(self) -> None:
        """vLLM aborts the engine here."""
        story = bench(blocks=4, swap_blocks=1)
        story.add("a", 8, 4)
        story.add("b", 7, 3)
        assert story.steps(2) == ["a:0+8! b:0+7!", "a | -b"]

    def test_copied_blocks_are_counted_in_both_directions(self) -> None:
        story = bench(blocks=5, swap_blocks=10)
        story.add("a", 8, 6)
        story.add("b", 7, 4)
        copied = []
        while story.step() != "idle":
            assert story.plan is not None
            copied.append(story.plan.copied_blocks)
        assert sorted(copied) == [0] * (len(copied) - 2) + [2, 2]


class TestChunkedPrefill:
    def test_decodes_come_first_and_prompts_fill_the_rest(self) -> None:
        story = bench(chunked_prefill=True, max_num_batched_tokens=8)
        story.add("a", 6, 9)
        story.add("b", 20, 2)
        assert story.steps(4) == ["a:0+6! b:0+2", "b:2+7 a", "b:9+7 a", "b:16+4! a"]

    def test_a_prompt_holds_all_its_blocks_from_its_first_chunk_on(self) -> None:
        """Trap: V1 allocates per chunk."""
        story = bench(chunked_prefill=True, max_num_batched_tokens=8)
        b = story.add("b", 20, 2)
        story.step()
        assert len(b.blocks) == 5

    def test_a_smaller_request_may_overtake_who_was_just_evicted(self) -> None:
        """The evicted queue up again only after admission; c takes a block that b gave up."""
        story = bench(blocks=5, chunked_prefill=True)
        story.add("a", 8, 9)
        story.add("b", 11, 9)
        story.step()
        story.add("c", 1, 2)
        assert story.steps(2) == ["c:0+1! a | -b", "a c"]

    def test_an_evicted_prompt_keeps_what_it_computed_when_it_is_swapped(self) -> None:
        """a's third block is one of b's; b's half-done prompt goes to the host and continues from there."""
        story = bench(
            blocks=7, chunked_prefill=True, max_num_batched_tokens=4, max_num_seqs=4, swap_blocks=9
        )
        story.add("a", 4, 7)
        b = story.add("b", 19, 2)
        chunks = ["b:0+3 a", "b:3+3 a", "b:6+3 a", "b:9+3 a"]
        assert story.steps(6) == ["a:0+4!", *chunks, "a | >b"]
        assert (b.computed_tokens, b.blocks) == (12, [])
        assert story.steps(4) == ["a", "b:12+4 | <b", "b:16+3!", "b"]


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"max_model_len": 50}, "54 tokens (prompt and output limit) exceed max_model_len 50"),
        ({}, "53 tokens to (re)compute exceed max_num_batched_tokens 40, unchunked"),
        ({"chunked_prefill": True}, "needs 14 KV blocks, the cache has 11"),
        (
            {"chunked_prefill": True, "eager": True, "swap_blocks": 5},
            "needs 14 KV blocks beside 2 that must stay free, the cache has 11",
        ),
    ],
)
def test_what_could_never_run_to_its_limit_is_refused_with_the_reason(
    knobs: dict[str, object], reason: str
) -> None:
    budget = 40 if "max_model_len" not in knobs else 60
    story = bench(blocks=11, **{"max_num_batched_tokens": budget, **knobs})
    with pytest.raises(RequestTooLarge) as refusal:
        story.add("a", 44, 10)
    assert str(refusal.value) == reason
