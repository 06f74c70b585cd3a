"""The clock: agrees with the source's own composition, and keeps the laws that leaping relies on."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost_model import ProfileCostModel, load_cost_model
from simulator.engine.plan import IterationShape
from simulator.errors import ProfileError
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.profile import Curve, DecodeAttention, PrefillAttention, Profile, find_profile
from simulator.roofline import Roofline, roofline_profile
from tests.simulator.test_profile import FIELDS

LLAMA_8B = "meta-llama/Llama-3.1-8B"
H100_8B = "h100-sxm_llama-3.1-8b_bf16_tp1"
A100_70B = "a100-80-sxm_llama-3.1-70b_bf16_tp4"
MOE = "h100-sxm_qwen3-30b-a3b_bf16_tp1"
SLIDING = "roofline with sliding layers"
CLOCKS = (H100_8B, A100_70B, MOE, SLIDING)


@cache
def clock(name: str) -> ProfileCostModel:
    if name == SLIDING:
        model = replace(load_model(LLAMA_8B), sliding_window=512, sliding_layers=24)
        bounds = Roofline(model, load_hardware("l40s"), "float16", 2)
        return ProfileCostModel(roofline_profile(bounds), bounds)
    profile = find_profile(name, Path())
    bounds = Roofline(
        load_model(profile.model), load_hardware(profile.hardware), profile.dtype, profile.tensor_parallel
    )
    return ProfileCostModel(profile, bounds)


def decode(rows: int, context_tokens: int) -> IterationShape:
    return IterationShape(0, 0, 0, rows, context_tokens)


def prefill(tokens: int) -> IterationShape:
    return IterationShape(1, tokens, tokens * (tokens + 1) // 2, 0, 0)


# Iterations of Llama-3.1-8B, bf16, one H100, as aiconfigurator 0.12.0 composes them from its vLLM 0.24
# tables (ms, without any host time): by rows, at 512, 1024, 2048 and 4096 tokens of context per row.
COMPOSED_DECODES = {
    1: (6.17, 6.18, 6.24, 6.29),
    8: (6.48, 6.60, 7.27, 7.87),
    32: (7.72, 8.32, 9.63, 12.35),
    128: (10.44, 12.83, 18.13, 28.82),
    256: (14.86, 19.55, 30.67, 51.96),
}
COMPOSED_PREFILLS = {128: 7.61, 512: 12.02, 1024: 22.11, 2048: 43.51, 8192: 199.72}


@pytest.mark.parametrize("rows", COMPOSED_DECODES)
def test_decode_iterations_match_the_published_composition(rows: int) -> None:
    cost = clock(H100_8B)
    for context, expected_ms in zip((512, 1024, 2048, 4096), COMPOSED_DECODES[rows], strict=True):
        kernels_ms = (cost.iteration_ns(decode(rows, rows * context)) - cost.profile.host_ns) / 1e6
        assert kernels_ms == pytest.approx(expected_ms, rel=0.05)


@pytest.mark.parametrize("tokens", COMPOSED_PREFILLS)
def test_prefill_iterations_match_the_published_composition(tokens: int) -> None:
    cost = clock(H100_8B)
    kernels_ms = (cost.iteration_ns(prefill(tokens)) - cost.profile.host_ns) / 1e6
    assert kernels_ms == pytest.approx(COMPOSED_PREFILLS[tokens], rel=0.05)


rows_ = st.one_of(st.integers(1, 300), st.integers(1, 5000))
contexts = st.one_of(st.integers(1, 50_000), st.integers(1, 1 << 28))


@given(st.sampled_from(CLOCKS), rows_, contexts)
def test_a_pure_decode_iteration_lies_on_its_line_to_the_bit(name: str, rows: int, context: int) -> None:
    cost = clock(name)
    base, slope, until = cost.decode_line(rows, context)
    assert until >= context
    assert slope >= 0
    assert cost.iteration_ns(decode(rows, context)) == max(1, int(base + slope * context))


@given(st.sampled_from(CLOCKS), rows_, contexts, st.floats(0, 1))
def test_one_line_serves_every_context_up_to_its_end(
    name: str, rows: int, context: int, share: float
) -> None:
    cost = clock(name)
    line = cost.decode_line(rows, context)
    later = context + int(share * min(line.until_context - context, 1 << 30))
    assert cost.decode_line(rows, later) == line
    assert cost.decode_line(rows, line.until_context) == line


@given(st.sampled_from(CLOCKS), rows_, contexts)
def test_lines_meet_where_they_change(name: str, rows: int, context: int) -> None:
    cost = clock(name)
    line = cost.decode_line(rows, context)
    if line.until_context < 1 << 40:
        after = cost.decode_line(rows, line.until_context + 1)
        here = line.base_ns + line.slope_ns * line.until_context
        assert math.isclose(after.base_ns + after.slope_ns * line.until_context, here, rel_tol=1e-9)


shapes = st.builds(
    IterationShape,
    prefills=st.integers(1, 40),
    prefill_tokens=st.integers(1, 20_000),
    prefill_pairs=st.integers(1, 10**9),
    decodes=st.integers(0, 3000),
    context_tokens=st.integers(0, 10**8),
)
GROWING = ("prefills", "prefill_tokens", "prefill_pairs", "decodes", "context_tokens")


@given(st.sampled_from(CLOCKS), shapes, st.sampled_from(GROWING), st.integers(1, 10**6), st.booleans())
def test_more_work_never_takes_less_time(
    name: str, shape: IterationShape, field: str, more: int, pure: bool
) -> None:
    cost = clock(name)
    if pure:
        shape = decode(shape.decodes + 1, shape.context_tokens)
        if field.startswith("prefill"):
            return
    step = min(more, 3000) if field in ("prefills", "decodes") else more
    grown = shape._replace(**{field: getattr(shape, field) + step})
    assert cost.iteration_ns(grown) >= cost.iteration_ns(shape) >= 1


@given(st.sampled_from(CLOCKS), st.integers(1, 500), st.integers(1, 10**6))
def test_chunking_a_prompt_does_not_change_its_pairs_but_costs_time(
    name: str, rows: int, context: int
) -> None:
    cost = clock(name)
    alone = cost.iteration_ns(decode(rows, context))
    mixed = cost.iteration_ns(IterationShape(1, 64, 64 * 65 // 2, rows, context))
    assert mixed >= alone


def toy(table: DecodeAttention) -> ProfileCostModel:
    bounds = Roofline(load_model(LLAMA_8B), load_hardware("h100-sxm"), "bfloat16", 1)
    profile = Profile(
        name="toy",
        kind="measured",
        model=LLAMA_8B,
        hardware="h100-sxm",
        dtype="bfloat16",
        tensor_parallel=1,
        by_tokens={"dense": Curve((1.0, 100.0), (1000.0, 10_900.0))},
        head=Curve((1.0, 10.0), (50.0, 50.0)),
        prefill_attention=PrefillAttention(2.0, 3.0, Curve((10.0, 1000.0), (100.0, 10_000.0)), 100.0),
        decode_attention=table,
        host_ns=7.0,
        host_row_ns=1.0,
    )
    return ProfileCostModel(profile, bounds)


TABLE = DecodeAttention((1, 2), (10, 100), ((1000.0, 10_000.0), (1500.0, 20_000.0)))


def test_an_iteration_is_the_sum_of_its_operators() -> None:
    cost = toy(TABLE)
    chunk = IterationShape(2, 30, 200, 0, 0)
    dense, head, attention = 1000 + 29 * 100, 50 + 2, (200 + 2 * 30 + 3 * 2) * 10
    assert cost.iteration_ns(chunk) == dense + head + attention + 7
    assert cost.iteration_ns(decode(1, 55)) == 1000 + 50 + 1 + 5500 + 7
    mixed = IterationShape(2, 30, 200, 1, 55)
    assert cost.iteration_ns(mixed) == dense + 100 + head + 1 + attention + 5500 + 7


def test_row_counts_between_measured_ones_are_blended_at_equal_keys() -> None:
    cost = toy(DecodeAttention((1, 3), (10, 100), ((1000.0, 10_000.0), (2000.0, 26_200.0))))
    attention = cost.decode_line(2, 60)
    ns = attention.base_ns + attention.slope_ns * 60
    one, three = 6000, 2000 + (60 - 30) * (26_200 - 2000) / 270
    assert ns == pytest.approx(1100 + 50 + 2 + 7 + (one + three) / 2)


def test_beyond_its_range_a_profile_holds_the_utilisation_of_its_boundary() -> None:
    cost = toy(TABLE)
    bounds = Roofline(load_model(LLAMA_8B), load_hardware("h100-sxm"), "bfloat16", 1)
    for times in (2, 16, 64):
        held = 10_900 * max(1.0, bounds.dense_ns(100 * times) / bounds.dense_ns(100))
        tokens = 100 * times
        head_and_attention = cost.iteration_ns(IterationShape(1, tokens, 1, 0, 0)) - 7 - held
        expected = 10 * (1 + 2 * tokens + 3) + 50 + 1
        assert head_and_attention == pytest.approx(expected, rel=0.02, abs=0.02 * held)


def test_extrapolation_is_flagged_per_iteration() -> None:
    cost = toy(TABLE)
    shapes = [
        decode(1, 100),
        decode(1, 101),
        decode(2, 200),
        decode(3, 30),
        IterationShape(1, 100, 400, 0, 0),
        IterationShape(1, 100, 800, 0, 0),
        IterationShape(1, 99, 400, 2, 200),
        IterationShape(9, 99, 400, 2, 20),
    ]
    columns = {
        name: np.array([getattr(shape, name) for shape in shapes]) for name in IterationShape._fields
    }
    assert cost.extrapolated(columns).tolist() == [False, True, False, True, False, True, True, True]


def test_auto_takes_the_matching_profile_and_else_the_roofline() -> None:
    model, h100 = load_model(LLAMA_8B), load_hardware("h100-sxm")
    assert load_cost_model("auto", model, h100, "bfloat16", 1, Path())[1].name == H100_8B
    renamed = replace(model, name="my/fine-tuned", max_positions=4096)
    info = load_cost_model("auto", renamed, h100, "float16", 1, Path())[1]
    assert info.name == H100_8B
    assert any("measured in bfloat16, used for float16" in note for note in info.notes)
    wider = replace(model, name="my/wider", intermediate=16384)
    for asked, ways in ((wider, 1), (model, 2)):
        info = load_cost_model("auto", asked, h100, "bfloat16", ways, Path())[1]
        assert (info.name, info.kind) == ("roofline", "roofline")
        assert "uncalibrated" in info.notes[0]


def test_a_profile_of_something_else_is_refused(tmp_path: Path) -> None:
    model, h100 = load_model(LLAMA_8B), load_hardware("h100-sxm")
    with pytest.raises(ProfileError) as caught:
        load_cost_model(A100_70B, model, h100, "float8", 1, Path())
    message = str(caught.value)
    assert "\n" not in message
    for part in ("model", "hardware", "dtype", "tensor parallelism"):
        assert f"its {part} is" in message
    moe = load_model("Qwen/Qwen3-30B-A3B")
    fields = {**FIELDS, "model": moe.name}
    (tmp_path / "mine.json").write_text(json.dumps(fields))
    with pytest.raises(ProfileError, match="no operator 'experts'"):
        load_cost_model("mine.json", moe, h100, "bfloat16", 1, tmp_path)


def test_borrowed_host_time_is_said() -> None:
    a100 = load_hardware("a100-80-sxm")
    info = load_cost_model("auto", load_model(LLAMA_8B), a100, "bfloat16", 1, Path())[1]
    assert any("borrowed" in note for note in info.notes)


def test_time_grows_with_context_and_falls_with_a_faster_machine() -> None:
    model = load_model(LLAMA_8B)
    times = []
    for hardware in ("a100-80-sxm", "h100-sxm", "h200-sxm"):
        cost = load_cost_model("auto", model, load_hardware(hardware), "bfloat16", 1, Path())[0]
        times.append(cost.iteration_ns(decode(64, 64 * 2000)))
    assert all(slower > faster for slower, faster in pairwise(times))
