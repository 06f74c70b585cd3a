"""Pipelines: how layers, weights and KV are shared out, and when iterations leave the last stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost_model import load_cost_model
from simulator.engine.plan import IterationShape
from simulator.errors import ScenarioError
from simulator.hardware import load_hardware
from simulator.memory import layers_per_stage, plan_memory
from simulator.models import load_model
from simulator.pipeline import HOP_NS, Pipeline, make_pipeline
from simulator.scenario_file import load_scenario
from simulator.simulation import simulate
from tests.laws.fleets import RandomFleet
from tests.laws.worlds import World, worlds

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SHAPE = IterationShape(0, 0, 0, 8, 8000)


def test_layers_left_over_go_to_the_stages_before_the_last() -> None:
    """vLLM, get_pp_indices: 5 layers on 3 stages are 2, 2, 1 and 61 on 8 (DeepSeek-V3) end with a 7."""
    assert layers_per_stage(5, 3) == [2, 2, 1]
    assert layers_per_stage(61, 8) == [7, 7, 8, 8, 8, 8, 8, 7]
    assert layers_per_stage(32, 4) == [8, 8, 8, 8]


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(
        ScenarioError, match=r"parallel\.pipeline must be at most the model's 32 layers, not 33"
    ):
        layers_per_stage(32, 33)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"])
def test_stages_together_hold_the_whole_model(model: str, stages: int) -> None:
    whole = load_model(model)
    parts = whole.stage_weights_bytes("bfloat16", 1, layers_per_stage(whole.layers, stages))
    assert sum(parts) == pytest.approx(whole.weights_bytes("bfloat16"), abs=stages)


def test_a_tied_embedding_is_held_twice() -> None:
    """The last stage computes logits with a copy, as vLLM loads it there."""
    tied = load_model(str(SCENARIOS / "models/llama-3.2-1b.json"))
    parts = tied.stage_weights_bytes("bfloat16", 1, layers_per_stage(16, 2))
    assert sum(parts) - tied.weights_bytes("bfloat16") == 2 * 128_256 * 2048


def test_a_pipeline_has_room_for_what_its_fullest_stage_can_hold() -> None:
    model, gpu = load_model("meta-llama/Llama-3.1-8B"), load_hardware("h100-sxm")
    one, two = plan_memory(model, gpu), plan_memory(model, gpu, pipeline_parallel=2)
    assert two.block_bytes * 2 == one.block_bytes
    saved = one.weights_bytes - two.weights_bytes
    assert two.kv_blocks == (one.kv_bytes + one.spare_bytes + saved) // two.block_bytes


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.lists(st.integers(1, 40), min_size=3, max_size=3)), max_size=30
    ),
    st.integers(0, 9),
)
def test_iterations_pass_the_stages_in_order_and_one_at_a_time(
    sent: list[tuple[int, list[int]]], hop: int
) -> None:
    """Against the plainest model: every stage keeps the times at which it was busy."""
    durations: list[int] = []
    pipeline = Pipeline(3, lambda _: durations, lambda _: hop)
    busy: list[list[tuple[int, int]]] = [[], [], []]
    start = 0
    for gap, durations in sent:
        start += gap
        now = start
        for stage, duration in enumerate(durations):
            ready = now + (hop if stage else 0)
            begin = max([ready, *(end for _, end in busy[stage])])
            now = begin + duration
            busy[stage].append((begin, now))
        assert pipeline.end_ns(SHAPE, start) == now


def test_a_stage_takes_its_layers_share_and_the_last_one_the_head() -> None:
    model, gpu = load_model("meta-llama/Llama-3.1-8B"), load_hardware("h100-sxm")
    cost, _ = load_cost_model("auto", model, gpu, "bfloat16", 1, Path())
    pipeline = make_pipeline(4, model, gpu, "bfloat16", cost)
    layers, head, host = cost.split_ns(SHAPE)
    assert layers + head + host == pytest.approx(cost.iteration_ns(SHAPE), abs=1)
    sent_bytes = 8 * model.hidden * 2
    hops = 3 * (HOP_NS + 1e9 * sent_bytes / gpu.interconnect_bytes_per_s)
    assert pipeline.end_ns(SHAPE, 0) == pytest.approx(layers + head + 4 * host + hops, abs=10)


@given(worlds(clusters=True))
def test_a_single_stage_is_no_pipeline(world: World) -> None:
    """Through the stages and iteration by iteration, yet everything is as on a plain replica."""
    plain = RandomFleet(world, "round-robin").run()
    fleet = RandomFleet(world, "round-robin")
    cluster = fleet.cluster()
    staged = [
        server._replace(pipeline=Pipeline(1, lambda s: [world.cost.iteration_ns(s)], lambda _: 0))
        for server in fleet.servers
    ]
    for replica, server in zip(cluster.replicas, staged, strict=True):
        replica.executor = server.executor()
    found = cluster.run()
    for name, column in plain.requests.items():
        np.testing.assert_array_equal(column, found.requests[name])


def test_two_stages_serve_a_full_queue_up_to_twice_as_fast_and_decode_no_faster() -> None:
    overrides = ["workload.requests=400", "workload.arrivals={process: burst}"]
    one, two = (
        simulate(
            load_scenario(SCENARIOS / "chat-h100.yaml", [*overrides, f"parallel.pipeline={stages}"])
        ).summary
        for stages in (1, 2)
    )
    speedup = two["throughput"]["output_tokens_per_s"] / one["throughput"]["output_tokens_per_s"]
    assert 1.1 < speedup < 2
    alone = ["workload.requests=1", "workload.arrivals={process: burst}"]
    first, second = (
        simulate(
            load_scenario(SCENARIOS / "chat-h100.yaml", [*alone, f"parallel.pipeline={stages}"])
        ).summary
        for stages in (1, 2)
    )
    assert second["tpot_ms"]["mean"] > first["tpot_ms"]["mean"], (
        "a single request sees every layer and the hops"
    )
