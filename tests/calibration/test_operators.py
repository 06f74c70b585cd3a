"""Each operator's shape is recovered from synthetic timings with known coefficients."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from calibration.measurements import Sample
from calibration.operators import (
    curve_errors,
    decode_errors,
    fit_compact_curve,
    fit_decode,
    fit_prefill,
    prefill_errors,
)
from simulator.cost_model import DecodeTable, PiecewiseLinear
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.roofline import Roofline

BOUNDS = Roofline(load_model("meta-llama/Llama-3.1-8B"), load_hardware("h100-sxm"), "bfloat16", 1)
ROWS = [1 << power for power in range(9)]
CONTEXTS = [1 << power for power in range(1, 14)]


def decode_truth(rows: int, total: float) -> float:
    return 400_000 + 3_000 * rows + 50 * total


def decode_samples(noise: float = 0.0) -> list[Sample]:
    chance = np.random.default_rng(3)
    return [
        Sample(
            "decode_attention",
            (rows, rows * context),
            decode_truth(rows, rows * context) * (1 + noise * chance.standard_normal()),
        )
        for rows in ROWS
        for context in CONTEXTS
        if rows * context <= 1 << 17
    ]


def test_decode_attention_is_recovered_between_its_grid_points() -> None:
    table = DecodeTable(fit_decode(decode_samples()), BOUNDS)
    for rows, context in ((1, 700), (3, 50), (24, 300), (100, 999), (200, 300)):
        assert table.ns(rows, rows * context) == pytest.approx(decode_truth(rows, rows * context), rel=0.01)


def test_noisy_decode_attention_rises_along_contexts_and_along_rows_of_equal_keys() -> None:
    fitted = fit_decode(decode_samples(noise=0.05))
    curves = [
        PiecewiseLinear([rows * context for context in fitted.contexts[: len(line)]], line)
        for rows, line in zip(fitted.rows, fitted.ns, strict=True)
    ]
    for line in fitted.ns:
        assert all(later >= earlier for earlier, later in pairwise(line))
    for fewer, more in pairwise(curves):
        shared = [total for total in more.knots if fewer.knots[0] <= total <= fewer.knots[-1]]
        assert all(more(total) >= fewer(total) for total in shared)


def test_left_out_errors_are_small_where_the_truth_is_smooth() -> None:
    error = decode_errors(decode_samples(), BOUNDS)
    assert isinstance(error["median"], float)
    assert error["median"] < 0.01
    assert error["points"] == pytest.approx(2 * len(decode_samples()), rel=0.4)


def prefill_samples() -> list[Sample]:
    shapes = [
        (chunks, length) for chunks in (1, 2, 4, 8, 16) for length in (64, 128, 256, 512, 1024, 2048, 4096)
    ]
    return [
        Sample(
            "prefill_attention",
            (b, b * s, b * s * (s + 1) / 2),
            200_000 + 3.0 * (b * s * (s + 1) / 2 + 256 * b * s),
        )
        for b, s in shapes
    ]


def test_prefill_attention_finds_its_weights_and_extends_to_prefixes() -> None:
    fitted = fit_prefill(prefill_samples())
    assert fitted.pairs_per_token == pytest.approx(256, rel=0.3)
    assert fitted.pairs_per_chunk <= 3000
    assert fitted.keys_per_token == 4097
    curve = PiecewiseLinear(fitted.curve.knots, fitted.curve.ns)
    tokens, prefix = 512, 2000  # a later chunk: none such was measured
    pairs = tokens * prefix + tokens * (tokens + 1) / 2
    predicted = curve(pairs + fitted.pairs_per_token * tokens + fitted.pairs_per_chunk)
    assert predicted == pytest.approx(200_000 + 3.0 * (pairs + 256 * tokens), rel=0.05)


def test_prefill_errors_leave_out_whole_prompt_lengths() -> None:
    error = prefill_errors(prefill_samples())
    assert error["points"] == 5 * 5  # five inner lengths, five batch sizes
    assert isinstance(error["median"], float)
    assert error["median"] < 0.02


def test_columns_next_to_each_other_are_left_out_together() -> None:
    tokens = [1, 2, 100, 101, 200, 400]
    samples = [Sample("dense", (at,), 1000.0 + at) for at in tokens]
    assert curve_errors(samples)["points"] == 4  # 2; 100 with 101; 200
    spoiled = [Sample("dense", (at,), 5000.0 if at in (100, 101) else 1000.0 + at) for at in tokens]
    error = curve_errors(spoiled)
    assert isinstance(error["p95"], float)
    assert error["p95"] > 0.5  # 101 does not give away 100


def test_a_compact_curve_is_as_good() -> None:
    samples = [Sample("dense", (at,), 1000.0 + 10 * at) for at in range(1, 200)]
    fitted = fit_compact_curve(samples)
    assert len(fitted.knots) < 6
    assert PiecewiseLinear(fitted.knots, fitted.ns)(77) == pytest.approx(1770, rel=0.01)
