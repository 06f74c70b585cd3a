"""Single requests and padded static batches as stories. Source: policy notes 1.1 and 1.2."""

from __future__ import annotations

import pytest

from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import IterationShape
from simulator.engine.single import Single
from simulator.engine.static import Static
from simulator.errors import RequestTooLarge
from tests.simulator.engine.stories import Bench


def static(blocks: int = 100, **knobs: object) -> Bench:
    return Bench(Static(KVCache(blocks, 4), **{"max_num_seqs": 3, "max_model_len": 200, **knobs}))


def shape(story: Bench) -> IterationShape:
    plan = story.plan
    assert plan is not None
    return plan.shape()


def test_single_serves_one_request_at_a_time() -> None:
    story = Bench(Single(KVCache(100, 4), max_model_len=100))
    story.add("a", 9, 2)
    story.add("b", 5, 1)
    assert story.steps(4) == ["a:0+9!", "a", "b:0+5!", "idle"]


def test_a_padded_prefill_computes_the_longest_prompt_for_every_row() -> None:
    # 3 rows of 10 positions: 30 computed, 18 of them asked for, 10 * 11 / 2 pairs a row
    story = static()
    for name, prompt in (("a", 2), ("b", 10), ("c", 6)):
        story.add(name, prompt, 3)
    planned = story.scheduler.plan()
    assert planned is not None
    assert planned.shape() == IterationShape(3, 30, 165, 0, 0, 12)


def test_a_stopped_row_keeps_its_seat_until_the_batch_ends() -> None:
    """Useful rows: 2 of 3, then 1 of 3; the next batch starts when the last row has stopped."""
    story = static()
    for name, output in (("a", 1), ("b", 2), ("c", 4), ("d", 1)):
        story.add(name, 5, output)
    assert story.steps(4) == ["a:0+5! b:0+5! c:0+5!", "a b c", "a b c", "a b c"]
    assert story.completed == ["a", "b", "c"]
    assert story.step() == "d:0+5!"


def test_padding_rows_are_counted_as_waste_and_read_the_padded_context() -> None:
    story = static()
    for name, prompt, output in (("a", 2, 1), ("b", 8, 3)):
        story.add(name, prompt, output)
    story.step()
    planned = story.scheduler.plan()
    assert planned is not None
    assert planned.shape() == IterationShape(0, 0, 0, 2, 2 * 9, 1)


def test_global_max_decodes_every_batch_to_one_length() -> None:
    """Anyscale's baseline: min_length = max_length = the longest of all requests, here 5 + 4 tokens."""
    story = static(global_max_tokens=9)
    story.add("a", 5, 1)
    story.add("b", 5, 2)
    assert story.steps(5) == ["a:0+5! b:0+5!", "a b", "a b", "a b", "idle"]
    assert story.completed == ["a", "b"]


def test_nothing_is_seen_before_the_batch_ends_unless_streamed() -> None:
    for streaming, expected in ((False, [[], [], ["a", "b"]]), (True, [["a"], ["a"], ["a", "b"]])):
        story = static(streaming=streaming)
        story.add("a", 5, 1)
        story.add("b", 5, 3)
        seen = []
        for _ in range(3):
            story.step()
            seen.append(list(story.completed))
        assert seen == expected


def test_a_batch_takes_only_what_fits_the_cache_at_its_longest() -> None:
    """A row of 20 prompt and 20 output tokens holds 10 blocks; three such rows need 30."""
    story = static(blocks=29)
    for name in "abc":
        story.add(name, 20, 20)
    assert story.step() == "a:0+20! b:0+20!"
    assert story.scheduler.used_blocks == 20


def test_rows_hold_the_padded_prompt_and_the_longest_answer() -> None:
    story = static()
    story.add("a", 4, 40)
    story.add("b", 20, 4)
    story.step()
    assert story.scheduler.used_blocks == 2 * 15


def test_requests_that_never_fit_are_refused() -> None:
    with pytest.raises(RequestTooLarge, match="exceed max_model_len 200"):
        static().add("a", 190, 11)
    with pytest.raises(RequestTooLarge, match="needs 26 KV blocks, the cache has 25"):
        static(blocks=25).add("a", 100, 4)
    with pytest.raises(RequestTooLarge, match="exceed the global maximum of 50"):
        static(global_max_tokens=50).add("a", 40, 11)
