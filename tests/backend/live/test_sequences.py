"""Parallel samples and beam search on real models, over shared KV blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.beam_search import BeamRules
from backend.executor import TorchExecutor
from backend.live import run_live
from backend.models import LiveModel
from backend.prompts import Prompt
from backend.sampling import Sampling
from simulator.engine.kv_cache import KVCache
from simulator.engine.request import Decoding, Request
from simulator.engine.scheduler import Scheduler
from simulator.engine.sequence_group import SIBLING_IDS
from simulator.engine.vllm_0_1 import Vllm01
from simulator.engine.vllm_v0 import VllmV0
from simulator.engine.vllm_v1 import VllmV1
from simulator.scenario import Scenario
from tests.backend.live.tiny import POSITIONS, VOCABULARY, Oracle, Served, serve

STOPS: tuple[tuple[int, ...], ...] = ((), (7,), tuple(range(20, 36)), tuple(range(3, 200)))
RULES = [BeamRules(p, early) for p in (1.0, 0.0, 2.0, -1.0) for early in (False, True, "never")]


def prompts(count: int, seed: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(3, VOCABULARY, generator.integers(1, 40)).tolist() for _ in range(count)]


def scheduler(policy: str, blocks: int, block_size: int, **knobs: object) -> Scheduler:
    cache = KVCache(blocks, block_size, prefix_caching=policy == "vllm-v1")
    limits = {"max_num_seqs": 12, "max_num_batched_tokens": 64, "max_model_len": POSITIONS, **knobs}
    made = {"vllm-0.1": Vllm01, "vllm-v0": VllmV0, "vllm-v1": VllmV1}[policy]
    return made(cache, **limits)


def answer(model: LiveModel, asked: Sequence[Prompt], decoding: Decoding, engine: Scheduler) -> Served:
    """Serve with all accounting checked after every iteration; nothing may be left at the end."""
    families: dict[Request, tuple[Request, ...]] = {}

    def check(_: int, engine: Scheduler, executor: TorchExecutor, requests: list[Request]) -> None:
        for request in requests:
            families.setdefault(request, request.group.sequences if request.group else (request,))
        engine.kv.check([sequence for family in families.values() for sequence in family])

    cache = engine.kv
    served = serve(
        model, engine, cache.blocks, cache.block_size, asked, outputs=16, after=check, decoding=decoding
    )
    assert not served.refused
    assert engine.used_blocks == cache.saved_blocks == served.executor.requests == 0
    return served


def searched(oracle: Oracle, prompt: Prompt, width: int, outputs: int = 16) -> list[int]:
    """What transformers finds."""
    found = oracle.module.generate(
        torch.tensor([list(prompt.tokens)]),
        attention_mask=torch.ones(1, len(prompt.tokens), dtype=torch.long),
        max_new_tokens=outputs,
        min_new_tokens=prompt.least_tokens or None,
        num_beams=width,
        do_sample=False,
        eos_token_id=list(prompt.stops) or None,
        pad_token_id=0,
        length_penalty=prompt.rules.length_penalty,
        early_stopping=prompt.rules.early_stopping,
    )
    return found[0, len(prompt.tokens) :].tolist()


@st.composite
def searches(draw: st.DrawFn) -> tuple[list[Prompt], int, Scheduler]:
    width, size = draw(st.integers(2, 4)), draw(st.sampled_from([1, 3, 8, 16]))
    stops, rules = draw(st.sampled_from(STOPS)), draw(st.sampled_from(RULES))
    least = draw(st.sampled_from([0, 5])) if stops else 0
    asked = [
        Prompt(tokens, stops=frozenset(stops), least_tokens=least, rules=rules)
        for tokens in prompts(draw(st.integers(1, 5)), draw(st.integers(0, 1000)))
    ]
    alone = 56 // size + 4 + width * (16 // size + 3)  # blocks of the longest request
    chunked = {"chunked_prefill": True, "eager": draw(st.booleans()), "max_num_batched_tokens": 17}
    policy, knobs = draw(st.sampled_from([("vllm-0.1", {}), ("vllm-v0", {}), ("vllm-v0", chunked)]))
    return asked, width, scheduler(policy, draw(st.integers(alone, 3 * alone)), size, **knobs)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=searches())
def test_beams_equal_those_of_generate(model_of, oracle_of, case) -> None:
    """Whatever the stops and rules, the block size, the mates and the moves to the host and back."""
    asked, width, engine = case
    served = answer(model_of("llama", "fast"), asked, Decoding(width, beam_search=True), engine)
    for i, prompt in enumerate(asked):
        assert served.answers[i] == searched(oracle_of("llama"), prompt, width), f"request {i}"


@pytest.mark.parametrize("family", ["gpt2", "gemma3_text", "qwen3_moe"])
def test_beams_of_other_families(family: str, model_of, oracle_of) -> None:
    asked = [Prompt(tokens, stops=frozenset(STOPS[2])) for tokens in prompts(4, seed=5)]
    engine = scheduler("vllm-0.1", 200, 4)
    served = answer(model_of(family, "general"), asked, Decoding(3, beam_search=True), engine)
    for i, prompt in enumerate(asked):
        assert served.answers[i] == searched(oracle_of(family), prompt, 3), f"request {i}"


def watched(engine: Scheduler) -> list[object]:
    """Everything that a scheduler has had moved and copied."""
    seen: list[object] = []
    plan_once = engine.plan

    def plan():
        plan = plan_once()
        if plan is not None:
            seen.extend((*plan.swapped_out, *plan.copies))
        return plan

    engine.plan = plan
    return seen


def test_the_cases_do_move_and_copy(model_of: Callable[..., LiveModel], oracle_of) -> None:
    """The worlds above are worth drawing: one like them moves searches to the host and copies on write."""
    asked = [Prompt(tokens) for tokens in prompts(6, seed=1)]
    engine = scheduler("vllm-0.1", 40, 4)
    seen = watched(engine)
    served = answer(model_of("llama", "fast"), asked, Decoding(3, beam_search=True), engine)
    assert {type(what).__name__ for what in seen} == {"BlockCopy", "CopyOnWrite"}
    assert served.preemptions > 0
    assert served.answers[0] == searched(oracle_of("llama"), asked[0], 3)


def samples_of(served: Served, request: int, count: int) -> list[list[int]]:
    return [served.answers[request + place * SIBLING_IDS] for place in range(count)]


def sampled(count: int, stops: Sequence[int] = ()) -> list[Prompt]:
    return [
        Prompt(tokens, Sampling(0.9, 50, 0.95, seed=1000 * i), stops=frozenset(stops))
        for i, tokens in enumerate(prompts(count, seed=3))
    ]


def test_samples_depend_on_nothing_but_their_prompt_and_seed(model_of) -> None:
    """Neither on mates, policy, block size, evictions, siblings that stop early, nor on sharing at all."""
    model, asked = model_of("llama", "fast"), sampled(5, STOPS[2])
    found = []
    for policy, blocks, size, knobs in (
        ("vllm-0.1", 300, 4, {}),
        ("vllm-0.1", 48, 4, {}),
        ("vllm-v0", 300, 16, {}),
        ("vllm-v0", 60, 3, {"chunked_prefill": True, "max_num_batched_tokens": 20}),
        ("vllm-v1", 300, 4, {}),
        ("vllm-v1", 30, 4, {"full_isl_gate": False}),
    ):
        served = answer(model, asked, Decoding(4), scheduler(policy, blocks, size, **knobs))
        found.append([samples_of(served, i, 4) for i in range(5)])
    assert all(answers == found[0] for answers in found[1:])
    lengths = {len(sample) for answers in found[0] for sample in answers}
    assert len(lengths) > 3, "the samples do not end raggedly"
    for i, prompt in enumerate(asked):
        for place, sample in enumerate(found[0][i]):
            sampling = prompt.sampling._replace(seed=prompt.sampling.seed + place)
            alone = Prompt(prompt.tokens, sampling, stops=prompt.stops)
            assert answer(model, [alone], Decoding(), scheduler("vllm-v1", 64, 8)).answers[0] == sample
    assert len({tuple(sample) for sample in found[0][0]}) > 1


def test_v1_computes_a_prompt_once_for_all_samples(model_of) -> None:
    """All of its full blocks: 40 tokens in blocks of 8 leave 3 samples one block each to compute."""
    engine = scheduler("vllm-v1", 64, 8)
    chunks = []
    plan_once = engine.plan

    def plan():
        plan = plan_once()
        chunks.extend(chunk.tokens for chunk in plan.prefills)
        return plan

    engine.plan = plan
    tokens = np.random.default_rng(2).integers(3, VOCABULARY, 40).tolist()
    answer(model_of("llama", "fast"), [Prompt(tokens, output_tokens=4)], Decoding(4), engine)
    assert chunks == [40, 8, 8, 8]


def test_a_cancelled_search_leaves_nothing_behind(model_of) -> None:
    model, engine = model_of("llama", "fast"), scheduler("vllm-0.1", 64, 4)
    gone: list[Request] = []

    def cancel(iteration: int, engine: Scheduler, executor: TorchExecutor, requests: list[Request]) -> None:
        if iteration == 6:
            gone.append(requests[0])
            engine.cancel(requests[0])
            executor.forget(requests[0])

    asked = [Prompt(tokens) for tokens in prompts(2, seed=8)]
    served = serve(model, engine, 64, 4, asked, after=cancel, decoding=Decoding(3, beam_search=True))
    assert [request.id for request in gone] == [0]
    assert list(served.answers) == [1]
    assert engine.used_blocks == engine.kv.saved_blocks == served.executor.requests == 0
    assert not served.executor._searches


@pytest.mark.parametrize("key", ["samples", "beams"])
def test_a_scenario_runs_live_as_it_is_simulated(key: str) -> None:
    """Every request decodes as three rows that share its prompt, and the summary tells what that saved."""
    asked = {
        "arrivals": {"process": "burst"},
        "lengths": {"fixed": {"prompt": 30, "output": 12}},
        "requests": 4,
        key: 3,
    }
    scenario = Scenario.model_validate(
        {
            "model": "servetwin/llama-tiny",
            "hardware": "cpu",
            "dtype": "float32",
            "engine": {"policy": "vllm-0.1", "block_size": 4, "kv_blocks": 400, "max_model_len": 64},
            "workload": asked,
        }
    )
    run = run_live(scenario)
    assert run.summary["requests"]["completed"] == 4
    assert run.tables.iterations["decodes"].max() == 12
    assert run.tables.gap_rows.sum() == 4 * 3 * 11
    assert run.summary["sharing"]["copies"] >= 8  # two of three samples copy each prompt's last block
    assert 0 < run.summary["sharing"]["saved"] < 1
