"""Static batches on A100 and H100: Argonne's LLM-Inference-Bench."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.fidelity.engine_terms import EngineTerms
from benchmarks.fidelity.replay import Replayed, Server, replay
from benchmarks.fidelity.study import Row, Split, Study
from simulator.hardware import load_hardware
from simulator.profile import Curve, DecodeAttention, Profile, find_profile
from simulator.workloads.arrival import Arrival

FILE = Path("engines/argonne_llm_inference_bench/Plots_All_results.csv")
GPUS = {"Nvidia A100 GPU": "a100-40-sxm", "Nvidia H100 GPU": "h100-sxm"}
MODELS = {
    ("meta-llama/Meta-Llama-3-8B", 1): "llama-3.1-8b_bf16_tp1",
    ("meta-llama/Meta-Llama-3-70B", 4): "llama-3.1-70b_bf16_tp4",
}
FIT = ("h100-sxm", "meta-llama/Meta-Llama-3-8B")  # configurations that the engines' terms are fitted on
SETTINGS = {"policy": "vllm-v1", "max_num_seqs": 256, "max_num_batched_tokens": 8192}


class Batch(NamedTuple):
    """One measured batch: as many tokens out as in, of every request; seconds to the last token."""

    gpu: str
    engine: str
    model: str
    profile: str
    tokens: int
    requests: int
    latency_s: float

    @property
    def fit(self) -> bool:
        return (self.gpu, self.model) == FIT


def read_batches(source: Path) -> list[Batch]:
    """The batches on GPUs, engines and models that a shipped profile stands for."""
    with (source / FILE).open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text))
    return [
        Batch(
            GPUS[row["Hardware"]],
            row["Framework"],
            row["Model"],
            MODELS[row["Model"], int(row["Num of Hardware"])],
            int(row["Input Output Length"]),
            int(row["Batch Size"]),
            float(row["Latency"]),
        )
        for row in rows
        if row["Hardware"] in GPUS
        and row["Framework"] in ("vLLM", "TensorRT-LLM")
        and (row["Model"], int(row["Num of Hardware"])) in MODELS
        and row["Latency"]
    ]


def study(source: Path, terms: Mapping[str, EngineTerms]) -> Study:
    """Every batch under its engine's terms."""
    rows = [
        _row(batch, simulate(batch, terms[f"argonne {batch.engine}"])) for batch in read_batches(source)
    ]
    return Study(TITLE, SOURCE, SETTING, rows, findings=FINDINGS)


def _row(batch: Batch, made: Replayed) -> Row:
    name = f"{batch.engine}, {batch.model.rpartition('/')[2]} on {batch.gpu}"
    far = 1.0 if batch.gpu == "a100-40-sxm" else made.extrapolated
    split: Split = "fit" if batch.fit else "test"
    return Row(name, "batch latency", batch.latency_s, made.duration_s, split, far)


def simulate(batch: Batch, terms: EngineTerms) -> Replayed:
    """The batch on the twin."""
    server = Server(SETTINGS, terms.applied(kernels(batch.gpu, batch.profile)))
    return replay(server, [Arrival(0, batch.tokens, batch.tokens, batch.tokens)] * batch.requests)


@lru_cache
def kernels(gpu: str, name: str) -> Profile:
    """The shipped profile; for the A100 of 40 GB that of 80 GB with all that is traffic slowed down."""
    if gpu != "a100-40-sxm":
        return find_profile(f"{gpu}_{name}", Path())
    source = find_profile(f"a100-80-sxm_{name}", Path())
    slower = load_hardware("a100-80-sxm").bandwidth_bytes_per_s / load_hardware(gpu).bandwidth_bytes_per_s
    decode = source.decode_attention
    return replace(
        source,
        hardware=gpu,
        by_tokens={**source.by_tokens, "dense": _slower_traffic(source.by_tokens["dense"], slower)},
        head=_slower_traffic(source.head, slower),
        decode_attention=DecodeAttention(
            decode.rows, decode.contexts, tuple(tuple(ns * slower for ns in line) for line in decode.ns)
        ),
    )


def _slower_traffic(curve: Curve, factor: float) -> Curve:
    """Weights take ``factor`` times as long to read; arithmetic, once it takes longer, hides that."""
    floor = curve.ns[0] * factor
    return Curve(curve.knots, tuple(max(ns, floor) for ns in curve.ns))


def loss(batches: Sequence[Batch], terms: EngineTerms) -> float:
    """Mean absolute logarithmic error."""
    return float(np.mean([abs(log(simulate(each, terms).duration_s / each.latency_s)) for each in batches]))


TITLE = "Static batches on A100 and H100 (LLM-Inference-Bench)"
SOURCE = (
    "github.com/argonne-lcf/LLM-Inference-Bench (BSD-3-Clause), Plots_All_results.csv; engines of 2024."
)
SETTING = (
    "All requests at once, as many tokens out as in. Llama-3-8B on one GPU and Llama-3-70B on four, "
    "vLLM and "
    "TensorRT-LLM. Each engine's terms are fitted on Llama-3-8B on the H100 and used for all else. The "
    "A100s are taken to have 40 GB (1.56 TB/s): single requests are slower than an A100 of 80 GB by "
    "just the "
    "ratio of bandwidths, and batches that would fit into 80 GB queue. There is no table of that GPU: its "
    "profile is the 80 GB one with weights and keys read more slowly, so its rows are extrapolated."
)
FINDINGS = (
    "Against profiles of the A100 with 80 GB these measurements look 15 to 28 % slow; the smaller and "
    "slower memory of the 40 GB model accounts for most of it. At one request we are now too slow by up "
    "to 14 %: the gap per layer was fitted on the H100 and seems smaller on the A100."
)
