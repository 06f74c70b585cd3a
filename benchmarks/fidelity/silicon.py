"""Closed loops on Hopper GPUs: NVIDIA's sample of measured engines, dense models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import RandomState

from benchmarks.fidelity.replay import NS_PER_MS, Replayed, Server, replay
from benchmarks.fidelity.study import Row, Split, Study, Target
from calibration import host
from calibration.aiconfigurator import import_tables
from calibration.fit import as_profile, fit_profile, host_term
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.profile import Profile
from simulator.workloads.arrival import Arrival

WAVES = 10  # requests of each client, the first of which all come at once
SHORTEST = 0.8  # of the nominal lengths in the runs of the public benchmark, which draws them uniformly
ENGINES: dict[str, dict[str, Any]] = {
    "vllm": {"policy": "vllm-v1", "max_num_seqs": 1024, "max_num_batched_tokens": 8192},
    "trtllm": {"policy": "tensorrt-llm", "max_num_seqs": 512, "max_num_batched_tokens": 8192},
    "sglang": {"policy": "sglang", "max_num_seqs": 512},
}
GENERATED = "aic-auto-gap-analysis"  # in the source of runs whose deployments AIConfigurator wrote
MARGIN_TOKENS = 1500
"""Its generator sets seats to the number of clients, and the token budget to them + prompt + 1,500."""
LACKING_SEATS = {"trtllm": 1}
"""TTFT grows with the answer by 1/clients of its time, as if one client always waited for a seat."""
LLAMA_8B, LLAMA_70B, QWEN = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-32B"
SEEN = frozenset({(LLAMA_8B, "trtllm", 1), (QWEN, "vllm", 2)})  # by whose TTFT settings were chosen


class Place(NamedTuple):
    """A model on so many GPUs under an engine. ``listed``: how the measurements name the model."""

    model: str
    listed: str
    hardware: str
    engine: str
    dtype: str
    tensor_parallel: int

    @property
    def split(self) -> Split:
        """Whether the shipped host term was fitted on this place's time per token."""
        fitted = {group[:6] for group in host.GROUPS if group.fit}
        return "fit" if tuple(self) in fitted else "test"

    @property
    def ttft_split(self) -> Split:
        """Whether an assumption on seats or budget was chosen by this place's time to the first token."""
        return "fit" if (self.model, self.engine, self.tensor_parallel) in SEEN else "test"

    @property
    def name(self) -> str:
        model = self.model.rpartition("/")[2]
        return f"{model} {self.dtype} TP{self.tensor_parallel} on {self.hardware}, {self.engine}"


class Run(NamedTuple):
    """Lengths, clients, what was measured, whether lengths vary, whether the deployment was generated."""

    prompt: int
    output: int
    clients: int
    ttft_ms: float
    tpot_ms: float
    varied: bool
    generated: bool


def places() -> list[Place]:
    """Everything dense in the sample that a kernel table stands for."""
    eight = (LLAMA_8B, f"{LLAMA_8B}-Instruct", "h100-sxm", "trtllm", "bfloat16")
    kinds = [
        (eight, (1, 2, 4, 8)),
        ((LLAMA_70B, LLAMA_70B, "h200-sxm", "vllm", "float8"), (1, 2, 4, 8)),
        ((LLAMA_70B, LLAMA_70B, "h200-sxm", "trtllm", "float8"), (1, 2, 4, 8)),
        ((QWEN, QWEN, "h100-sxm", "vllm", "bfloat16"), (2, 4, 8)),
        ((QWEN, QWEN, "h100-sxm", "trtllm", "float8"), (1, 2, 4, 8)),
        ((QWEN, QWEN, "h100-sxm", "sglang", "bfloat16"), (2, 4, 8)),
    ]
    return [Place(*kind, ways) for kind, degrees in kinds for ways in degrees]


def read_runs(source: Path, place: Place) -> list[Run]:
    """The place's runs; those of single GPUs of a data-parallel group are left out."""
    import duckdb

    quantised = "gemm_quant_mode = 'fp8'" if place.dtype == "float8" else "gemm_quant_mode is null"
    query = (
        "select isl, osl, batch_size, silicon_ttft_ms, silicon_tpot_ms, "
        f"silicon_data_source like '%2026-04-06.csv%', silicon_data_source like '%{GENERATED}%' from "
        f"read_csv(?) where mode = 'agg' and {quantised} "
        "and backend = ? and model_path = ? and system = ? and tp_size = ? order by all"
    )
    system = place.hardware.replace("-", "_")
    values = [str(source / host.RUNS), place.engine, place.listed, system, place.tensor_parallel]
    with duckdb.connect() as connection:
        return [Run(*row) for row in connection.execute(query, values).fetchall()]


def study(source: Path, chosen: Sequence[Place] | None = None) -> Study:
    """All runs of all places."""
    rows = [row for place in chosen or places() for row in compare(source, place)]
    return Study(TITLE, SOURCE, SETTING, rows, TARGETS, OTHERS)


def compare(source: Path, place: Place) -> Iterator[Row]:
    """Mean TPOT and mean TTFT of a place's runs."""
    clock = profile(source, place)
    for run in read_runs(source, place):
        made = simulate(place, clock, run)
        figures = (("TPOT", run.tpot_ms, made.metrics.tpot_ns), ("TTFT", run.ttft_ms, made.metrics.ttft_ns))
        for metric, measured, ours in figures:
            mean = float(np.nanmean(ours)) / NS_PER_MS
            split = place.split if metric == "TPOT" else place.ttft_split
            yield Row(place.name, metric, measured, mean, split, made.extrapolated)


def profile(source: Path, place: Place) -> Profile:
    """The kernel tables' profile of a place under the shipped host term."""
    model, hardware = load_model(place.model), load_hardware(place.hardware)
    ways = place.tensor_parallel
    found = import_tables(source / host.TABLES, model, hardware, place.dtype, ways)
    term = host_term(place.hardware, ways, model.layers)
    return as_profile(fit_profile(found, term, check=False), place.name)


def simulate(place: Place, clock: Profile, run: Run) -> Replayed:
    """The closed loop: every client sends ten requests, one after the other."""
    settings = settings_of(place, run)
    requests = WAVES * run.clients
    prompts, outputs = ([length] * requests for length in (run.prompt, run.output))
    if run.varied:
        generator = RandomState(0)
        prompts, outputs = (_drawn(generator, length, requests) for length in (run.prompt, run.output))
    sent = [Arrival(0, p, o, o) for p, o in zip(prompts, outputs, strict=True)]
    return replay(Server(settings, clock), sent, run.clients)


def settings_of(place: Place, run: Run) -> dict[str, Any]:
    """The engine's settings: its defaults, or what the generator of the deployment writes."""
    settings = dict(ENGINES[place.engine])
    if run.generated and "max_num_batched_tokens" in settings:
        settings["max_num_batched_tokens"] = run.clients + run.prompt + MARGIN_TOKENS
        settings["max_num_seqs"] = run.clients - LACKING_SEATS.get(place.engine, 0)
    return settings


def _drawn(generator: RandomState, longest: int, count: int) -> list[int]:
    return [int(length) for length in generator.randint(int(SHORTEST * longest), longest + 1, count)]


TITLE = "Closed loops on H100 and H200 (NVIDIA's silicon sample), dense models"
SOURCE = (
    "silicon_sample.csv of aiconfigurator-core 0.12.0 (Apache-2.0): mean TTFT and TPOT by lengths "
    "and number "
    "of clients; vLLM 0.12, TensorRT-LLM 1.0, SGLang 0.5."
)
SETTING = (
    "Kernel tables of vLLM 0.24 for all engines, the shipped host term (`calibration/host.py`, "
    "fitted on the "
    "TPOT of six of these configurations, which count as fit). Every client sends ten requests in "
    "turn, all "
    "clients starting at once, as the benchmarks do: the start-up burst is part of the mean TTFT. Neither "
    "request counts nor flags are published, so TTFT rests on assumptions. Deployments that AIConfigurator "
    "wrote have as many seats as clients and a budget of clients + prompt + 1,500 tokens (its generator's "
    "source); the others each engine's defaults, and lengths from 80 to 100 % of nominal, as the public "
    "benchmark draws them. TensorRT-LLM's TTFT grows with the answer by 1/clients of its time, as if "
    "one client always waited for a seat, and is given one seat fewer. Seats and budgets were settled on "
    "the TTFT of Llama-3.1-8B TP1 (TensorRT-LLM) and of Qwen3-32B TP2 (vLLM), which count as fit."
)
TARGETS = (Target("TPOT", 0.07, "median"), Target("TTFT", 0.20, "median"))
OTHERS = (
    "Other simulators: the closed form of AIConfigurator 0.12 itself on 748 dense Hopper rows of this "
    "sample, with current tables: TPOT median 10.4 %, TTFT median 49 % (our run of its code)."
)
