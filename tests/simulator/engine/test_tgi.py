"""Token quotas as stories. Source: text-generation-inference, backends/v3/src; policy notes 1.11."""

from __future__ import annotations

import pytest

from simulator.engine.kv_cache import KVCache
from simulator.engine.tgi import Tgi
from simulator.errors import RequestTooLarge
from tests.simulator.engine.stories import Bench


def bench(blocks: int = 100, size: int = 4, **knobs: object) -> Bench:
    limits: dict[str, object] = {
        "max_num_seqs": 8,
        "max_model_len": 1000,
        "max_batch_prefill_tokens": 40,
        "waiting_served_ratio": 1.2,
        "max_waiting_tokens": 4,
    }
    return Bench(Tgi(KVCache(blocks, size), **{**limits, **knobs}))


def test_new_prompts_interrupt_the_batch_then_all_decode_together() -> None:
    """One running request is worth an interruption by one (1.2 rounded down)."""
    story = bench()
    story.add("a", 9, 4)
    assert story.step() == "a:0+9!"
    story.add("b", 20, 2)
    assert story.steps(4) == ["b:0+20!", "a b", "a", "a"]


def test_a_batch_is_not_interrupted_for_too_few() -> None:
    """Two running ask for two (2.4 rounded down): c waits until they have four tokens each."""
    story = bench()
    story.add("a", 9, 9)
    story.add("b", 9, 9)
    assert story.step() == "a:0+9! b:0+9!"
    story.add("c", 9, 9)
    assert story.steps(5) == ["a b", "a b", "a b", "c:0+9!", "a b c"]


def test_enough_of_them_interrupt_at_once() -> None:
    story = bench()
    story.add("a", 9, 9)
    story.add("b", 9, 9)
    story.step()
    story.add("c", 9, 9)
    assert story.step() == "a b"
    story.add("d", 9, 9)
    assert story.steps(2) == ["c:0+9! d:0+9!", "a b c d"]


def test_after_an_interruption_the_batch_decodes_once_whoever_waits() -> None:
    """The very first batch may be joined before it has decoded, then come decodes in between."""
    story = bench(waiting_served_ratio=0.0)
    story.add("a", 40, 9)
    story.add("b", 40, 9)
    story.add("c", 40, 9)
    assert story.steps(5) == ["a:0+40!", "b:0+40!", "a b", "c:0+40!", "a b c"]


def test_too_few_that_fit_do_not_interrupt_either() -> None:
    """d and e wait, two for two; but e's prompt exceeds what d's leaves of the limit."""
    story = bench()
    story.add("a", 9, 9)
    story.add("b", 9, 9)
    story.step()
    story.add("d", 30, 9)
    story.add("e", 30, 9)
    assert story.steps(5) == ["a b", "a b", "a b", "d:0+30!", "a b d"]


def test_prompts_and_output_limits_together_keep_the_quota() -> None:
    """60 tokens: a and b reserve 15 each, c would need 31; d would fit, but never overtakes."""
    story = bench(max_batch_total_tokens=60, waiting_served_ratio=0.0)
    story.add("a", 10, 3, limit=5)
    story.add("b", 10, 5)
    story.add("c", 21, 2, limit=10)
    story.add("d", 1, 1)
    assert story.steps(3) == ["a:0+10! b:0+10!", "a b", "a b"]
    assert story.step() == "c:0+21! d:0+1!"
    assert story.steps(2) == ["b c", "b"]


def test_all_blocks_are_reserved_at_admission_and_nothing_is_ever_evicted() -> None:
    """Prompt 6 and limit 12: seventeen tokens are stored at most."""
    story = bench(blocks=9, waiting_served_ratio=0.0)
    a = story.add("a", 6, 3, limit=12)
    story.add("b", 6, 3, limit=12)
    assert story.step() == "a:0+6!"
    assert len(a.blocks) == 5
    assert story.steps(3) == ["a", "a", "b:0+6!"]


def test_the_prefill_limit_is_rounded_up_to_whole_blocks() -> None:
    story = bench(max_batch_prefill_tokens=17)
    story.add("a", 10, 2)
    story.add("b", 10, 2)
    assert story.step() == "a:0+10! b:0+10!"


def test_requests_that_fit_alone_but_not_together_follow_one_another() -> None:
    story = bench(blocks=6)
    story.add("a", 8, 12)
    story.add("b", 8, 12)
    while story.step() != "idle":
        pass
    assert story.completed == ["a", "b"]


@pytest.mark.parametrize(
    ("prompt", "limit", "reason"),
    [
        (10, 55, "65 tokens (prompt and output limit) exceed max_model_len 64"),
        (10, 45, "55 tokens (prompt and output limit) exceed max_batch_total_tokens 54"),
        (41, 2, "41 prompt tokens exceed max_batch_prefill_tokens 40"),
        (40, 14, "needs 14 KV blocks, the cache has 12"),
    ],
)
def test_what_could_never_run_is_refused_with_the_reason(prompt: int, limit: int, reason: str) -> None:
    quota = 100 if "model" in reason else 54
    story = bench(blocks=12, max_model_len=64, max_batch_total_tokens=quota)
    with pytest.raises(RequestTooLarge) as refusal:
        story.add("a", prompt, limit)
    assert str(refusal.value) == reason
