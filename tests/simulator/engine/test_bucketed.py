"""Batches of similar length as stories. Source: policy notes 1.4."""

from __future__ import annotations

import pytest

from simulator.engine.bucketed import Bucketed
from simulator.engine.kv_cache import KVCache
from simulator.errors import RequestTooLarge
from tests.simulator.engine.timed_stories import TimedBench


def bench(blocks: int = 100, **knobs: object) -> TimedBench:
    limits: dict[str, object] = {
        "max_num_seqs": 3,
        "max_model_len": 200,
        "edges": (8, 32),
        "timeout_ns": 50,
    }
    return TimedBench(Bucketed(KVCache(blocks, 4), **{**limits, **knobs}))


def test_a_full_bucket_goes_at_once_and_alone() -> None:
    story = bench()
    story.arrive("a", prompt=8)
    story.arrive("x", prompt=9)  # over the first edge
    story.arrive("bc", prompt=1)
    assert story.batch() == "abc"
    assert story.at(20).step() == "wait 50"  # x waits for its own kind


def test_a_bucket_that_does_not_fill_goes_when_its_oldest_has_waited_long_enough() -> None:
    story = bench()
    story.at(10).arrive("a")
    story.at(30).arrive("b")
    assert story.step() == "wait 60"
    assert story.at(59).step() == "wait 60"
    assert story.at(60).batch() == "ab"


def test_of_two_ready_buckets_the_one_with_the_older_head_goes_first() -> None:
    """Otherwise a busy bucket of short prompts would starve one long prompt."""
    story = bench()
    story.at(1).arrive("x", prompt=40)
    story.at(2).arrive("abcdef")
    assert [story.at(70).batch() for _ in range(3)] == ["x", "abc", "def"]


def test_buckets_can_count_the_output_limit_too() -> None:
    for counts_answers, expected in ((False, "ab"), (True, "a")):
        story = bench(counts_answers=counts_answers, timeout_ns=0)
        story.arrive("a", prompt=4, output=2)
        story.arrive("b", prompt=4, output=20)
        assert story.batch() == expected


def test_rows_are_padded_to_the_longest_of_the_batch_not_to_the_edge() -> None:
    story = bench(timeout_ns=0)
    story.arrive("a", prompt=2)
    story.arrive("b", prompt=6)
    planned = story.scheduler.plan()
    assert planned is not None
    assert (planned.shape().prefill_tokens, planned.shape().padding_tokens) == (12, 4)


def test_a_batch_ends_before_rows_times_longest_prompt_exceed_the_budget() -> None:
    """Variant (b): one queue, no window; 3 rows of 10 fit a budget of 30, a prompt of 11 would make 33."""
    story = bench(edges=(), timeout_ns=0, max_num_seqs=9, max_padded_tokens=30)
    story.arrive("ab", prompt=10)
    story.arrive("c", prompt=2)
    story.arrive("d", prompt=11)
    story.arrive("e", prompt=2)
    assert story.batch() == "abc"
    assert story.batch() == "de"


def test_the_walk_stops_at_the_first_that_does_not_fit_so_nobody_overtakes() -> None:
    story = bench(edges=(), timeout_ns=0, max_padded_tokens=30)
    story.arrive("a", prompt=10)
    story.arrive("b", prompt=30)
    story.arrive("c", prompt=10)
    assert [story.batch() for _ in range(3)] == ["a", "b", "c"]


def test_a_batch_is_cut_short_where_its_padded_rows_would_outgrow_the_cache() -> None:
    """A padded row of 20 and 20 tokens holds 10 blocks, whoever it belongs to."""
    story = bench(blocks=29, edges=(), timeout_ns=0)
    story.arrive("a", prompt=20, output=2)
    story.arrive("b", prompt=2, output=20)
    story.arrive("c", prompt=2, output=2)
    assert [story.batch(), story.batch()] == ["ab", "c"]


@pytest.mark.parametrize(
    ("prompt", "output", "message"),
    [
        (190, 11, r"201 tokens \(prompt and output limit\) exceed max_model_len 200"),
        (100, 4, "needs 26 KV blocks, the cache has 25"),
        (61, 2, "61 tokens exceed the budget of 60 padded tokens of a batch"),
    ],
)
def test_requests_that_never_fit_are_refused(prompt: int, output: int, message: str) -> None:
    with pytest.raises(RequestTooLarge, match=message):
        bench(blocks=25, max_padded_tokens=60).arrive("x", prompt=prompt, output=output)
