"""Offline throughput of TensorRT-LLM: output tokens per second with everything queued at once."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.fidelity.engine_terms import EngineTerms
from benchmarks.fidelity.replay import Server, replay
from benchmarks.fidelity.study import Row, Study
from simulator.profile import Profile, find_profile
from simulator.workloads.arrival import Arrival

FILE = Path("engines/trtllm_perf_overview/max_throughput.csv")
PLACES = {
    ("LLaMA v3.1 8B", "1", "H100"): "h100-sxm_llama-3.1-8b_bf16_tp1",
    ("LLaMA v3.1 8B", "1", "A100SXM"): "a100-80-sxm_llama-3.1-8b_bf16_tp1",
    ("LLaMA v3.1 70B", "4", "H100"): "h100-sxm_llama-3.1-70b_bf16_tp4",
    ("LLaMA v3.1 70B", "4", "A100SXM"): "a100-80-sxm_llama-3.1-70b_bf16_tp4",
}
LEAST_REQUESTS, TOKENS = 400, 1_500_000
SETTINGS: dict[str, Any] = {"policy": "tensorrt-llm", "max_num_seqs": 2048, "max_num_batched_tokens": 8192}


class Line(NamedTuple):
    """One line of the table: 16-bit weights on a GPU and model that a shipped profile stands for."""

    version: str
    profile: str
    prompt: int
    output: int
    tokens_per_s: float


def read_lines(source: Path) -> list[Line]:
    with (source / FILE).open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text))
    return [
        Line(
            row["trtllm_version"],
            PLACES[row["model"], row["tp"], row["gpu"]],
            int(row["isl"]),
            int(row["osl"]),
            float(row["output_tok_s"]),
        )
        for row in rows
        if row["precision"] == "FP16" and (row["model"], row["tp"], row["gpu"]) in PLACES
    ]


def study(source: Path, terms: Mapping[str, EngineTerms]) -> Study:
    """Every line under the terms of the same engine's open-loop runs."""
    rows = []
    for line in read_lines(source):
        profile = find_profile(line.profile, Path())
        place = f"trtllm-0.14 {profile.model} TP{profile.tensor_parallel}"
        tokens, extrapolated = output_tokens_per_s(line, terms[place].applied(profile))
        name = f"TensorRT-LLM {line.version}, {line.profile}"
        rows.append(Row(name, "output tokens/s", line.tokens_per_s, tokens, "test", extrapolated))
    return Study(TITLE, SOURCE, SETTING, rows)


def output_tokens_per_s(line: Line, profile: Profile) -> tuple[float, float]:
    """Throughput of a burst long enough that its ends weigh little, and the share extrapolated."""
    requests = max(LEAST_REQUESTS, TOKENS // (line.prompt + line.output))
    arrivals = [Arrival(0, line.prompt, line.output, line.output)] * requests
    chunking = "fcfs" if line.prompt > SETTINGS["max_num_batched_tokens"] else "off"
    made = replay(Server(SETTINGS | {"context_chunking": chunking}, profile), arrivals)
    return requests * line.output / made.duration_s, made.extrapolated


TITLE = "TensorRT-LLM 0.14 and 0.17 offline, Llama 3.1 8B and 70B, 16 bits"
SOURCE = (
    "TensorRT-LLM's perf-overview page (Apache-2.0), versions 0.14 and 0.17: maximum throughput of "
    "trtllm-bench on H100 and A100 SXM."
)
SETTING = (
    "Shipped profiles under the terms fitted to the open-loop runs of version 0.14 on the H100 (other "
    "measurements): nothing here was used in a fit. A burst of at least 400 requests of fixed lengths, "
    "guaranteed no evict, 2,048 seats, 8,192 tokens; the published runs tune seats and tokens per "
    "line and do not "
    "say to what."
)
