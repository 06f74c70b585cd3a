"""Sarathi-Serve's rules as stories. Source: OSDI 2024 paper and repository; policy notes 1.12."""

from __future__ import annotations

import pytest

from simulator.engine.kv_cache import KVCache
from simulator.engine.sarathi import Sarathi
from simulator.errors import RequestTooLarge
from tests.simulator.engine.stories import Bench


def bench(blocks: int = 100, size: int = 4, **knobs: object) -> Bench:
    limits: dict[str, object] = {
        "max_num_seqs": 8,
        "token_budget": 8,
        "max_model_len": 1000,
        "watermark": 0.0,
    }
    return Bench(Sarathi(KVCache(blocks, size), **{**limits, **knobs}))


def test_chunks_fill_what_the_decodes_leave_of_the_budget() -> None:
    story = bench()
    story.add("a", 6, 9)
    story.add("b", 20, 3)
    assert story.steps(5) == ["a:0+6! b:0+2", "b:2+7 a", "b:9+7 a", "b:16+4! a", "a b"]


def test_chunks_may_have_any_size() -> None:
    """Not rounded to blocks: one decode leaves 7 of 8 tokens."""
    story = bench()
    story.add("a", 1, 9)
    story.step()
    story.add("b", 9, 2)
    assert story.steps(2) == ["b:0+7 a", "b:7+2! a"]


def test_decodes_beyond_the_budget_all_run_and_prompts_wait() -> None:
    """Trap: the rest of the budget would be negative."""
    story = bench(token_budget=3)
    for name in "abcd":
        story.add(name, 1, 9)
    assert story.steps(2) == ["a:0+1! b:0+1! c:0+1!", "a b c"]
    story = bench(token_budget=3)
    for name in "abc":
        story.add(name, 1, 3)
    story.step()
    story.add("d", 2, 2)
    assert story.steps(3) == ["a b c", "a b c", "d:0+2!"]


def test_a_prompt_holds_all_its_blocks_from_its_first_chunk_on() -> None:
    """Trap: V1 allocates per chunk."""
    story = bench()
    b = story.add("b", 20, 2)
    assert story.step() == "b:0+8"
    assert len(b.blocks) == 5


def test_an_evicted_request_may_start_again_in_the_same_iteration() -> None:
    """b makes way because a row wants a free block, and fits the two that it gave up."""
    story = bench(blocks=4, token_budget=20)
    story.add("a", 5, 3)
    b = story.add("b", 5, 3)
    assert story.steps(2) == ["a:0+5! b:0+5!", "b:0+6! a | -b"]
    assert (b.preemptions, b.generated_tokens) == (1, 2)


def test_the_newest_makes_way_even_in_mid_prefill() -> None:
    """Trap: that must not change the request's lengths. a's third block is the last one free."""
    story = bench(blocks=8, token_budget=4)
    story.add("a", 4, 7)
    b = story.add("b", 19, 2)
    chunks = [f"b:{start}+3 a" for start in (0, 3, 6, 9, 12)]
    assert story.steps(7) == ["a:0+4!", *chunks, "b:0+3 a | -b"]
    assert story.steps(5)[-2:] == ["b:15+4!", "b"]
    assert (b.prompt_tokens, b.generated_tokens, b.preemptions) == (19, 2, 1)


class TestHybridOnly:
    def test_whole_prompts_run_beside_decodes_whatever_their_length(self) -> None:
        story = bench(batching="hybrid-only")
        story.add("a", 6, 9)
        story.step()
        story.add("b", 20, 3)
        story.add("c", 30, 3)
        assert story.steps(2) == ["b:0+20! c:0+30! a", "a b c"]


class TestChunkedOnly:
    def test_chunks_and_decodes_take_turns(self) -> None:
        story = bench(batching="chunked-only")
        story.add("a", 6, 4)
        story.add("b", 14, 3)
        assert story.steps(5) == ["a:0+6! b:0+2", "a", "b:2+8", "a", "b:10+4!"]
        assert story.steps(3) == ["a b", "b", "idle"]

    def test_seated_prompts_finish_before_new_ones_start(self) -> None:
        """Four of eight tokens are left beside b's last chunk, but c's first waits for the next turn."""
        story = bench(batching="chunked-only")
        story.add("a", 2, 9)
        story.step()
        story.add("b", 12, 3)
        story.add("c", 4, 3)
        assert story.steps(6) == ["a", "b:0+8", "a", "b:8+4!", "a b", "c:0+4!"]

    def test_while_nobody_decodes_there_is_no_turn_to_wait_for(self) -> None:
        story = bench(batching="chunked-only")
        story.add("a", 20, 2)
        assert story.steps(4) == ["a:0+8", "a:8+8", "a:16+4!", "a"]


@pytest.mark.parametrize("batching", ["combined", "hybrid-only", "chunked-only"])
def test_two_requests_that_fit_alone_but_not_together_both_finish(batching: str) -> None:
    story = bench(blocks=6, batching=batching)
    story.add("a", 8, 12)
    story.add("b", 8, 12)
    lines = []
    while (line := story.step()) != "idle":
        lines.append(line)
    assert story.completed == ["a", "b"]
    assert not any("-a" in line for line in lines), "the oldest is never the victim"


@pytest.mark.parametrize("batching", ["combined", "hybrid-only", "chunked-only"])
def test_what_could_never_run_to_its_limit_is_refused_with_the_reason(batching: str) -> None:
    story = bench(blocks=11, max_model_len=60, batching=batching)
    with pytest.raises(RequestTooLarge, match="exceed max_model_len 60"):
        story.add("a", 50, 11)
    with pytest.raises(RequestTooLarge) as refusal:
        story.add("a", 38, 4)
    assert str(refusal.value) == "needs 11 KV blocks beside 1 that must stay free, the cache has 11"
