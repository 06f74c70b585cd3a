"""SGLang's scheduler as stories. Source: policy notes 1.14, and the traps of section 6."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.request import Content, Request
from simulator.engine.sglang import Outlook, SgLang, TokenRatio
from simulator.errors import RequestTooLarge
from tests.simulator.engine.stories import Bench


def bench(tokens: int = 200, page: int = 1, *, caching: bool = False, **knobs: object) -> Bench:
    limits: dict[str, object] = {"max_num_seqs": 8, "max_model_len": 1000, "chunked_prefill_size": 16}
    cache = KVCache(tokens // page, page, prefix_caching=caching)
    return Bench(SgLang(cache, **{**limits, **knobs}))


def test_decodes_pause_while_prompts_are_computed() -> None:
    story = bench()
    story.add("a", 8, 4)
    assert story.steps(2) == ["a:0+8!", "a"]
    story.add("b", 30, 2)
    assert story.steps(3) == ["b:0+16", "b:16+14!", "a b"]
    assert story.plan is not None
    assert not story.plan.paused


def test_a_mixed_iteration_computes_both_within_one_chunk_size() -> None:
    story = bench(enable_mixed_chunk=True)
    story.add("a", 8, 9)
    story.step()
    story.add("b", 30, 2)
    assert story.steps(3) == ["b:0+15 a", "b:15+15! a", "a b"]


def test_one_prompt_at_a_time_is_cut_short_and_it_continues_first() -> None:
    story = bench()
    for name, prompt in (("a", 10), ("b", 20), ("c", 5)):
        story.add(name, prompt, 2)
    assert story.steps(3) == ["a:0+10! b:0+6", "b:6+14! c:0+2", "c:2+3!"]
    assert story.step() == "a b c"


def test_chunks_are_whole_pages() -> None:
    story = bench(page=4)
    story.add("a", 9, 2)
    story.add("b", 20, 2)
    assert story.steps(2) == ["a:0+9! b:0+4", "b:4+16!"]


def test_without_chunking_only_the_first_prompt_may_exceed_the_input_budget() -> None:
    story = bench(chunked_prefill_size=0, max_prefill_tokens=20)
    for name, prompt in (("a", 30), ("b", 12), ("c", 12)):
        story.add(name, prompt, 2)
    assert story.steps(4) == ["a:0+30!", "b:0+12!", "c:0+12!", "a b c"]


def test_the_ratio_falls_from_0_7_to_14_percent_of_it_over_600_decode_steps() -> None:
    ratio = TokenRatio(1.0)
    assert ratio.after(0) == 0.7
    assert ratio.after(300) == pytest.approx((0.7 + 0.098) / 2)
    assert ratio.after(600) == pytest.approx(0.098)
    assert ratio.after(10_000) == pytest.approx(0.098)
    assert TokenRatio(2.0).after(0) == 1.0  # 1.4, capped
    assert TokenRatio(2.0).after(600) == pytest.approx(0.14)
    assert TokenRatio(0.5).after(0) == 0.35


def test_the_ratio_falls_in_decode_steps_only_and_starts_anew_when_idle() -> None:
    story = bench()
    story.add("a", 8, 4)
    engine = story.scheduler
    story.step()
    assert engine.new_token_ratio == 0.7
    story.step()
    assert engine.new_token_ratio == pytest.approx(0.7 - 0.602 / 600)
    story.add("b", 4, 1)
    assert story.step() == "b:0+4!"
    assert engine.new_token_ratio == pytest.approx(0.7 - 0.602 / 600)
    assert story.steps(3) == ["a", "a", "idle"]
    assert engine.new_token_ratio == 0.7


def test_admission_reckons_with_a_share_of_what_the_running_may_still_generate() -> None:
    """Of 100 tokens a's prompt takes 10; it may generate 59 more, 0.7 of that is 41.3: 48.7 are left.

    b costs its prompt, its limit and a page: 8 + 40 + 1 = 49 do not fit, 8 + 39 + 1 = 48 do.
    """
    for limit, expected in ((40, "a"), (39, "b:0+8!")):
        story = bench(100)
        story.add("a", 10, 50, limit=60)
        story.step()
        story.add("b", 8, 5, limit=limit)
        assert story.step() == expected


def test_a_full_batch_is_left_alone_until_it_shrinks() -> None:
    """b did not fit at first; the ratio falls and a nears its limit, but only an end reopens the door.

    Even then a's place is only seen to be free in the decode step after the one in which it ended.
    """
    story = bench(100)
    story.add("a", 10, 8, limit=60)
    story.add("c", 5, 12, limit=12)
    story.step()
    story.add("b", 8, 5, limit=40)
    assert story.steps(9) == ["a c"] * 7 + ["c", "b:0+8!"]


def crowded(*late: tuple[str, int, int], **knobs: object) -> Bench:
    """An old request of which little is expected any more, and late ones that were let in beside it.

    Old has 10 tokens of prompt and 40 to come in a cache of 60; 7 % of that is reckoned with.
    """
    story = bench(60, schedule_conservativeness=0.1, **{"chunked_prefill_size": 64, **knobs})
    story.add("old", 10, 40)
    story.steps(2)
    for name, prompt, output in late:
        story.add(name, prompt, output)
    return story


def until_retracted(story: Bench) -> list[str]:
    log = [story.step()]
    while "| -" not in log[-1]:
        assert len(log) < 100, log
        log.append(story.step())
    return log


def to_the_end(story: Bench) -> list[str]:
    log = story.steps(200)
    assert log[-1] == "idle"
    return log


def test_the_request_with_the_fewest_generated_tokens_is_retracted() -> None:
    """11 + 10 tokens are stored when both decode: 39 left, 19 steps of two."""
    story = crowded(("new", 10, 30))
    log = until_retracted(story)
    assert log == ["new:0+10!"] + ["old new"] * 19 + ["old | -new"]
    new = next(request for request, name in story.names.items() if name == "new")
    assert (new.preemptions, new.generated_tokens, new.blocks) == (1, 20, [])


def test_among_equals_the_longest_prompt_is_retracted() -> None:
    """10 + 1 + 4 + 6 tokens are stored when the three decode: 39 left, 13 steps of three."""
    story = crowded(("short", 4, 15), ("long", 6, 15))
    log = until_retracted(story)
    assert log == ["short:0+4! long:0+6!", *["old short long"] * 13, "old short | -long"]


def test_one_retraction_takes_as_many_as_a_step_needs() -> None:
    """Five rows of two pages need a third at once and none is free; one victim gives two, for four."""
    story = bench(40, page=4, schedule_conservativeness=0.01)
    for name in "abcde":
        story.add(name, 4, 12)
        assert story.step() == f"{name}:0+4!"
    assert story.steps(5) == [*["a b c d e"] * 4, "a b c | -e -d"]
    assert [story.names[r] for r in story.scheduler.waiting] == ["e", "d"]


def test_a_retraction_sets_the_ratio_to_what_the_rest_has_used_and_20_steps_more() -> None:
    """Old stays; it has generated 21 of 40 tokens: (21 + 20) / (40 + 1), not yet falling in this step."""
    story = crowded(("new", 10, 30))
    log = until_retracted(story)
    assert log.count("old new") == 19
    assert story.scheduler.new_token_ratio == (21 + 20) / (40 + 1)
    story.step()
    assert story.scheduler.new_token_ratio == pytest.approx(1 - 0.0602 / 600)


def test_a_retracted_request_goes_to_the_end_of_the_queue_and_yields_its_next_token() -> None:
    story = crowded(("new", 10, 30), ("later", 40, 1))
    until_retracted(story)
    assert [story.names[r] for r in story.scheduler.waiting] == ["later", "new"]
    assert "new:0+30!" in to_the_end(story)


def test_a_retracted_request_finds_its_prompt_in_the_cache_but_not_what_it_generated() -> None:
    story = crowded(("new", 10, 30), caching=True)
    until_retracted(story)
    engine = story.scheduler
    new = engine.waiting[0]
    assert engine.kv.cached_blocks(new) == len(engine.kv.lookup(new)) == 10
    assert new.cached_tokens == 0


def test_two_requests_that_fit_alone_but_not_together_both_finish() -> None:
    """The livelock trap: one is always kept, and whoever is retracted keeps the tokens it has generated."""
    for mixed in (False, True):
        story = crowded(("new", 10, 30), enable_mixed_chunk=mixed)
        until_retracted(story)
        to_the_end(story)
        assert sorted(story.completed) == ["new", "old"]


def test_a_mixed_iteration_evicts_for_the_chunk_that_must_go_on() -> None:
    """SGLang would fail to allocate: decodes have grown into the room that a long prompt was let in for."""
    story = crowded(("long", 42, 2), enable_mixed_chunk=True, chunked_prefill_size=5, max_num_seqs=4)
    log = until_retracted(story)
    assert log[-1].endswith("| -old")
    assert log[-1].startswith("long:")
    to_the_end(story)
    assert story.completed == ["long", "old"]


def said(*ids: int) -> Content:
    """Spans of 8 tokens; what follows the last named one is said by nobody else."""
    return Content((*ids, *(1000 * ids[-1] + i for i in range(6))), 8)


def test_the_longest_cached_prefix_comes_first() -> None:
    story = bench(caching=True, schedule_policy="lpm", max_num_seqs=1, chunked_prefill_size=64)
    story.add("first", 41, 2, content=said(1, 2, 3, 4, 5, 6))
    story.steps(2)
    story.add("none", 40, 1, content=said(9))
    story.add("some", 41, 1, content=said(1, 2, 8))
    story.add("most", 41, 1, content=said(1, 2, 3, 4, 5, 7))
    assert story.steps(3) == ["most:40+1!", "some:16+25!", "none:0+40!"]


def test_first_come_first_served_ignores_the_cache_and_so_does_lpm_beyond_128_waiting() -> None:
    for waiting, policy, expected in ((2, "fcfs", "none"), (129, "lpm", "none"), (128, "lpm", "most")):
        story = bench(caching=True, schedule_policy=policy, max_num_seqs=1, chunked_prefill_size=64)
        story.add("first", 41, 2, content=said(1, 2, 3, 4, 5, 6))
        story.steps(2)
        story.add("none", 40, 1)
        story.add("most", 41, 1, content=said(1, 2, 3, 4, 5, 7))
        for i in range(waiting - 2):
            story.add(f"r{i}", 3, 1)
        assert story.step().startswith(expected)


def test_of_requests_that_share_an_uncached_prefix_only_one_is_computed_now() -> None:
    """32 tokens or more in common: the second waits at the end of the queue and then finds them cached."""
    opening = (1, 2, 3, 4)
    story = bench(caching=True, schedule_policy="lpm", max_num_seqs=2, chunked_prefill_size=64)
    story.add("a", 40, 1, content=said(*opening, 50))
    story.add("b", 40, 1, content=said(*opening, 60))
    story.add("c", 20, 1, content=said(9, 9, 9))
    assert story.steps(2) == ["a:0+40! c:0+20!", "b:32+8!"]


def test_a_common_prefix_of_less_than_32_tokens_does_not_count() -> None:
    story = bench(caching=True, schedule_policy="lpm", max_num_seqs=2, chunked_prefill_size=64)
    story.add("a", 30, 1, content=said(1, 2, 3, 50))
    story.add("b", 30, 1, content=said(1, 2, 3, 60))
    story.add("c", 20, 1)
    assert story.step() == "a:0+30! b:0+30!"


def test_nothing_is_shared_within_one_iteration() -> None:
    """Pages enter the tree when they have been computed; then a prompt that came later finds them."""
    story = bench(caching=True, chunked_prefill_size=64)
    story.add("a", 24, 3, content=said(1, 2, 3))
    story.add("b", 24, 3, content=said(1, 2, 3))
    assert story.step() == "a:0+24! b:0+24!"
    late = story.add("late", 24, 3, content=said(1, 2, 3))
    assert story.step() == "late:23+1!"
    assert late.cached_tokens == 23


def test_a_request_that_can_never_be_admitted_is_refused_with_its_reason() -> None:
    """The estimate must be less than the whole cache, so one token and a page are never of use."""
    with pytest.raises(RequestTooLarge) as refusal:
        bench(40).add("x", 30, 9)
    assert str(refusal.value) == (
        "needs room for more than 40 tokens (prompt, output limit and a page), the cache has 40"
    )
    with pytest.raises(RequestTooLarge, match="exceed max_model_len 1000"):
        bench(5000).add("x", 990, 11)
    story = bench(40)
    story.add("x", 30, 8)
    to_the_end(story)
    assert story.completed == ["x"]


@settings(max_examples=100, deadline=None)
@given(
    limits=st.lists(st.sampled_from([10, 4096, 4097, 4200]), min_size=1, max_size=8),
    data=st.data(),
)
def test_the_outlook_is_the_clipped_sum_at_every_clock(limits: list[int], data: st.DataObject) -> None:
    group, outlook, inside = DecodeGroup(1), Outlook(), []
    for i, limit in enumerate(limits):
        request = Request(i, 0, 5, limit, generated_tokens=1)
        group.join(request)
        outlook.join(request)
        inside.append(request)
        if len(inside) > 2 and data.draw(st.booleans()):
            leaver = inside.pop(data.draw(st.integers(0, len(inside) - 1)))
            group.leave(leaver)
            outlook.leave(leaver)
        group.steps += data.draw(st.integers(0, 130))
        expected = sum(min(r.output_limit - group.generated(r), 4096) for r in inside)
        assert outlook.tokens(group.steps) == expected
