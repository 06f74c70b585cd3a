"""Parallel samples and beams as stories.

Source: PagedAttention (arXiv:2309.06180), figures 8 and 9; vLLM 0.1.0; vLLM V1's parallel_sampling.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import Plan
from simulator.engine.request import Decoding, Request
from simulator.engine.scheduler import Scheduler
from simulator.engine.vllm_0_1 import Vllm01
from simulator.engine.vllm_v0 import VllmV0
from simulator.engine.vllm_v1 import VllmV1
from simulator.errors import RequestTooLarge

LIMITS: dict[str, object] = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 1000}


def vllm_0_1(blocks: int = 100, **knobs: object) -> Vllm01:
    return Vllm01(KVCache(blocks, 4), **{**LIMITS, "watermark": 0.0, **knobs})


def vllm_v1(blocks: int = 100, **knobs: object) -> VllmV1:
    return VllmV1(KVCache(blocks, 4, prefix_caching=True), **{**LIMITS, **knobs})


def ask(engine: Scheduler, prompt: int, limit: int, decoding: Decoding, number: int = 0) -> Request:
    request = Request(number, number, prompt, limit, decoding=decoding)
    engine.add(request)
    return request


def step(engine: Scheduler, *stopped: Request, parents: list[int] | None = None) -> Plan:
    """One iteration, in which these sequences stop and the first search goes on from these beams."""
    plan = engine.plan()
    assert plan is not None
    if parents is not None:
        search = next(r for r in plan.decodes.members if r.decoding.beam_search)
        search.group.parents = parents
    engine.commit(plan, stopped)
    return plan


def tables(request: Request) -> list[list[int]]:
    return [sequence.blocks for sequence in request.group.sequences]


def test_two_samples_share_a_prompt_and_the_first_to_write_copies_its_last_block() -> None:
    """Figure 8: seven prompt tokens in blocks of four; the second sample keeps the original."""
    engine = vllm_0_1()
    request = ask(engine, 7, 9, Decoding(2))
    assert step(engine).copies == ()
    first, second = tables(request)
    assert first == second
    assert engine.used_blocks == 2
    original = first[1]
    plan = step(engine)
    first, second = tables(request)
    assert [(c.request, c.source, c.target) for c in plan.copies] == [(request, original, first[1])]
    assert first[0] == second[0]
    assert second[1] == original != first[1]
    assert engine.used_blocks == 3
    assert plan.saved_blocks == engine.kv.saved_blocks == 1
    assert plan.shape().decodes == 2


def test_a_full_last_block_is_shared_for_good() -> None:
    """Eight prompt tokens fill two blocks: each sample starts a new one, and nothing is copied."""
    engine = vllm_0_1()
    ask(engine, 8, 9, Decoding(3))
    assert [step(engine).copies for _ in range(4)] == [()] * 4
    assert engine.used_blocks == 2 + 3


def test_beams_free_what_nobody_continues_and_share_what_several_do() -> None:
    """Like figure 9: of four beams the first and the third go on, twice each."""
    engine = vllm_0_1()
    request = ask(engine, 4, 20, Decoding(4, beam_search=True))
    step(engine)
    step(engine)
    assert engine.used_blocks == 1 + 4
    before = tables(request)
    step(engine, parents=[0, 2, 0, 2])
    assert tables(request) == [before[0], before[2], before[0], before[2]]
    assert engine.used_blocks == 1 + 2
    plan = step(engine)
    assert len(plan.copies) == 2
    assert engine.used_blocks == 1 + 4


def test_beams_that_all_continue_one_share_everything_until_they_write() -> None:
    engine = vllm_0_1()
    ask(engine, 4, 20, Decoding(3, beam_search=True))
    for parents in (None, None, [1, 1, 1]):
        step(engine, parents=parents)
    assert engine.used_blocks == 2
    assert engine.kv.saved_blocks == 4


@pytest.mark.parametrize("chunked", [False, True])
def test_all_sequences_make_way_together_for_the_host_and_come_back_sharing(chunked: bool) -> None:
    """Seventeen blocks: b's three samples leave and return as they were, what they share in one copy."""
    engine = VllmV0(
        KVCache(17, 4), **{**LIMITS, "watermark": 0.0, "chunked_prefill": chunked, "eager": False}
    )
    a = ask(engine, 12, 20, Decoding(2))
    b = ask(engine, 9, 14, Decoding(3), number=1)
    out = back = None
    while (plan := engine.plan()) is not None:
        out, back = out or plan.swapped_out, back or plan.swapped_in
        done = [s for r, n in ((a, 20), (b, 14)) for s in r.group.sequences if tokens(engine, s) + 1 == n]
        engine.commit(plan, [s for s in done if s in plan.decodes.members])
        engine.kv.check([*held(a), *held(b)])
    assert out
    assert back
    assert out[0].request is back[0].request is b
    assert out[0].blocks == back[0].blocks
    assert out[0].blocks < 3 * 3, "shared blocks cross once"
    assert (a.preemptions, b.preemptions) == (0, 1)
    assert engine.used_blocks == 0


def tokens(engine: VllmV0, sequence: Request) -> int:
    return engine.group.generated(sequence) if sequence in engine.group.members else 0


def held(request: Request) -> tuple[Request, ...]:
    return request.group.sequences


def test_samples_take_a_seat_each() -> None:
    engine = vllm_0_1(max_num_seqs=5)
    requests = [ask(engine, 4, 9, Decoding(2), number=i) for i in range(3)]
    assert [chunk.request for chunk in step(engine).prefills] == requests[:2]
    assert step(engine, requests[0].group.sequences[0]).prefills == ()
    assert [chunk.request for chunk in step(engine).prefills] == requests[2:], "a stopped sample made room"


def test_an_answer_is_complete_when_its_last_sample_is() -> None:
    engine = vllm_0_1()
    request = ask(engine, 6, 9, Decoding(2))
    first, second = request.group.sequences
    step(engine)
    plan = engine.plan()
    assert engine.commit(plan, [first]) == []
    assert first.blocks == []
    plan = engine.plan()
    assert plan.shape().decodes == 1
    assert engine.commit(plan, [second]) == [request]
    assert request.generated_tokens == 3
    assert (engine.busy, engine.used_blocks) == (False, 0)


@pytest.mark.parametrize("make", [vllm_0_1, vllm_v1])
def test_one_sequence_has_no_group(make: Callable[[], Scheduler]) -> None:
    engine = make()
    assert ask(engine, 6, 9, Decoding(1)).group is None


def test_v1_fans_samples_out_into_requests_that_find_the_prompt_in_the_cache() -> None:
    """Nine prompt tokens: two full blocks are shared, the third block is everybody's own."""
    engine = vllm_v1()
    request = ask(engine, 9, 3, Decoding(3))
    plan = engine.plan()
    assert [(chunk.start, chunk.tokens) for chunk in plan.prefills] == [(0, 9), (8, 1), (8, 1)]
    assert engine.used_blocks == 2 + 3
    assert engine.commit(plan, []) == []
    samples = request.group.sequences
    assert len({tuple(sample.blocks[:2]) for sample in samples}) == 1
    plan = engine.plan()
    assert plan.copies == ()
    assert engine.commit(plan, samples[1:]) == []
    plan = engine.plan()
    assert engine.commit(plan, samples[:1]) == [request]
    assert engine.used_blocks == 0


def test_v1_samples_queue_and_leave_alone() -> None:
    """Two seats for three samples: the last one waits for its turn, as a stranger would."""
    engine = vllm_v1(max_num_seqs=2)
    request = ask(engine, 9, 3, Decoding(3))
    samples = request.group.sequences
    assert len(step(engine).prefills) == 2
    assert engine.waiting_requests == 1
    step(engine, samples[0])
    assert [chunk.request for chunk in step(engine).prefills] == [samples[2]]
    engine.cancel(request)
    assert (engine.busy, engine.used_blocks) == (False, 0)


def test_other_prompts_of_the_same_length_share_nothing_in_v1() -> None:
    engine = vllm_v1()
    ask(engine, 9, 3, Decoding(2))
    ask(engine, 9, 3, Decoding(2), number=1)
    assert [chunk.start for chunk in step(engine).prefills] == [0, 8, 0, 8]


def test_what_could_never_run_is_refused() -> None:
    with pytest.raises(RequestTooLarge, match="its 9 sequences exceed max_num_seqs 8"):
        ask(vllm_0_1(), 4, 4, Decoding(9))
    with pytest.raises(RequestTooLarge, match="needs 10 KV blocks beside 3 that must stay free"):
        ask(vllm_0_1(blocks=12), 5, 12, Decoding(3))
    ask(vllm_0_1(blocks=13), 5, 12, Decoding(3))
