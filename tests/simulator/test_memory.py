"""What fits: block counts beside those of real engines, and the arithmetic that people get wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from simulator.errors import ModelError, ScenarioError
from simulator.hardware import load_hardware
from simulator.memory import (
    GIB,
    MIB,
    MemoryPlan,
    activation_bytes,
    blocks_for,
    largest_batch,
    memory_report,
    memory_view,
    plan_memory,
    size,
)
from simulator.models import load_model


def plan(model: str, hardware: str, **settings: Any) -> MemoryPlan:
    return plan_memory(load_model(model), load_hardware(hardware), **settings)


def rendered(report: dict[str, Any]) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(memory_view(report))
    return captured.get()


def test_the_rtx_4090_gets_the_blocks_that_vllm_logged(shared: Callable[..., Path]) -> None:
    meta = json.loads(
        shared("data", "engines", "vllm_0.19_sharegpt", "RTX4090_Llama-3.1-8B", "meta.json").read_text()
    )
    ours = plan("meta-llama/Llama-3.1-8B", "rtx-4090", max_num_batched_tokens=2048, max_num_seqs=256)
    assert ours.kv_blocks == pytest.approx(meta["kv_cache"]["num_gpu_blocks"], rel=0.005)
    assert ours.block_size == meta["kv_cache"]["block_size"]


@pytest.mark.parametrize(("batched_tokens", "blocks"), [(8192, 30_251), (2048, 30_425)])
def test_llama_70b_on_four_h100_gets_the_blocks_that_vllm_logged(batched_tokens: int, blocks: int) -> None:
    """Figures that aiconfigurator 0.12 quotes for its own check (it is 6 % low)."""
    ours = plan(
        "meta-llama/Llama-3.1-70B", "h100-sxm", tensor_parallel=4, max_num_batched_tokens=batched_tokens
    )
    assert ours.kv_blocks == pytest.approx(blocks, rel=0.005)


@pytest.mark.parametrize(
    ("model", "hardware", "tensor_parallel", "slots"),
    [
        ("facebook/opt-13b", "a100-40-sxm", 1, 15_700),
        ("facebook/opt-66b", "a100-40-sxm", 4, 9_700),
        ("facebook/opt-175b", "a100-80-sxm", 8, 60_100),
    ],
)
def test_opt_gets_the_slots_of_the_vllm_paper(
    model: str, hardware: str, tensor_parallel: int, slots: int
) -> None:
    """Kwon et al. 2023, table 1; vLLM's default utilisation was 0.95 (vllm-project/vllm issue 1018)."""
    settings: dict[str, Any] = {
        "dtype": "float16",
        "tensor_parallel": tensor_parallel,
        "gpu_memory_utilization": 0.95,
        "max_num_batched_tokens": 2560,
    }
    assert plan(model, hardware, **settings).kv_tokens == pytest.approx(slots, rel=0.08)


def test_the_kv_cache_of_eight_full_contexts_of_llama_2_is_not_2_gb() -> None:
    report = memory_report(
        "meta-llama/Llama-2-7b-hf", "a100-80-sxm", dtype="float16", batch=8, context_tokens=2048
    )
    assert report["request"]["kv_bytes"] == 8 * 2048 * 524_288 == 8 * GIB
    assert report["request"]["kv_blocks"] == 8 * 2048 // 16
    assert report["request"]["fits"]
    assert "batch 8 x 2,048 tokens: 8.59 GB (8.00 GiB) of KV in 1,024 blocks; fits" in rendered(report)


def test_grouped_heads_of_llama_3_need_a_quarter() -> None:
    report = memory_report("meta-llama/Llama-3.1-8B", "a100-80-sxm", batch=8, context_tokens=2048)
    assert "2.15 GB (2.00 GiB)" in rendered(report)


def test_a_batch_that_does_not_fit_is_said_to_queue() -> None:
    report = memory_report(
        "meta-llama/Llama-2-7b-hf", "a10g", dtype="float16", batch=64, context_tokens=4096
    )
    assert not report["request"]["fits"]
    assert "does not fit at once" in rendered(report)


def test_the_parts_of_a_plan_fill_what_is_usable_to_less_than_a_block() -> None:
    ours = plan("Qwen/Qwen3-30B-A3B", "h100-sxm", tensor_parallel=2)
    parts = ours.weights_bytes + ours.activation_bytes + ours.runtime_bytes + ours.kv_bytes
    assert parts + ours.spare_bytes == ours.usable_bytes
    assert 0 <= ours.spare_bytes < ours.block_bytes
    assert ours.usable_bytes == int(0.9 * ours.capacity_bytes)


def test_activations_follow_the_published_formula() -> None:
    dense, mixture = load_model("meta-llama/Llama-3.1-8B"), load_model("mistralai/Mixtral-8x7B-v0.1")
    per_coefficient = 2 * 8192 * 4096
    for tensor_parallel, coefficient in ((1, 11), (2, 6.5), (4, 5), (8, 5)):
        assert activation_bytes(dense, 8192, tensor_parallel) == coefficient * per_coefficient
    for tensor_parallel, coefficient in ((1, 22), (2, 13), (4, 10)):
        assert activation_bytes(mixture, 8192, tensor_parallel) == coefficient * per_coefficient
    assert activation_bytes(dense, 16, 1) == 70 * MIB


def test_weights_that_do_not_fit_are_refused_with_a_way_out() -> None:
    with pytest.raises(ScenarioError) as caught:
        plan("meta-llama/Llama-3.1-70B", "h100-sxm")
    message = str(caught.value)
    assert message.startswith(
        "meta-llama/Llama-3.1-70B does not fit on h100-sxm with parallel.tensor 1: 131.4 GiB"
    )
    assert message.endswith("parallel.tensor 2 would fit")
    assert "\n" not in message
    assert plan("meta-llama/Llama-3.1-70B", "h100-sxm", tensor_parallel=2).kv_blocks > 0
    with pytest.raises(ScenarioError, match="take a GPU with more memory than rtx-4090"):
        plan("meta-llama/Llama-2-13b-hf", "rtx-4090", tensor_parallel=1, gpu_memory_utilization=0.05)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"gpu_memory_utilization": 0.0},
            r"engine\.gpu_memory_utilization must be above 0 and at most 1, not 0",
        ),
        ({"gpu_memory_utilization": 1.5}, r"at most 1, not 1\.5"),
        ({"gpu_memory_utilization": float("nan")}, "not nan"),
        (
            {"max_num_batched_tokens": 0},
            r"engine\.max_num_batched_tokens must be a whole number >= 1, not 0",
        ),
        ({"max_num_seqs": -1}, r"engine\.max_num_seqs must be a whole number >= 1, not -1"),
        ({"block_size": 0}, r"engine\.block_size must be a whole number >= 1, not 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ScenarioError, match=complaint):
        plan("servetwin/llama-tiny", "cpu", **settings)


@given(low=st.floats(0.5, 1), high=st.floats(0.5, 1))
def test_blocks_never_fall_as_utilisation_rises(low: float, high: float) -> None:
    low, high = sorted((low, high))
    few = plan("meta-llama/Llama-3.1-8B", "h100-sxm", gpu_memory_utilization=low).kv_blocks
    assert few <= plan("meta-llama/Llama-3.1-8B", "h100-sxm", gpu_memory_utilization=high).kv_blocks


@given(tokens=st.integers(1, 200_000), block_size=st.integers(1, 256))
def test_the_largest_batch_fits_and_one_more_does_not(tokens: int, block_size: int) -> None:
    ours = plan("Qwen/Qwen3-8B", "l40s", block_size=block_size)
    batch, blocks = largest_batch(ours, tokens), blocks_for(tokens, block_size)
    assert batch * blocks <= ours.kv_blocks < (batch + 1) * blocks
    assert (blocks - 1) * block_size < tokens <= blocks * block_size


def test_a_context_of_no_tokens_and_a_batch_of_none_are_refused() -> None:
    with pytest.raises(ModelError, match="context must be a whole number >= 1, not 0"):
        largest_batch(plan("servetwin/llama-tiny", "cpu"), 0)
    with pytest.raises(ModelError, match="batch must be a whole number >= 1, not 0"):
        memory_report("servetwin/llama-tiny", "cpu", batch=0)


@pytest.mark.parametrize(
    ("number_bytes", "text"),
    [
        (512, "512 bytes"),
        (73_400_320, "73.4 MB (70.0 MiB)"),
        (8 * GIB, "8.59 GB (8.00 GiB)"),
    ],
)
def test_sizes_name_their_unit_twice(number_bytes: int, text: str) -> None:
    assert size(number_bytes) == text


def test_the_report_is_json_and_shows_every_part() -> None:
    report = memory_report("mistralai/Mixtral-8x7B-v0.1", "h100-sxm", tensor_parallel=4, batch=8)
    assert json.loads(json.dumps(report)) == report
    page = rendered(report)
    for word in (
        "weights",
        "activations",
        "runtime",
        "KV cache",
        "KV per token",
        "each of 4 GPUs",
        "on each GPU",
    ):
        assert word in page
    assert [row["context_tokens"] for row in report["largest_batch"]] == [512, 2048, 8192, 32768]


def test_sliding_layers_and_contexts_beyond_the_model_are_noted(tmp_path: Path) -> None:
    config = {
        "model_type": "mistral",
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "vocab_size": 1000,
        "sliding_window": 64,
        "max_position_embeddings": 1024,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = memory_report(str(tmp_path), "cpu", batch=1, context_tokens=2000)
    assert report["request"]["kv_bytes"] == 2000 * report["per_gpu"]["kv_bytes_per_token"]
    assert report["request"]["kv_bytes_windowed"] == 64 * report["per_gpu"]["kv_bytes_per_token"]
    page = rendered(report)
    assert "2 of 2 layers see only 64 tokens" in page
    assert "2,000 tokens are more than the model's 1,024 positions" in page
    assert "with sliding layers cut at their window" in page
