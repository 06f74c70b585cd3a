"""Every policy by its name, from a scenario's settings to its answers."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import BlockCopy, Plan
from simulator.engine.request import Request
from simulator.engine.vllm_v0 import VllmV0
from simulator.engine_settings import VllmV0Settings
from simulator.executor import SimulatedExecutor
from simulator.metrics import Summary
from simulator.policies import POLICIES, make_scheduler
from simulator.scenario import Scenario
from simulator.simulation import simulate
from tests.laws.worlds import ToyCost


def summary(**engine: Any) -> Summary:
    workload = {
        "arrivals": {"process": "poisson", "rate_per_s": 20},
        "lengths": {"uniform": {"prompt": [10, 900], "output": [1, 200]}},
        "requests": 200,
    }
    scenario = Scenario.model_validate(
        {
            "model": "meta-llama/Llama-3.1-8B",
            "hardware": "a100-80-sxm",
            "engine": {"max_model_len": 2048, **engine},
            "workload": workload,
        }
    )
    return simulate(scenario).summary


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_answers_a_scenario_that_only_names_it(policy: str) -> None:
    assert summary(policy=policy)["requests"]["completed"] == 200


def v0(**settings: Any) -> VllmV0:
    engine = VllmV0Settings(**settings)
    scheduler = make_scheduler(engine, 100, 8192, lambda: 8192, 2**20)
    assert isinstance(scheduler, VllmV0)
    return scheduler


def test_vllm_v0s_token_limit_is_that_of_the_release_where_none_is_given() -> None:
    """The longest sequence or 2,048 for whole prompts, 512 for chunks."""
    assert v0().max_num_batched_tokens == 8192
    assert v0(chunked_prefill=True).max_num_batched_tokens == 512
    assert v0(max_num_batched_tokens=9000).max_num_batched_tokens == 9000


def test_swap_space_is_counted_in_blocks_of_the_model() -> None:
    """Blocks of 1 MiB: four GiB hold 4,096."""
    assert v0().swap is None
    roomy, tight = v0(preemption_mode="swap").swap, v0(preemption_mode="swap", swap_space_gib=0.01).swap
    assert roomy is not None
    assert tight is not None
    assert (roomy.blocks, tight.blocks) == (4096, 10)


def test_swapping_costs_the_time_of_its_blocks() -> None:
    executor = SimulatedExecutor(ToyCost(), block_copy_ns=100.5)
    group = VllmV0(KVCache(4, 4), max_num_seqs=1, max_num_batched_tokens=9, max_model_len=9).group
    request = Request(0, 0, 1, 1)
    assert executor.copy_ns(Plan((), group)) == 0
    assert executor.copy_ns(Plan((), group, swapped_out=(BlockCopy(request, 3),))) == 301
    assert executor.copy_ns(Plan((), group, swapped_in=(BlockCopy(request, 2),) * 2)) == 402


def test_swapping_and_recomputing_differ_only_under_pressure() -> None:
    def latencies(**engine: Any) -> Any:
        return summary(policy="vllm-v0", **engine)["e2e_ms"]

    assert latencies(preemption_mode="swap") == latencies()
    assert latencies(preemption_mode="swap", kv_blocks=400) != latencies(kv_blocks=400)
