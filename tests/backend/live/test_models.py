"""Greedy tokens of every family equal those of transformers' own generate, on both paths."""

from __future__ import annotations

import numpy as np
import pytest

from backend.prompts import Prompt
from simulator.engine.kv_cache import KVCache
from simulator.engine.vllm_v1 import VllmV1
from tests.backend.live.tiny import FAMILIES, FAST, POSITIONS, VOCABULARY, serve

CASES = [(family, "general") for family in FAMILIES] + [(family, "fast") for family in FAST]


def prompts(count: int, seed: int = 5) -> list[Prompt]:
    generator = np.random.default_rng(seed)
    return [
        Prompt(generator.integers(3, VOCABULARY, length).tolist(), output_tokens=24)
        for length in generator.integers(1, 60, count)
    ]


def engine(blocks: int = 64, block_size: int = 8, **knobs: object) -> VllmV1:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": POSITIONS, **knobs}
    return VllmV1(KVCache(blocks, block_size, prefix_caching=True), **settings)


@pytest.mark.parametrize(("family", "path"), CASES)
def test_greedy_tokens_equal_generate(family, path, model_of, oracle_of) -> None:
    model, oracle, asked = model_of(family, path), oracle_of(family), prompts(5)
    scheduler = engine()
    served = serve(model, scheduler, 64, 8, asked)
    for i, prompt in enumerate(asked):
        assert served.answers[i] == oracle.answer(prompt.tokens, 24), f"request {i}"
    assert len({token for answer in served.answers.values() for token in answer}) > 12, "a dull model"
    assert scheduler.used_blocks == 0
    assert served.executor.requests == 0
