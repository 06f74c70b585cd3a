"""Triton's dynamic batcher as stories. Source: policy notes 1.5 and trap 10 of section 6."""

from __future__ import annotations

import pytest

from simulator.engine.dynamic import Dynamic
from simulator.engine.kv_cache import KVCache
from simulator.engine.queue_policy import QueuePolicy
from simulator.errors import QueueFull, RequestTooLarge
from tests.simulator.engine.timed_stories import TimedBench


def bench(blocks: int = 100, **knobs: object) -> TimedBench:
    limits: dict[str, object] = {"max_num_seqs": 8, "max_model_len": 200}
    return TimedBench(Dynamic(KVCache(blocks, 4), **{**limits, **knobs}))


def test_without_a_delay_whatever_waits_goes_at_once() -> None:
    story = bench()
    story.arrive("abc")
    assert story.batch() == "abc"


def test_without_preferred_sizes_the_largest_batch_is_the_preferred_one() -> None:
    story = bench(max_queue_delay_ns=50)
    story.arrive("abcdefg")
    assert story.step() == "wait 50"
    story.at(10).arrive("h")
    assert story.batch() == "abcdefgh"


def test_a_preferred_size_goes_at_once_and_the_larger_of_two_wins() -> None:
    story = bench(preferred_batch_sizes=(2, 4), max_queue_delay_ns=50)
    story.arrive("abcde")
    assert story.batch() == "abcd"


def test_fewer_than_the_smallest_preferred_size_wait_for_the_delay_and_go_as_they_are() -> None:
    story = bench(preferred_batch_sizes=(4,), max_queue_delay_ns=50)
    story.at(5).arrive("a")
    story.at(20).arrive("bc")
    assert story.step() == "wait 55"
    assert story.at(54).step() == "wait 55"
    assert story.at(55).batch() == "abc"


def test_the_end_of_the_delay_ignores_preferred_sizes() -> None:
    """Six wait and four are preferred: in time four go, too late all six (policy notes, trap 10)."""
    limits = QueuePolicy(max_queue_size=100)  # so that batches are formed only when the device is free
    for now, expected in ((49, "abcd"), (50, "abcdef")):
        story = bench(preferred_batch_sizes=(4,), max_queue_delay_ns=50, queue_policy=limits)
        story.arrive("abcdef")
        assert story.at(now).batch() == expected


def test_no_batch_exceeds_the_largest_one() -> None:
    story = bench(max_num_seqs=3, preferred_batch_sizes=(2,), max_queue_delay_ns=5)
    story.arrive("abcdefg")
    assert [story.at(99).batch() for _ in range(3)] == ["abc", "def", "g"]


def test_a_batch_formed_while_the_device_is_busy_is_topped_up_until_it_is_taken() -> None:
    """Without a delay b is a batch of its own from 1 on; c, d and e still join it."""
    story = bench(max_num_seqs=4)
    story.arrive("a", output=3)
    assert story.step() == "a:0+4!"
    for now, name in ((1, "b"), (2, "c"), (3, "d"), (4, "e"), (5, "f")):
        story.at(now).arrive(name)
    assert [story.at(9).step(), story.at(12).step()] == ["a", "a"]
    assert story.at(12).batch() == "bcde"
    assert story.at(15).batch() == "f"


def test_without_a_delay_a_batch_that_reached_a_preferred_size_is_closed() -> None:
    story = bench(preferred_batch_sizes=(2,))
    story.arrive("a")
    story.step()
    for now, name in ((1, "b"), (2, "c"), (3, "d")):
        story.at(now).arrive(name)
    assert story.at(9).step() == "a"
    assert story.at(9).batch() == "bc"
    assert story.at(9).batch() == "d"


def test_windows_that_close_while_the_device_is_busy_close_in_time() -> None:
    """b's window ends at 11, so it is formed and c, which comes later, tops it up at once."""
    story = bench(preferred_batch_sizes=(4,), max_queue_delay_ns=10)
    story.arrive("xxxx")
    story.step()
    story.at(1).arrive("b")
    story.at(14).arrive("c")
    story.at(16).step()
    assert story.at(16).batch() == "bc"
    other = bench(preferred_batch_sizes=(4,), max_queue_delay_ns=100)
    other.arrive("xxxx")
    other.step()
    other.at(1).arrive("b")
    other.at(14).arrive("c")
    other.at(16).step()
    assert other.at(16).step() == "wait 101"


def test_at_most_two_batches_stand_ready() -> None:
    story = bench(max_num_seqs=1)
    story.arrive("a")
    story.step()
    story.at(1).arrive("bcd")
    story.at(2).arrive("e")
    scheduler = story.scheduler
    assert isinstance(scheduler, Dynamic)
    assert [len(formed.rows) for formed in scheduler.formed] == [1, 1]
    assert scheduler.waiting_requests == 4


def test_an_urgent_level_goes_first_and_0_stands_for_the_default_level() -> None:
    story = bench(priority_levels=3, default_priority_level=2, max_num_seqs=2)
    for name, priority in (("a", 3), ("b", 0), ("c", 1), ("d", 2), ("e", 7)):
        story.arrive(name, priority=priority)
    assert [story.batch() for _ in range(3)] == ["cb", "de", "a"]


def test_a_request_that_waited_too_long_is_rejected_when_a_batch_is_next_formed() -> None:
    story = bench(max_num_seqs=2, queue_policy=QueuePolicy(timeout_ns=3_000_000))
    story.arrive("a", output=3)
    story.step()
    story.at(1).arrive("b")
    story.at(2_000_000).arrive("c")
    story.at(3_000_001).step()
    assert story.expired == {}  # nobody looks at the queue while the device is busy
    story.step()
    assert story.at(3_000_002).batch() == "c"
    assert story.expired == {"b": "waited longer than its timeout of 3 ms"}
    assert not story.scheduler.busy


def test_a_timeout_within_the_window_wakes_the_batcher() -> None:
    story = bench(max_queue_delay_ns=90, queue_policy=QueuePolicy(timeout_ns=30))
    story.arrive("a")
    assert story.step() == "wait 31"
    story.at(20).arrive("b")
    assert story.at(31).step() == "wait 51"
    assert list(story.expired) == ["a"]


def test_a_delayed_request_is_served_behind_all_others_of_its_level() -> None:
    story = bench(max_num_seqs=1, queue_policy=QueuePolicy(timeout_ns=10, delays=True))
    story.arrive("a")
    story.at(9).arrive("bc")
    assert [story.at(11).batch() for _ in range(3)] == ["b", "c", "a"]
    assert story.expired == {}


@pytest.mark.parametrize(
    ("default", "wish", "allowed", "served"),
    [
        (50, 20, True, False),
        (50, 20, False, True),
        (20, 50, True, False),  # a wish can only shorten
        (0, 20, True, True),  # and not where there is no default: Triton compares it with 0
    ],
)
def test_a_request_may_shorten_the_default_timeout(
    default: int, wish: int, allowed: bool, served: bool
) -> None:
    policy = QueuePolicy(timeout_ns=default, allow_timeout_override=allowed)
    story = bench(queue_policy=policy)
    story.arrive("a", timeout_ns=wish)
    assert story.at(30).batch() == ("a" if served else "idle")
    assert list(story.expired) == ([] if served else ["a"])


def test_a_full_level_refuses_and_the_running_do_not_count() -> None:
    story = bench(max_num_seqs=1, queue_policy=QueuePolicy(max_queue_size=2))
    story.arrive("a")
    story.step()
    story.arrive("bc")
    with pytest.raises(QueueFull, match=r"the queue holds max_queue_size \(2\) requests"):
        story.arrive("d")
    assert story.scheduler.waiting_requests == 2


def test_each_level_has_its_own_limits() -> None:
    story = bench(priority_levels=2, queue_policies={1: QueuePolicy(max_queue_size=1)})
    story.arrive("a", priority=1)
    story.arrive("bcd", priority=2)
    with pytest.raises(QueueFull):
        story.arrive("e", priority=1)


def test_a_batch_that_would_outgrow_the_cache_counts_as_full() -> None:
    """Two rows of 40 tokens hold 20 of 25 blocks; the window does not keep them waiting for a third."""
    story = bench(blocks=25, max_queue_delay_ns=50)
    story.arrive("abc", prompt=20, output=20)
    assert story.batch() == "ab"
    assert story.step() == "wait 50"


def test_requests_that_never_fit_are_refused() -> None:
    with pytest.raises(RequestTooLarge, match="exceed max_model_len 200"):
        bench().arrive("x", prompt=190, output=11)
    with pytest.raises(RequestTooLarge, match="needs 26 KV blocks, the cache has 25"):
        bench(blocks=25).arrive("x", prompt=100, output=4)
