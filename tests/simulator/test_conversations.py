"""Conversations on an engine with prefix caching: what was said and answered is not computed again."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from simulator.scenario import Scenario
from simulator.simulation import simulate


def chat(policy: str, *, caching: bool = True) -> Scenario:
    """Two turns at most in flight, so that nothing is evicted."""
    return Scenario.model_validate(
        {
            "model": "meta-llama/Llama-3.1-8B",
            "hardware": "h100-sxm",
            "engine": {"policy": policy, "prefix_caching": caching, "block_size": 16},
            "workload": {
                "arrivals": {"process": "closed", "concurrency": 1},
                "lengths": {"fixed": {"prompt": 100, "output": 50}},
                "sessions": {"turns_mean": 5, "think_s": {"mean": 2}, "system_prompt_tokens": 40},
                "requests": 40,
            },
        }
    )


@pytest.mark.parametrize("policy", ["vllm-v1", "sglang"])
def test_a_turn_finds_all_full_blocks_of_the_prompt_and_the_answer_before(policy: str) -> None:
    """Of an answer's tokens the last is never computed: it is only said."""
    requests = simulate(chat(policy), folder=Path()).tables.requests
    prompts, cached = requests["prompt_tokens"].tolist(), requests["cached_tokens"].tolist()
    follows = [after > before for before, after in pairwise(prompts)]
    assert sum(follows) > 20
    for number, goes_on in enumerate(follows):
        if goes_on:
            assert cached[number + 1] == (prompts[number] + 49) // 16 * 16


def test_without_prefix_caching_every_turn_is_computed_from_the_start() -> None:
    requests = simulate(chat("vllm-v1", caching=False), folder=Path()).tables.requests
    assert not np.any(requests["cached_tokens"])
