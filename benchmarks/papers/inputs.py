"""What the paper scenarios read: cost profiles from published fits and synthetic lengths, written anew.

    python -m benchmarks.papers.inputs

The fits are those of DistServe's profiler on one to four A100-80 (github.com/LLMServe/DistServe,
simdistserve/estimators/profile_data, commit 82831f1): prefill = a + b sum n + c sum n^2, decode =
a + b context + c batch, in ms, the decode fit in two pieces. For other GPUs, models and parallelism every
coefficient is scaled by what it stands for: the fixed part and the keys read by bytes per GPU over
bandwidth, the rest by arithmetic per GPU over peak. Nothing else is changed, whatever comes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log1p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibration.fit import write_profile
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.profile import Curve, Profile, find_profile

PAPERS = Path("scenarios/papers")
YI_34B = str(PAPERS / "models/yi-34b.json")
HUNDRED_BILLION_PAIRS = 1e11
ROWS = (1, 32, 64, 94, 106, 128, 160, 192, 256, 512, 1024, 4096)
CONTEXTS = (1, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
MEAN_OUTPUT_TOKENS = 128  # Anyscale's exponential
SAMPLES = 1000


class Place(NamedTuple):
    """A model on so many GPUs of a kind."""

    model: str
    hardware: str
    tensor_parallel: int = 1
    dtype: str = "float16"


class Fit(NamedTuple):
    """Coefficients a, b, c in ms of one engine: prompts, decodes of small and of large batches."""

    engine: str
    place: Place
    prefill: tuple[float, float, float]
    small: tuple[float, float, float]
    large: tuple[float, float, float] | None


class Ratios(NamedTuple):
    """How much longer each kind of work takes than where it was measured."""

    weights: float
    keys: float
    arithmetic: float
    attention: float


OPT_13B = Place("facebook/opt-13b", "a100-80-sxm")
VLLM_13B = Fit(
    "vLLM", OPT_13B, (22.05, 0.14051, 8.08e-6), (23.48, 5.93e-4, 0.0607), (20.21, 4.91e-4, 0.1200)
)
DISTSERVE_13B = Fit(
    "DistServe", OPT_13B, (18.10, 0.10191, 7.12e-6), (19.93, 6.27e-4, 0.0385), (7.17, 5.80e-4, 0.1583)
)
DISTSERVE_66B = Fit(
    "DistServe",
    Place("facebook/opt-66b", "a100-80-sxm", 4),
    (29.44, 0.15135, 8.32e-6),
    (30.76, 4.52e-4, 0.0633),
    (27.47, 4.05e-4, 0.1248),
)
FITTED: Mapping[str, tuple[Fit, Place]] = {
    "opt-13b_a100-40_vllm": (VLLM_13B, Place("facebook/opt-13b", "a100-40-sxm")),
    "opt-13b_a100-40_distserve": (DISTSERVE_13B, Place("facebook/opt-13b", "a100-40-sxm")),
    "llama-13b_a100-40_vllm": (VLLM_13B, Place("meta-llama/Llama-2-13b-hf", "a100-40-sxm")),
    "llama-7b_a10g_vllm": (VLLM_13B, Place("meta-llama/Llama-2-7b-hf", "a10g")),
    "gpt-175b_a100-40_tp16_distserve": (DISTSERVE_66B, Place("facebook/opt-175b", "a100-40-sxm", 16)),
}
LLAMA_70B = Place("meta-llama/Llama-3.1-70B", "a100-80-sxm", 4, "bfloat16")
LLAMA_70B_PROFILE = "a100-80-sxm_llama-3.1-70b_bf16_tp4"
YI = Place(YI_34B, "a100-80-sxm", 2, "bfloat16")


def ratios(measured: Place, wanted: Place) -> Ratios:
    """Work per GPU over what the data sheet promises, against the same where it was measured."""
    ours, theirs = _burdens(wanted), _burdens(measured)
    return Ratios(*(mine / its for mine, its in zip(ours, theirs, strict=True)))


def _burdens(place: Place) -> Ratios:
    model, hardware = load_model(place.model), load_hardware(place.hardware)
    ways, speed = place.tensor_parallel, hardware.flops_per_s["bfloat16"]
    return Ratios(
        weights=model.parameters() / ways / hardware.bandwidth_bytes_per_s,
        keys=model.kv_bytes_per_token(place.dtype, ways) / hardware.bandwidth_bytes_per_s,
        arithmetic=model.active_parameters() / ways / speed,
        attention=model.layers * model.heads * model.head_dim / ways / speed,
    )


def fitted_profile(fit: Fit, wanted: Place) -> dict[str, Any]:
    """A linear fit as a cost profile.

    A pure prompt or decode iteration costs what the fit says. One that mixes them costs the larger of the
    two fixed parts once, since the weights are read once, and the other terms of both. The two decode
    pieces are joined as their maximum: the fit itself falls by up to 1.3 ms where one takes over.
    """
    by = ratios(fit.place, wanted)
    fixed, per_token, per_square = (
        fit.prefill[0] * by.weights,
        fit.prefill[1] * by.arithmetic,
        fit.prefill[2] * by.attention,
    )
    pieces = [
        (a * by.weights, b * by.keys, c * by.arithmetic) for a, b, c in (fit.small, fit.large or fit.small)
    ]
    host = min(fixed, pieces[0][0])
    # sum n^2 = 2 pairs - sum n for whole prompts, so the linear term can ride on the pairs
    slope, start = 2 * per_square, 1.0
    ends = (start, HUNDRED_BILLION_PAIRS)
    return _fields(
        wanted,
        f"DistServe's fit of {fit.engine}, {fit.place.model} on {fit.place.tensor_parallel} A100-80",
        host_ns=_ns(host),
        prefill_attention={
            "pairs_per_token": (per_token - per_square) / slope,
            "pairs_per_chunk": 0,
            "keys_per_token": 1e6,
            "effective_pairs": list(ends),
            "ns": [_ns(fixed - host + slope * pairs) for pairs in ends],
        },
        decode_attention={
            "rows": list(ROWS),
            "contexts": list(CONTEXTS),
            "ns": [
                [
                    _ns(max(a - host + b * rows * context + c * rows for a, b, c in pieces))
                    for context in CONTEXTS
                ]
                for rows in ROWS
            ],
        },
    )


def _fields(wanted: Place, note: str, host_ns: float, **attention: Mapping[str, Any]) -> dict[str, Any]:
    free = {"tokens": [1, 8192], "ns": [0, 0]}
    operators: dict[str, Any] = {"dense": free}
    if wanted.tensor_parallel > 1:
        operators["all_reduce"] = free
    return {
        "format": "servetwin-profile/1",
        "kind": "imported",
        "model": wanted.model,
        "hardware": wanted.hardware,
        "dtype": wanted.dtype,
        "tensor_parallel": wanted.tensor_parallel,
        "notes": [f"scaled by data-sheet ratios from {note}"],
        "host": {"iteration_ns": host_ns, "row_ns": 0},
        "operators": operators | {"head": {"rows": [1, 4096], "ns": [0, 0]}} | attention,
    }


def _ns(milliseconds: float) -> float:
    return round(milliseconds * 1e6, 3)


def scaled_profile(source: Profile, measured: Place, wanted: Place) -> dict[str, Any]:
    """A shipped profile of another model on the same GPU, operator by operator by work per GPU."""
    by = ratios(measured, wanted)
    head = _vocabulary_work(wanted) / _vocabulary_work(measured)
    fields = _fields(wanted, f"profile {source.name}", source.host_ns)
    attention = source.prefill_attention
    fields["host"]["row_ns"] = source.host_row_ns
    fields["operators"] = {
        "dense": _scaled(source.by_tokens["dense"], "tokens", by.weights),
        "all_reduce": _scaled(
            source.by_tokens["all_reduce"], "tokens", _reduce_work(wanted) / _reduce_work(measured)
        ),
        "head": _scaled(source.head, "rows", head),
        "prefill_attention": {
            "pairs_per_token": attention.pairs_per_token,
            "pairs_per_chunk": attention.pairs_per_chunk,
            "keys_per_token": attention.keys_per_token,
            **_scaled(attention.curve, "effective_pairs", by.attention),
        },
        "decode_attention": {
            "rows": list(source.decode_attention.rows),
            "contexts": list(source.decode_attention.contexts),
            "ns": [_times(line, by.keys) for line in source.decode_attention.ns],
        },
    }
    return fields


def _vocabulary_work(place: Place) -> float:
    model = load_model(place.model)
    return model.vocabulary * model.hidden / place.tensor_parallel


def _reduce_work(place: Place) -> float:
    """Bytes that a ring all-reduce moves per token and GPU, all layers."""
    model, ways = load_model(place.model), place.tensor_parallel
    return model.layers * model.hidden * (ways - 1) / ways


def _scaled(curve: Curve, axis: str, ratio: float) -> dict[str, Any]:
    return {axis: list(curve.knots), "ns": _times(curve.ns, ratio)}


def _times(ns: Sequence[float], ratio: float) -> list[float]:
    return [round(time * ratio, 1) for time in ns]


def profiles() -> dict[str, dict[str, Any]]:
    """Every profile that the paper scenarios name, as the fields of its file."""
    made = {name: fitted_profile(fit, wanted) for name, (fit, wanted) in FITTED.items()}
    source = find_profile(LLAMA_70B_PROFILE, Path())
    return made | {"yi-34b_a100-80_tp2": scaled_profile(source, LLAMA_70B, YI)}


def exponential_outputs(cap: int) -> list[int]:
    """Mid-quantiles of an exponential that is drawn again above the cap, in whole tokens >= 1."""
    inside = 1 - exp(-cap / MEAN_OUTPUT_TOKENS)
    middles = ((rank + 0.5) / SAMPLES * inside for rank in range(SAMPLES))
    return [max(1, min(cap, round(-MEAN_OUTPUT_TOKENS * log1p(-share)))) for share in middles]


def anyscale_lengths() -> dict[str, list[tuple[int, int]]]:
    """The lengths of Anyscale's two benchmarks: prompts of 512 per output cap, or uniform prompts."""
    fixed = {
        f"anyscale-cap-{cap}": [(512, output) for output in exponential_outputs(cap)]
        for cap in (32, 128, 512, 1536)
    }
    order = np.random.default_rng(0).permutation(SAMPLES).tolist()
    outputs = exponential_outputs(1536)
    spans = {"anyscale-blog": (1, 512), "anyscale-scripts": (128, 384)}
    return fixed | {
        name: [
            (low + (high - low) * rank // (SAMPLES - 1), outputs[other]) for rank, other in enumerate(order)
        ]
        for name, (low, high) in spans.items()
    }


def main() -> None:
    for name, fields in profiles().items():
        write_profile(fields, PAPERS / "profiles" / f"{name}.json")
    for name, rows in anyscale_lengths().items():
        lines = ["prompt_tokens,output_tokens", *(f"{prompt},{output}" for prompt, output in rows)]
        (PAPERS / "lengths" / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
