"""TensorRT-LLM under open load: mean TTFT, time between tokens and requests per second by arrival rate."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import RandomState

from benchmarks.fidelity.engine_terms import EngineTerms
from benchmarks.fidelity.replay import NS_PER_MS, NS_PER_S, Replayed, Server, replay
from benchmarks.fidelity.study import Row, Split, Study, Target
from simulator.profile import Profile, find_profile
from simulator.workloads.arrival import Arrival

FILE = Path("engines/trtllm_perf_overview/online_serving.csv")
REQUESTS = 500
SEED = 0  # of the benchmark client: 500 gaps drawn from it make the measured 0.99 of each nominal rate
FIT_GPU, TEST_GPU = "h100-sxm", "h200-sxm"
SETTINGS = {"policy": "tensorrt-llm", "max_num_seqs": 2048, "max_num_batched_tokens": 8192}
CHAT_OUTPUT = 214  # the mean of the data set whose lengths vary
PROMPT_VARIATION, OUTPUT_VARIATION, LONGEST = 1.2, 1.1, 1024  # of ShareGPT after its benchmark's filter
ENGINE = "trtllm-0.14"
METRICS = ("requests/s", "TTFT", "ITL")


class Run(NamedTuple):
    """One line of the table; ``rate_per_s`` is None where all requests came at once."""

    model: str
    gpu: str
    tensor_parallel: int
    prompt: int
    output: int
    rate_per_s: float | None
    requests_per_s: float
    ttft_ms: float
    itl_ms: float

    @property
    def place(self) -> str:
        return f"{self.model} TP{self.tensor_parallel}"

    @property
    def measured(self) -> tuple[float, float, float]:
        return self.requests_per_s, self.ttft_ms, self.itl_ms


def read_runs(source: Path) -> list[Run]:
    """All runs; requests/s from the token rate, which is printed with more digits."""
    with (source / FILE).open(encoding="utf-8", newline="") as text:
        return [_run(row) for row in csv.DictReader(text)]


def _run(row: dict[str, str]) -> Run:
    prompt, output = int(row["input_len"]), int(row["output_len"])
    return Run(
        "meta-llama/" + row["model"].replace("LLaMA ", "Llama-").replace(" ", "-"),
        FIT_GPU if row["gpu"].startswith("H100") else TEST_GPU,
        int(row["tp"]),
        prompt,
        output,
        None if row["qps"] == "INF" else float(row["qps"]),
        float(row["total_tok_s"]) / (prompt + output),
        float(row["mean_ttft_ms"]),
        float(row["mean_itl_ms"]),
    )


def study(source: Path, terms: Mapping[str, EngineTerms]) -> Study:
    """Every run under the terms of its model and parallelism."""
    rows = [row for run in read_runs(source) for row in compare(run, terms[f"{ENGINE} {run.place}"])]
    return Study(TITLE, SOURCE, SETTING, rows, TARGETS)


def compare(run: Run, terms: EngineTerms) -> list[Row]:
    """A run's three figures beside the twin's."""
    made = simulate(run, terms)
    name = f"{run.place} on {run.gpu}, {run.prompt} + {run.output} tokens"
    split: Split = "fit" if run.gpu == FIT_GPU else "test"
    return [
        Row(name, metric, theirs, ours, split, made.extrapolated)
        for metric, theirs, ours in zip(METRICS, run.measured, predicted(made), strict=True)
    ]


def simulate(run: Run, terms: EngineTerms) -> Replayed:
    """The run on the twin: kernels of the shipped profile under the engine's terms."""
    return replay(Server(SETTINGS, terms.applied(_kernels(run))), arrivals(run))


def _kernels(run: Run) -> Profile:
    name = run.model.rpartition("/")[2].lower()
    return _profile(f"{run.gpu}_{name}_bf16_tp{run.tensor_parallel}")


@lru_cache
def _profile(name: str) -> Profile:
    return find_profile(name, Path())


def arrivals(run: Run) -> list[Arrival]:
    """The client's requests: gaps as NumPy's old generator draws them, lengths alike or as in ShareGPT."""
    gaps = (
        RandomState(SEED).exponential(1 / run.rate_per_s, REQUESTS)
        if run.rate_per_s
        else np.zeros(REQUESTS)
    )
    times = np.cumsum(gaps) - gaps[0]
    prompts, outputs = lengths(run)
    return [
        Arrival(round(time * NS_PER_S), prompt, output, output)
        for time, prompt, output in zip(times.tolist(), prompts, outputs, strict=True)
    ]


def lengths(run: Run) -> tuple[Sequence[int], Sequence[int]]:
    if run.output != CHAT_OUTPUT:
        return [run.prompt] * REQUESTS, [run.output] * REQUESTS
    generator = RandomState(SEED + 1)
    return (
        _lognormal(generator, run.prompt, PROMPT_VARIATION),
        _lognormal(generator, run.output, OUTPUT_VARIATION),
    )


def _lognormal(generator: RandomState, mean: float, variation: float) -> list[int]:
    """Lengths with this mean and coefficient of variation, cut and brought back to the mean."""
    width = np.sqrt(log(1 + variation**2))
    drawn = np.clip(generator.lognormal(log(mean) - width**2 / 2, width, REQUESTS), 4, LONGEST)
    return [max(1, round(length)) for length in (drawn * mean / drawn.mean()).tolist()]


def predicted(made: Replayed) -> tuple[float, float, float]:
    """Requests per second, mean TTFT in ms, mean time between tokens in ms."""
    return (
        REQUESTS / made.duration_s,
        float(np.nanmean(made.metrics.ttft_ns)) / NS_PER_MS,
        made.mean_itl_ms,
    )


def loss(runs: Sequence[Run], terms: EngineTerms) -> float:
    """Mean absolute logarithmic error over runs and metrics."""
    errors = [
        abs(log(ours / theirs))
        for run in runs
        for ours, theirs in zip(predicted(simulate(run, terms)), run.measured, strict=True)
    ]
    return float(np.mean(errors))


TITLE = "TensorRT-LLM 0.14 under open load, Llama 3.1 8B and 70B on H100 and H200"
SOURCE = (
    "TensorRT-LLM's perf-overview page (Apache-2.0), online serving: 500 requests per run at 2 to 32 per "
    "second and all at once, Triton in front, BF16."
)
SETTING = (
    "Shipped profiles (kernels of vLLM 0.24) under five engine terms per model, fitted on the H100 "
    "and used "
    "on the H200 (`benchmarks/fidelity/engine_terms.py`, `terms.json`). Arrivals are the exponential gaps "
    "that NumPy's generator draws from seed 0, which give the measured 0.99 of each nominal rate. Lengths "
    "are fixed; where prompts and answers vary (202 and 214 tokens on average, as in ShareGPT) they are "
    "lognormal with ShareGPT's variation. Published times are whole milliseconds: at 6 ms a token "
    "that alone "
    "is 8 %. Requests/s are taken from the token rate, which has more digits."
)
TARGETS = (
    Target("ITL", 0.08, "median"),
    Target("requests/s", 0.05, "median"),
    Target("TTFT", 0.25, "median"),
)
