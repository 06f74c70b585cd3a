"""FasterTransformer's request-level batches as stories. Source: policy notes 1.3."""

from __future__ import annotations

import pytest

from simulator.engine.faster_transformer import FasterTransformer
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import IterationShape
from simulator.errors import RequestTooLarge
from tests.simulator.engine.stories import Bench


def bench(blocks: int = 100, **knobs: object) -> Bench:
    limits: dict[str, object] = {"max_num_seqs": 3, "max_model_len": 40}
    return Bench(FasterTransformer(KVCache(blocks, 4), **{**limits, **knobs}))


def test_prompts_are_computed_to_the_shortest_and_then_token_by_token() -> None:
    """Orca, section 6.2: the rest of a longer prompt is fed beside the decodes of the shorter ones."""
    story = bench()
    for name, prompt, output in (("a", 3, 4), ("b", 5, 2), ("c", 3, 1)):
        story.add(name, prompt, output)
    assert story.steps(5) == ["a:0+3! b:0+3 c:0+3!", "b:3+1 a c", "b:4+1! a c", "a c b", "idle"]
    assert story.completed == ["a", "b", "c"]


def test_longer_prompts_cost_steps_instead_of_padding() -> None:
    """One answer of one token: 1 iteration alone, 1 + (9 - 2) beside a prompt of 9."""
    story = bench()
    story.add("a", 2, 1)
    story.add("b", 9, 1)
    lines = story.steps(9)
    assert lines[0] == "a:0+2! b:0+2"
    assert lines[7:] == ["b:8+1! a", "idle"]
    assert story.plan is None


def test_prompts_may_be_padded_to_the_longest_instead() -> None:
    story = bench(pads_prompts=True)
    story.add("a", 2, 2)
    story.add("b", 9, 2)
    planned = story.scheduler.plan()
    assert planned is not None
    assert planned.shape() == IterationShape(2, 18, 2 * 45, 0, 0, 7)


def test_a_batch_takes_the_earliest_that_wait_and_waits_for_nobody() -> None:
    story = bench()
    story.add("a", 4, 2)
    assert story.step() == "a:0+4!"
    for name in "bcde":
        story.add(name, 4, 2)
    assert story.steps(4) == ["a", "b:0+4! c:0+4! d:0+4!", "b c d", "e:0+4!"]


def test_finished_rows_are_computed_to_the_end_of_the_batch_and_answered_then() -> None:
    story = bench()
    story.add("a", 4, 1)
    story.add("b", 4, 3)
    assert story.steps(2) == ["a:0+4! b:0+4!", "a b"]
    assert story.plan is not None
    assert story.completed == []
    assert story.step() == "a b"
    assert story.completed == ["a", "b"]


def test_in_vidurs_emulation_finished_rows_leave_the_computation_but_not_the_memory() -> None:
    story = bench(shrinks=True)
    story.add("a", 4, 1)
    story.add("b", 4, 3)
    assert story.step() == "a:0+4! b:0+4!"
    assert story.completed == ["a"]
    assert story.scheduler.used_blocks == 20
    assert story.steps(2) == ["b", "b"]
    assert story.scheduler.used_blocks == 0


def test_every_row_holds_memory_for_the_longest_sequence_of_the_model() -> None:
    """Ten blocks a row: two rows fit 29 blocks, however short they are."""
    story = bench(blocks=29)
    for name in "abc":
        story.add(name, 1, 1)
    assert story.step() == "a:0+1! b:0+1!"


def test_a_padded_row_never_outgrows_its_memory() -> None:
    """30 positions of b's prompt before a's answer of 20 would make 50, of 40 reserved."""
    for pads_prompts, expected in ((True, "a:0+4!"), (False, "a:0+4! b:0+4")):
        story = bench(pads_prompts=pads_prompts)
        story.add("a", 4, 20)
        story.add("b", 30, 4)
        assert story.step() == expected


def test_a_row_cancelled_while_its_prompt_is_fed_is_fed_no_more_and_not_answered() -> None:
    story = bench()
    story.add("a", 2, 2)
    b = story.add("b", 9, 1)
    story.step()
    story.scheduler.cancel(b)
    assert story.steps(2) == ["a", "idle"]
    assert story.completed == ["a"]
    assert story.scheduler.used_blocks == 0


def test_requests_that_never_fit_are_refused() -> None:
    with pytest.raises(
        RequestTooLarge, match=r"41 tokens \(prompt and output limit\) exceed max_model_len 40"
    ):
        bench().add("x", 40, 1)
    message = "every row reserves 10 KV blocks for max_model_len 40, the cache has 9"
    with pytest.raises(RequestTooLarge, match=message):
        bench(blocks=9).add("x", 1, 1)
