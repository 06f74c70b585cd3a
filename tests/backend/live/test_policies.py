"""Every policy, whatever its knobs, blocks, chunks, evictions and mates, gives the reference's tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.prompts import Prompt
from tests.backend.live.tiny import VOCABULARY, serve
from tests.laws.engines import ENGINES, LONGEST

ANSWER = 30


def pool() -> list[list[int]]:
    """Prompts of which many begin alike, one with another one whole as its beginning."""
    generator = np.random.default_rng(8)
    opening = generator.integers(3, VOCABULARY, 40).tolist()
    lengths = [(0, 1), (0, 5), (0, 33), (9, 3), (16, 20), (24, 0), (24, 9), (32, 1), (40, 0), (40, 20)]
    return [opening[:shared] + generator.integers(3, VOCABULARY, own).tolist() for shared, own in lengths]


@st.composite
def cases(draw: st.DrawFn, policy: str) -> dict[str, object]:
    block_size = draw(st.sampled_from([1, 2, 4, 8] if policy == "orca" else [1, 3, 4, 8, 16]))
    longest = -(-LONGEST // block_size)
    return {
        "block_size": block_size,
        "blocks": draw(st.integers(longest + 4, 3 * longest)),
        "knobs": draw(ENGINES[policy].knobs),
        "picks": draw(st.lists(st.integers(0, 9), min_size=1, max_size=9)),
        "outputs": draw(st.lists(st.integers(1, ANSWER), min_size=9, max_size=9)),
        "arrive": draw(st.integers(1, 9)),
    }


@pytest.mark.parametrize("policy", sorted(ENGINES))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_tokens_equal_the_reference(policy, model_of, oracle_of, data) -> None:
    case = data.draw(cases(policy))
    model, oracle, known = model_of("llama", "fast"), oracle_of("llama"), pool()
    scheduler = ENGINES[policy].make(case["blocks"], case["block_size"], dict(case["knobs"]))
    asked = [
        Prompt(known[pick], output_tokens=output)
        for pick, output in zip(case["picks"], case["outputs"], strict=False)
    ]
    served = serve(model, scheduler, case["blocks"], case["block_size"], asked, arrive=case["arrive"])
    for i, prompt in enumerate(asked):
        if i in served.answers or i not in served.refused:
            expected = oracle.answer(prompt.tokens, ANSWER)[: prompt.output_tokens]
            assert served.answers[i] == expected, f"request {i}"
    assert scheduler.used_blocks == 0
    assert served.executor.requests == 0


@pytest.mark.parametrize("family", ["gemma3_text", "opt", "mistral"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_other_families_under_paging_padding_and_eviction(family, model_of, oracle_of, data) -> None:
    policy = data.draw(st.sampled_from(["static", "vllm-v1"]))
    case = data.draw(cases(policy))
    model, oracle, known = model_of(family, "general"), oracle_of(family), pool()
    scheduler = ENGINES[policy].make(case["blocks"], case["block_size"], dict(case["knobs"]))
    asked = [Prompt(known[pick], output_tokens=ANSWER) for pick in case["picks"]]
    served = serve(model, scheduler, case["blocks"], case["block_size"], asked, arrive=case["arrive"])
    for i, prompt in enumerate(asked):
        if i not in served.refused:
            assert served.answers[i] == oracle.answer(prompt.tokens, ANSWER), f"request {i}"


@pytest.mark.parametrize("chunked", [False, True])
def test_swapped_requests_come_back_with_their_keys_and_values(chunked, model_of, oracle_of) -> None:
    knobs = {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 40 if chunked else 3 * LONGEST,
        "chunked_prefill": chunked,
        "watermark": 0.0,
        "swap_blocks": 300,
        "padded_budget": False,
        "eager": True,
    }
    scheduler, copies = ENGINES["vllm-v0"].make(20, 8, knobs), []
    plan_once = scheduler.plan

    def plan():
        plan = plan_once()
        if plan is not None:
            copies.extend((*plan.swapped_out, *plan.swapped_in))
        return plan

    scheduler.plan = plan
    asked = [Prompt(prompt, output_tokens=ANSWER) for prompt in pool()]
    served = serve(model_of("llama", "fast"), scheduler, 20, 8, asked)
    assert len(copies) > 2, "nobody was swapped"
    for i, prompt in enumerate(asked):
        assert served.answers[i] == oracle_of("llama").answer(prompt.tokens, ANSWER), f"request {i}"


def test_the_cases_do_evict_and_reuse(model_of) -> None:
    """The worlds above are worth drawing: evictions and shared prefixes happen in one like them."""
    knobs = {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 40,
        "prefix_caching": True,
        "full_isl_gate": False,
    }
    scheduler = ENGINES["vllm-v1"].make(20, 8, knobs)
    asked = [Prompt(prompt, output_tokens=ANSWER) for prompt in pool()]
    served = serve(model_of("llama", "fast"), scheduler, 20, 8, asked)
    assert served.preemptions > 0
    assert served.cached_tokens > 0
