"""What fits into the memory of a GPU: weights, working space, and KV blocks in what is left.

The one free number, ``RUNTIME_BYTES``, was set by three block counts that vLLM logged, so agreement with
those is a fit: Llama-3.1-8B on an RTX 4090 2,588 (planned -0.4 %), Llama-3.1-70B on four H100 30,251 at
8,192 batched tokens (-0.4 %) and 30,425 at 2,048 (+0.3 %). Not fitted: the KV slots in table 1 of the vLLM
paper, at the default utilisation of its time, 0.95: OPT-13B +3.4 %, OPT-66B +7.9 %, OPT-175B +0.5 %.
``pytest tests/simulator/test_memory.py`` repeats the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simulator.errors import ModelError, ScenarioError
from simulator.hardware import Hardware, load_hardware
from simulator.mig import is_slice
from simulator.models import Model, dtype_name, load_model

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

MIB = 1 << 20
GIB = 1 << 30
# CUDA context, captured graphs, NCCL, sampling buffers: 0.93 to 1.20 GB in the three runs named above.
RUNTIME_BYTES = GIB
# Peak activations are 2 * tokens * hidden * coefficient bytes, at least 70 MiB, by tensor parallel degree:
# the estimate for vLLM of aiconfigurator 0.12 (NVIDIA, Apache-2.0).
DENSE_COEFFICIENTS = ((4, 5.0), (2, 6.5), (1, 11.0))
MOE_COEFFICIENTS = ((4, 10.0), (2, 13.0), (1, 22.0))
LEAST_ACTIVATION_BYTES = 70 * MIB
CONTEXTS_TOKENS = (512, 2048, 8192, 32768, 131072)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of each GPU; ``kv_bytes`` is what the blocks fill, ``spare_bytes`` the rest below a block."""

    model: str
    hardware: str
    dtype: str
    kv_dtype: str
    tensor_parallel: int
    capacity_bytes: int
    gpu_memory_utilization: float
    usable_bytes: int
    weights_bytes: int
    activation_bytes: int
    runtime_bytes: int
    kv_bytes_per_token: int
    block_size: int
    kv_blocks: int

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.kv_bytes_per_token

    @property
    def kv_bytes(self) -> int:
        return self.kv_blocks * self.block_bytes

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.block_size

    @property
    def spare_bytes(self) -> int:
        return (
            self.usable_bytes
            - self.weights_bytes
            - self.activation_bytes
            - self.runtime_bytes
            - self.kv_bytes
        )


def plan_memory(
    model: Model,
    hardware: Hardware,
    *,
    dtype: str = "bfloat16",
    kv_dtype: str | None = None,
    tensor_parallel: int = 1,
    gpu_memory_utilization: float = 0.9,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    block_size: int = 16,
    pipeline_parallel: int = 1,
) -> MemoryPlan:
    """Share out a GPU's memory as an engine does at start-up; where nothing is left, say what would fit.

    Of a pipeline the plan is that of the stage with room for the fewest blocks, which all stages then have.
    ``kv_dtype`` is ``dtype`` unless given. A batch of one token per sequence can exceed a small token
    budget, so activations are reserved for the larger of the two.
    """
    if tensor_parallel != 1 and is_slice(hardware.name):
        raise ScenarioError(
            f"parallel.tensor must be 1 on {hardware.name}: a process sees one MIG slice only"
        )
    _check_settings(gpu_memory_utilization, max_num_batched_tokens, max_num_seqs, block_size)
    plan = MemoryPlan(
        model=model.name,
        hardware=hardware.name,
        dtype=dtype_name(dtype),
        kv_dtype=dtype_name(kv_dtype or dtype),
        tensor_parallel=tensor_parallel,
        capacity_bytes=hardware.memory_bytes,
        gpu_memory_utilization=gpu_memory_utilization,
        usable_bytes=int(gpu_memory_utilization * hardware.memory_bytes),
        weights_bytes=model.weights_bytes(dtype, tensor_parallel),
        activation_bytes=activation_bytes(
            model, max(max_num_batched_tokens, max_num_seqs), tensor_parallel
        ),
        runtime_bytes=RUNTIME_BYTES,
        kv_bytes_per_token=model.kv_bytes_per_token(kv_dtype or dtype, tensor_parallel),
        block_size=block_size,
        kv_blocks=0,
    )
    stages = _stages(plan, model, pipeline_parallel)
    plan = min(stages, key=lambda stage: stage.spare_bytes / stage.block_bytes)
    blocks = plan.spare_bytes // plan.block_bytes
    if blocks < 1:
        raise ScenarioError(_no_room(plan, model, hardware, pipeline_parallel))
    return replace(plan, kv_blocks=blocks)


def _stages(plan: MemoryPlan, model: Model, stages: int) -> list[MemoryPlan]:
    """The plan of a GPU in each stage of a pipeline."""
    if stages == 1:
        return [plan]
    layers = layers_per_stage(model.layers, stages)
    weights = model.stage_weights_bytes(plan.dtype, plan.tensor_parallel, layers)
    layer_bytes = plan.kv_bytes_per_token // model.layers
    return [
        replace(plan, weights_bytes=held, kv_bytes_per_token=layer_bytes * count)
        for held, count in zip(weights, layers, strict=True)
    ]


def layers_per_stage(layers: int, stages: int) -> list[int]:
    """As vLLM shares layers out: what is left over goes to the stages before the last, from behind.

    Source: ``get_pp_indices`` of vllm/distributed/utils.py; the last stage has the head to compute as well.
    """
    if stages > layers:
        raise ScenarioError(f"parallel.pipeline must be at most the model's {layers} layers, not {stages}")
    shares = [layers // stages] * stages
    for extra in range(layers % stages):
        shares[-2 - extra] += 1
    return shares


def _check_settings(utilization: float, batched_tokens: int, seqs: int, block_size: int) -> None:
    if not 0 < utilization <= 1:
        raise ScenarioError(
            f"engine.gpu_memory_utilization must be above 0 and at most 1, not {utilization}"
        )
    counts = {"max_num_batched_tokens": batched_tokens, "max_num_seqs": seqs, "block_size": block_size}
    for key, value in counts.items():
        if value < 1:
            raise ScenarioError(f"engine.{key} must be a whole number >= 1, not {value}")


def activation_bytes(model: Model, tokens: int, tensor_parallel: int) -> int:
    """The working space of a forward pass over so many tokens."""
    coefficients = MOE_COEFFICIENTS if model.experts else DENSE_COEFFICIENTS
    coefficient = next(value for degree, value in coefficients if tensor_parallel >= degree)
    return max(LEAST_ACTIVATION_BYTES, int(2 * tokens * model.hidden * coefficient))


def _no_room(plan: MemoryPlan, model: Model, hardware: Hardware, stages: int) -> str:
    reserves = plan.activation_bytes + plan.runtime_bytes
    share = f"{plan.gpu_memory_utilization:g} of {plan.capacity_bytes / GIB:.1f} GiB"
    pipeline = f" and parallel.pipeline {stages}" if stages > 1 else ""
    return (
        f"{plan.model} does not fit on {plan.hardware} "
        f"with parallel.tensor {plan.tensor_parallel}{pipeline}: "
        f"{plan.weights_bytes / GIB:.1f} GiB of weights and {reserves / GIB:.1f} GiB of reserves leave "
        f"no KV block in {plan.usable_bytes / GIB:.1f} GiB ({share}); "
        f"{_way_out(plan, model, hardware, stages)}"
    )


def _way_out(plan: MemoryPlan, model: Model, hardware: Hardware, stages: int) -> str:
    """The smallest larger degree of tensor parallelism at which more than the reserves and weights fits."""
    if stages > 1:
        return "take more stages, a GPU with more memory, a smaller model or a smaller dtype"
    if is_slice(hardware.name):
        return f"take a larger slice than {hardware.name}, a smaller model or a smaller dtype"
    for degree in model.tensor_parallel_degrees():
        needed = model.weights_bytes(plan.dtype, degree) + plan.activation_bytes + plan.runtime_bytes
        if degree > plan.tensor_parallel and needed + plan.block_bytes <= plan.usable_bytes:
            return f"parallel.tensor {degree} would fit"
    return f"take a GPU with more memory than {hardware.name}, a smaller model or a smaller dtype"


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks of a sequence: the last may be partly empty."""
    return -(-tokens // block_size)


def largest_batch(plan: MemoryPlan, context_tokens: int) -> int:
    """How many sequences of this length hold their KV at once, each rounded up to whole blocks."""
    if context_tokens < 1:
        raise ModelError(f"context must be a whole number >= 1, not {context_tokens}")
    return plan.kv_blocks // blocks_for(context_tokens, plan.block_size)


def memory_report(
    model: str,
    hardware: str,
    *,
    dtype: str = "bfloat16",
    tensor_parallel: int = 1,
    batch: int | None = None,
    context_tokens: int | None = None,
) -> dict[str, Any]:
    """What ``servetwin memory`` says, JSON-able; bytes are per GPU, ``request`` answers for the batch."""
    shape, gpu = load_model(model), load_hardware(hardware)
    plan = plan_memory(shape, gpu, dtype=dtype, tensor_parallel=tensor_parallel)
    contexts = _contexts(shape) if context_tokens is None else (context_tokens,)
    report = {
        "model": {
            "name": shape.name,
            "parameters": shape.parameters(),
            "active_parameters": shape.active_parameters(),
            "notes": [*shape.notes, *_context_notes(shape, context_tokens)],
        },
        "hardware": {"name": gpu.name, "description": gpu.description, "notes": list(gpu.notes)},
        "dtype": plan.dtype,
        "tensor_parallel": tensor_parallel,
        "gpu_memory_utilization": plan.gpu_memory_utilization,
        "per_gpu": _bytes_of(plan),
        "kv": {"blocks": plan.kv_blocks, "block_size": plan.block_size, "tokens": plan.kv_tokens},
        "largest_batch": [
            {"context_tokens": tokens, "sequences": largest_batch(plan, tokens)} for tokens in contexts
        ],
    }
    if batch is not None:
        report["request"] = _request(shape, plan, batch, context_tokens or shape.max_positions)
    return report


def _contexts(model: Model) -> tuple[int, ...]:
    shorter = (tokens for tokens in CONTEXTS_TOKENS if tokens < model.max_positions)
    return (*shorter, model.max_positions)


def _context_notes(model: Model, context_tokens: int | None) -> list[str]:
    notes = []
    if model.sliding_layers:
        notes.append(
            f"{model.sliding_layers} of {model.layers} layers see only {model.sliding_window:,} tokens; "
            "blocks are counted as if every layer kept the whole context"
        )
    if context_tokens is not None and context_tokens > model.max_positions:
        notes.append(
            f"{context_tokens:,} tokens are more than the model's {model.max_positions:,} positions"
        )
    return notes


def _bytes_of(plan: MemoryPlan) -> dict[str, int]:
    return {
        "capacity_bytes": plan.capacity_bytes,
        "usable_bytes": plan.usable_bytes,
        "weights_bytes": plan.weights_bytes,
        "activation_bytes": plan.activation_bytes,
        "runtime_bytes": plan.runtime_bytes,
        "kv_bytes": plan.kv_bytes,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "block_bytes": plan.block_bytes,
        "spare_bytes": plan.spare_bytes,
    }


def _request(model: Model, plan: MemoryPlan, batch: int, context_tokens: int) -> dict[str, Any]:
    if batch < 1:
        raise ModelError(f"batch must be a whole number >= 1, not {batch}")
    blocks = batch * blocks_for(context_tokens, plan.block_size)
    return {
        "batch": batch,
        "context_tokens": context_tokens,
        "kv_bytes": batch * context_tokens * plan.kv_bytes_per_token,
        "kv_bytes_windowed": batch * model.kv_bytes(context_tokens, plan.kv_dtype, plan.tensor_parallel),
        "kv_blocks": blocks,
        "fits": blocks <= plan.kv_blocks,
    }


def size(number_bytes: float) -> str:
    """A size in both units, so that neither is mistaken for the other: ``8.59 GB (8.00 GiB)``."""
    if number_bytes < 1e6:
        return f"{number_bytes:,.0f} bytes"
    if number_bytes < 1e9:
        return f"{number_bytes / 1e6:.1f} MB ({number_bytes / MIB:.1f} MiB)"
    return f"{number_bytes / 1e9:.2f} GB ({number_bytes / GIB:.2f} GiB)"


def memory_view(report: Mapping[str, Any]) -> Group:
    """The report for a terminal."""
    from rich.console import Group
    from rich.text import Text

    model, hardware = report["model"], report["hardware"]
    degree = report["tensor_parallel"]
    where = f"{hardware['name']}, each of {degree} GPUs" if degree > 1 else hardware["name"]
    lines = [f"{model['name']} ({model['parameters']:,} parameters) in {report['dtype']} on {where}"]
    notes = [f"note: {note}" for note in (*model["notes"], *hardware["notes"])]
    return Group(
        Text(lines[0], style="bold"),
        _bytes_table(report),
        _batch_table(report),
        *map(Text, _request_lines(report) + notes),
    )


def _bytes_table(report: Mapping[str, Any]) -> Table:
    from rich.table import Table

    per_gpu, kv = report["per_gpu"], report["kv"]
    table = Table("memory of a GPU", "size", "", box=None, pad_edge=False)
    utilization = report["gpu_memory_utilization"]
    table.add_row("capacity", size(per_gpu["capacity_bytes"]), "as an engine sees it")
    table.add_row("usable", size(per_gpu["usable_bytes"]), f"gpu_memory_utilization {utilization:g}")
    table.add_row("  weights", size(per_gpu["weights_bytes"]), report["dtype"])
    table.add_row(
        "  activations", size(per_gpu["activation_bytes"]), "reserved for the largest batch of tokens"
    )
    table.add_row("  runtime", size(per_gpu["runtime_bytes"]), "device context, graphs, communication")
    blocks = f"{kv['blocks']:,} blocks of {kv['block_size']} = {kv['tokens']:,} tokens"
    table.add_row("  KV cache", size(per_gpu["kv_bytes"]), blocks)
    table.add_row("KV per token", f"{per_gpu['kv_bytes_per_token']:,} bytes", report["dtype"])
    return table


def _batch_table(report: Mapping[str, Any]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("context, tokens", justify="right")
    table.add_column("largest batch", justify="right")
    for row in report["largest_batch"]:
        table.add_row(f"{row['context_tokens']:,}", f"{row['sequences']:,}")
    return table


def _request_lines(report: Mapping[str, Any]) -> list[str]:
    request = report.get("request")
    if request is None:
        return []
    batch, tokens = request["batch"], request["context_tokens"]
    answer = "fits" if request["fits"] else "does not fit at once: the engine would queue or preempt"
    where = "" if report["tensor_parallel"] == 1 else " on each GPU"
    need = f"{size(request['kv_bytes'])} of KV{where} in {request['kv_blocks']:,} blocks"
    lines = [f"batch {batch:,} x {tokens:,} tokens: {need}; {answer}"]
    if request["kv_bytes_windowed"] != request["kv_bytes"]:
        lines.append(f"  with sliding layers cut at their window: {size(request['kv_bytes_windowed'])}")
    return lines
