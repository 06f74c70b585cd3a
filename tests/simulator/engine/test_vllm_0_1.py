"""The first vLLM's rules as stories. Source: release 0.1.0, vllm/core/scheduler.py; policy notes 1.8."""

from __future__ import annotations

import pytest

from simulator.engine.kv_cache import KVCache
from simulator.engine.vllm_0_1 import Vllm01
from simulator.errors import RequestTooLarge
from tests.simulator.engine.stories import Bench


def bench(blocks: int = 100, size: int = 4, **knobs: object) -> Bench:
    limits: dict[str, object] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 40,
        "max_model_len": 1000,
        "watermark": 0.0,
    }
    return Bench(Vllm01(KVCache(blocks, size), **{**limits, **knobs}))


def test_whole_prompts_run_beside_decodes() -> None:
    """Trap: 0.2 to 0.6 stall the decodes, this release does not."""
    story = bench()
    story.add("a", 9, 3)
    assert story.step() == "a:0+9!"
    story.add("b", 20, 2)
    assert story.steps(3) == ["b:0+20! a", "a b", "idle"]


def test_decodes_and_prompts_share_one_token_limit() -> None:
    """One decode and 38 prompt tokens fit 39, a further prompt token does not."""
    story = bench(max_num_batched_tokens=39)
    story.add("a", 9, 9)
    story.step()
    story.add("b", 38, 2)
    story.add("c", 1, 2)
    assert story.steps(2) == ["b:0+38! a", "c:0+1! a b"]


def test_the_watermark_is_kept_free_at_admission_even_on_an_empty_engine() -> None:
    """Half of ten blocks: a's two leave eight, b's three leave five, c's one would leave four."""
    story = bench(blocks=10, watermark=0.5)
    story.add("a", 8, 2)
    story.add("b", 12, 2)
    story.add("c", 1, 2)
    assert story.steps(3) == ["a:0+8! b:0+12!", "a b", "c:0+1!"]


def test_a_row_wants_a_free_block_even_where_its_last_one_has_room() -> None:
    """a and b hold all four blocks with room in each: b makes way nonetheless."""
    story = bench(blocks=4)
    story.add("a", 5, 2)
    b = story.add("b", 5, 2)
    assert story.steps(2) == ["a:0+5! b:0+5!", "a | -b"]
    assert (b.preemptions, b.generated_tokens, b.computed_tokens, b.blocks) == (1, 1, 0, [])


def test_nobody_is_admitted_in_an_iteration_that_evicts() -> None:
    """c would fit the two blocks that b gives up, but b stands before it and only just left."""
    story = bench(blocks=4)
    story.add("a", 5, 4)
    story.add("b", 5, 3)
    story.step()
    story.add("c", 1, 1)
    assert story.step() == "a | -b"
    assert story.steps(3) == ["b:0+6! a", "a | -b", "b:0+7! c:0+1!"]
    assert story.completed == ["a", "b", "c"]


def test_recomputation_covers_prompt_and_answer_and_goes_on_with_the_next_token() -> None:
    """Trap: the two tokens that b had are computed with its prompt, and not told again."""
    story = bench(blocks=5)
    story.add("a", 7, 9)
    b = story.add("b", 7, 5)
    assert story.steps(3) == ["a:0+7! b:0+7!", "a b", "a | -b"]
    assert b.total_tokens == 9
    assert story.steps(6) == ["a"] * 6
    assert story.steps(4) == ["b:0+9!", "b", "b", "idle"]


def test_two_requests_that_fit_alone_but_not_together_both_finish() -> None:
    story = bench(blocks=6)
    story.add("a", 8, 12)
    story.add("b", 8, 12)
    lines = []
    while (line := story.step()) != "idle":
        lines.append(line)
    assert story.completed == ["a", "b"]
    assert not any("-a" in line for line in lines), "the oldest is never the victim"


@pytest.mark.parametrize(
    ("prompt", "limit", "reason"),
    [
        (990, 11, "1001 tokens (prompt and output limit) exceed max_model_len 1000"),
        (35, 10, "44 tokens to (re)compute exceed max_num_batched_tokens 40, unchunked"),
        (30, 11, "needs 10 KV blocks beside 2 that must stay free, the cache has 11"),
    ],
)
def test_what_could_never_run_to_its_limit_is_refused_with_the_reason(
    prompt: int, limit: int, reason: str
) -> None:
    story = bench(blocks=11, watermark=0.2, max_num_batched_tokens=2000 if prompt == 990 else 40)
    with pytest.raises(RequestTooLarge) as refusal:
        story.add("a", prompt, limit)
    assert str(refusal.value) == reason
