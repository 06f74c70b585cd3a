"""How large a replica's KV cache is, and what its blocks weigh."""

from __future__ import annotations

from typing import NamedTuple

from simulator.engine_settings import batched_tokens
from simulator.hardware import load_hardware
from simulator.memory import layers_per_stage, plan_memory
from simulator.models import Model
from simulator.scenario import Scenario

NS_PER_S = 1e9
UNBUDGETED_TOKENS = 2048  # positions whose activations are reserved for where a policy sets no budget


class KVSize(NamedTuple):
    """The KV cache of one replica. Bytes are those of one block on one GPU.

    ``block_copy_ns``: how long one block takes between the GPU and the host; ``block_split_ns``: how long
    it takes to be read and written again within the GPU's memory.
    """

    blocks: int
    block_bytes: int
    block_copy_ns: float
    block_split_ns: float


def longest_sequence(scenario: Scenario, model: Model) -> int:
    """Tokens of the longest sequence, prompt and output: the engine's limit or else the model's."""
    return scenario.engine.max_model_len or model.max_positions


def kv_size(scenario: Scenario, model: Model) -> KVSize:
    """The cache that a scenario's engine has on its hardware."""
    engine, hardware, tensor = scenario.engine, load_hardware(scenario.hardware), scenario.parallel.tensor
    layers = max(layers_per_stage(model.layers, scenario.parallel.pipeline))
    layer_bytes = model.kv_bytes_per_token(scenario.dtype, tensor) // model.layers
    block_bytes = engine.block_size * layers * layer_bytes
    copy_ns = NS_PER_S * block_bytes / hardware.pcie_bytes_per_s
    split_ns = NS_PER_S * 2 * block_bytes / hardware.bandwidth_bytes_per_s
    if engine.kv_blocks != "auto":
        return KVSize(engine.kv_blocks, block_bytes, copy_ns, split_ns)
    budget = batched_tokens(engine, longest_sequence(scenario, model))
    plan = plan_memory(
        model,
        hardware,
        dtype=scenario.dtype,
        tensor_parallel=tensor,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_num_batched_tokens=budget or UNBUDGETED_TOKENS,
        max_num_seqs=engine.max_num_seqs,
        block_size=engine.block_size,
        pipeline_parallel=scenario.parallel.pipeline,
    )
    return KVSize(plan.kv_blocks, block_bytes, copy_ns, split_ns)
