"""The data-sheet clock, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulator.cost_model import load_cost_model
from simulator.engine.plan import IterationShape
from simulator.hardware import hardware_names, load_hardware
from simulator.models import load_model, model_names
from simulator.roofline import (
    ATTENTION_EFFICIENCY,
    BANDWIDTH_EFFICIENCY,
    GEMM_EFFICIENCY,
    KERNEL_NS,
    Roofline,
)

LLAMA_8B = load_model("meta-llama/Llama-3.1-8B")
H100 = load_hardware("h100-sxm")


def bounds(**changes: object) -> Roofline:
    return Roofline(replace(LLAMA_8B, **changes), H100, "bfloat16", 1)  # type: ignore[arg-type]


def test_one_token_costs_reading_the_weights() -> None:
    layers = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)  # qkv, output, gate, up and down
    weights_ns = 2 * layers / (H100.bandwidth_bytes_per_s * BANDWIDTH_EFFICIENCY) * 1e9
    launches = 32 * 3 + 1
    assert bounds().dense_ns(1) == pytest.approx(weights_ns + launches * KERNEL_NS, rel=0.001)


def test_many_tokens_cost_arithmetic() -> None:
    layers = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    flops = 2 * layers * 16384
    gemms_ns = flops / (H100.flops_per_s["bfloat16"] * GEMM_EFFICIENCY) * 1e9
    line = bounds()
    assert line.dense_ns(16384) - line.elementwise_ns(16384) == pytest.approx(gemms_ns)


def test_a_long_context_costs_reading_its_keys_and_values() -> None:
    tokens = 10_000_000
    cache_bytes = tokens * 131_072  # 32 layers x 2 x 8 KV heads x 128 x 2 bytes
    expected = cache_bytes / (H100.bandwidth_bytes_per_s * BANDWIDTH_EFFICIENCY) * 1e9
    assert bounds().decode_ns(1, tokens) == pytest.approx(expected, rel=0.001)


def test_sliding_layers_read_no_more_than_their_window() -> None:
    half = bounds(sliding_window=1000, sliding_layers=16)
    full, whole = half.decode_ns(4, 4_000_000), bounds().decode_ns(4, 4_000_000)
    assert half.decode_ns(4, 4000) == pytest.approx(bounds().decode_ns(4, 4000))
    assert full == pytest.approx(whole / 2, rel=0.01)


def test_attention_of_a_prompt_costs_four_flops_per_pair_head_and_dimension() -> None:
    per_pair = 4 * 128 * 32 * 32 / (H100.flops_per_s["bfloat16"] * ATTENTION_EFFICIENCY) * 1e9
    assert bounds().pair_ns() == pytest.approx(per_pair)


def test_few_tokens_touch_few_experts() -> None:
    model = load_model("mistralai/Mixtral-8x7B-v0.1")
    line = Roofline(model, H100, "bfloat16", 1)
    launch = model.layers * KERNEL_NS
    one, four, many = (line.experts_ns(tokens) - launch for tokens in (1, 4, 128))
    every = 8 / 2  # experts over experts per token: what reading all of them costs, in reads of one token's
    assert four / one == pytest.approx(every * (1 - 0.75**4))
    assert many / one == pytest.approx(every, rel=1e-6)


def test_tensor_parallelism_shares_work_and_adds_all_reduces() -> None:
    alone, shared = bounds(), Roofline(LLAMA_8B, H100, "bfloat16", 4)
    assert shared.dense_ns(1) < alone.dense_ns(1) / 2
    assert alone.all_reduce_ns(100) == 0
    assert shared.all_reduce_ns(10_000) > shared.all_reduce_ns(1) > 0


@pytest.mark.parametrize("hardware", hardware_names())
def test_every_model_has_a_clock_on_every_machine(hardware: str) -> None:
    shape = IterationShape(1, 100, 5050, 8, 4000)
    for name in model_names():
        model = load_model(name)
        cost, info = load_cost_model("roofline", model, load_hardware(hardware), "bfloat16", 1, Path())
        assert info.kind == "roofline"
        assert cost.iteration_ns(shape) > cost.iteration_ns(IterationShape(0, 0, 0, 8, 4000)) > 0


def test_straight_lines_between_knots_stay_close_to_the_bound() -> None:
    line = bounds()
    cost = load_cost_model("roofline", LLAMA_8B, H100, "bfloat16", 1, Path())[0]
    host = 200_000
    for rows in (3, 50, 333, 3000):
        expected = line.dense_ns(rows) + line.head_ns(rows) + line.decode_ns(rows, rows * 700) + host
        assert cost.iteration_ns(IterationShape(0, 0, 0, rows, rows * 700)) == pytest.approx(
            expected, rel=0.02
        )
