"""Stops, limits, cancels, sampling and memory of the live executor."""

from __future__ import annotations

import dataclasses
import gc
import os
import resource
from collections.abc import Callable

import numpy as np
import pytest
import torch

from backend.models import LiveModel, load_live_model
from backend.prompts import Prompt, SyntheticPrompts
from backend.sampling import Sampling
from simulator.engine.kv_cache import KVCache
from simulator.engine.request import Content, Request
from simulator.engine.static import Static
from simulator.engine.vllm_v1 import VllmV1
from tests.backend.live.test_models import prompts
from tests.backend.live.tiny import POSITIONS, Served, serve


def engine(blocks: int = 64, block_size: int = 8, **knobs: object) -> VllmV1:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": POSITIONS, **knobs}
    return VllmV1(KVCache(blocks, block_size, prefix_caching=True), **settings)


@pytest.fixture
def model(model_of) -> LiveModel:
    return model_of("llama", "fast")


def run(model: LiveModel, asked: list[Prompt], **options: object) -> Served:
    return serve(model, options.pop("scheduler", engine()), 64, 8, asked, **options)


def test_an_answer_ends_with_its_stop_token_or_at_the_limit(model: LiveModel) -> None:
    plain = prompts(1)[0]
    whole = run(model, [plain]).answers[0]
    stop = whole[7]
    first = whole.index(stop)
    stopped = Prompt(plain.tokens, stops=frozenset((stop,)))
    assert run(model, [stopped], outputs=24).answers[0] == whole[: first + 1]
    assert run(model, [stopped], outputs=first).answers[0] == whole[:first]
    assert run(model, [Prompt(plain.tokens)], outputs=1).answers[0] == whole[:1]


def test_a_replayed_length_ignores_stops(model: LiveModel) -> None:
    plain = prompts(1)[0]
    whole = run(model, [plain]).answers[0]
    replayed = Prompt(plain.tokens, stops=frozenset(whole), output_tokens=9)
    assert run(model, [replayed]).answers[0] == whole[:9]


def test_no_stop_before_the_least_length(model: LiveModel) -> None:
    plain = prompts(1)[0]
    stop = run(model, [plain]).answers[0][0]
    held = Prompt(plain.tokens, stops=frozenset((stop,)), least_tokens=5)
    found = run(model, [held], outputs=24).answers[0]
    assert stop not in found[:5]
    assert len(found) >= 5


def test_sampled_answers_do_not_depend_on_mates_chunks_or_evictions(model: LiveModel) -> None:
    asked = [
        Prompt(prompt.tokens, Sampling(0.8, 40, 0.95, seed=i), output_tokens=24)
        for i, prompt in enumerate(prompts(6, seed=9))
    ]
    together = run(model, asked).answers
    tight = serve(model, engine(16, 8, full_isl_gate=False), 16, 8, asked)
    assert tight.preemptions > 0
    assert tight.answers == together
    for i, prompt in enumerate(asked):
        assert run(model, [prompt]).answers[0] == together[i]
    reseeded = [
        Prompt(p.tokens, p.sampling._replace(seed=99 + i), output_tokens=24) for i, p in enumerate(asked)
    ]
    assert run(model, reseeded).answers != together


def test_padded_prompts_really_take_part(model: LiveModel, oracle_of) -> None:
    """A static batch computes rows times width positions, and its tokens are those of the lone requests."""
    asked = prompts(4, seed=3)
    widths = []
    forward = model.forward

    class Watching:
        def __call__(self, batch, attend):
            widths.append(len(batch.tokens))
            return forward(batch, attend)

    watched = dataclasses.replace(model, forward=Watching())
    scheduler = Static(KVCache(64, 8), max_num_seqs=4, max_model_len=POSITIONS)
    served = serve(watched, scheduler, 64, 8, asked)
    longest = max(len(prompt.tokens) for prompt in asked)
    assert widths == [4 * longest] + [4] * 23
    for i, prompt in enumerate(asked):
        assert served.answers[i] == oracle_of("llama").answer(prompt.tokens, 24)


def test_fast_and_general_logits_agree(model_of: Callable[..., LiveModel]) -> None:
    for family in ("llama", "qwen2", "qwen3", "mistral"):
        found = []
        for path in ("fast", "general"):
            rows, model = [], model_of(family, path)
            forward = model.forward

            def keep(batch, attend, forward=forward, rows=rows):
                logits = forward(batch, attend)
                rows.append(logits.clone())
                return logits

            serve(dataclasses.replace(model, forward=keep), engine(), 64, 8, prompts(3))
            found.append(np.concatenate([part.numpy() for part in rows]))
        np.testing.assert_allclose(found[0], found[1], rtol=2e-4, atol=2e-4, err_msg=family)


def test_prompts_are_equal_exactly_as_far_as_their_content_is() -> None:
    made = SyntheticPrompts(1000, seed=4)
    one = Request(0, 0, 20, 1, Content((7, -8, 9), 8))
    two = Request(1, 0, 24, 1, Content((7, -8, 10), 8))
    alike = made.tokens(one), made.tokens(two)
    assert alike[0][:16] == alike[1][:16]
    assert alike[0][16:] != alike[1][16:20]
    assert made.tokens(one) == alike[0]
    assert [len(tokens) for tokens in alike] == [20, 24]
    plain = [made.tokens(Request(i, 0, 16, 1)) for i in range(2)]
    assert plain[0] != plain[1]
    assert min(map(min, plain)) >= 3


@pytest.mark.parametrize("requests", [10_000 if os.environ.get("SERVETWIN_SOAK") else 1000])
def test_short_requests_with_random_cancels_leave_memory_flat(requests: int) -> None:
    """Objects and resident memory after the first fifth of the run are those at its end."""
    model = load_live_model("servetwin/llama-tiny", "float32")
    generator = np.random.default_rng(0)
    scheduler = engine(96, 8, max_num_seqs=32, max_num_batched_tokens=128)
    asked = [
        Prompt(generator.integers(3, 2000, generator.integers(1, 8)).tolist(), output_tokens=int(output))
        for output in generator.integers(1, 5, requests)
    ]
    counts: list[tuple[int, int]] = []

    def cancel_some(round_: int, scheduler, executor, offered) -> None:
        if round_ % 5 == 0:
            alive = list(scheduler.running) + list(scheduler.waiting)
            if alive:
                victim = alive[generator.integers(len(alive))]
                scheduler.cancel(victim)
                executor.forget(victim)
        if round_ % (requests // 100) == 0:
            gc.collect()
            tensors = sum(type(thing) is torch.Tensor for thing in gc.get_objects())
            counts.append((tensors, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
        del offered[:-200]

    served = serve(model, scheduler, 96, 8, asked, after=cancel_some, arrive=8)
    assert served.executor.requests == 0
    assert scheduler.used_blocks == 0
    early, late = counts[len(counts) // 5], counts[-1]
    assert late[0] <= early[0] + 5, "tensors are left behind"
    assert late[1] - early[1] < 64 * 1024, "resident memory grew"
