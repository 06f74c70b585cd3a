"""Real vLLM 0.19 on an RTX 4090 and an RTX PRO 6000, request by request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.fidelity.replay import NS_PER_S, Replayed, Server, replay
from benchmarks.fidelity.study import Row, Study, Target
from calibration.fit import as_profile, fit_profile
from calibration.layer_profiles import import_layers
from calibration.measurements import Measurements, Sample
from calibration.uneven_rows import Spread
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.profile import Profile
from simulator.workloads.arrival import Arrival

Floats = NDArray[np.float64]
FOLDER = Path("engines/vllm_0.19_sharegpt")
SAMPLED_TIMES = 400
BYTES = 2  # of an activation


class Case(NamedTuple):
    """One measured run: its folder, the profile's folder, and what the meta file does not say."""

    run: str
    profile: str
    model: str
    hardware: str
    ranks: int = 1  # data-parallel ranks that share the experts and so run in lockstep


DENSE = "meta-llama/Llama-3.1-8B"
EXPERTS = "Qwen/Qwen3-30B-A3B-Instruct-2507"
CASES = (
    Case("RTX4090_Llama-3.1-8B", "RTX4090", DENSE, "rtx-4090"),
    Case("RTXPRO6000_Llama-3.1-8B", "RTXPRO6000", DENSE, "rtx-pro-6000"),
    Case("RTXPRO6000_Qwen3-30B-A3B-Instruct-2507", "RTXPRO6000", EXPERTS, "rtx-pro-6000", 2),
)
PUBLISHED = {"TTFT Mean": "mean TTFT", "TPOT Mean": "mean TPOT", "Latency Mean": "mean E2E"}
PUBLISHED |= {"TTFT P99": "p99 TTFT", "TPOT P99": "p99 TPOT", "Latency P99": "p99 E2E"}


class Requests(NamedTuple):
    """Measured requests in seconds since the first one was sent."""

    arrival_s: Floats
    first_s: Floats
    last_s: Floats
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]

    def latencies_s(self) -> dict[str, Floats]:
        decode = (self.last_s - self.first_s) / np.maximum(self.output - 1, 1)
        return {
            "TTFT": self.first_s - self.arrival_s,
            "TPOT": decode,
            "E2E": self.last_s - self.arrival_s,
        }


def read_requests(folder: Path) -> Requests:
    """The run's requests; the engine's clock is joined to the client's at the quickest hand-over."""
    lines = (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    columns = {name: np.asarray([row[name] for row in rows]) for name in rows[0] if name != "request_id"}
    sent = columns["arrival_time"]
    between = (columns["queued_ts"] - sent).min() + sent[0]
    return Requests(
        sent - sent[0],
        columns["first_token_ts"] - between,
        columns["last_token_ts"] - between,
        columns["input_toks"],
        columns["output_toks"],
    )


def study(source: Path) -> Study:
    """All three runs under the engine settings of their meta files."""
    rows = [row for case in CASES for row in compare(source / FOLDER, case)]
    return Study(TITLE, SOURCE, SETTING, rows, TARGETS, OTHERS, each_row=True, findings=FINDINGS)


def compare(folder: Path, case: Case) -> list[Row]:
    """A run and its twin: means and p99 of TTFT, TPOT and E2E."""
    requests = read_requests(folder / case.run)
    meta = json.loads((folder / case.run / "meta.json").read_text(encoding="utf-8"))
    made = twin(folder, case, meta, requests)
    published = published_errors((folder / case.run / "summary.txt").read_text(encoding="utf-8"))
    ours = {
        "TTFT": made.metrics.ttft_ns / NS_PER_S,
        "TPOT": made.metrics.tpot_ns / NS_PER_S,
        "E2E": made.metrics.e2e_ns / NS_PER_S,
    }
    found = []
    for name, measured in requests.latencies_s().items():
        for label, figure in (("mean", np.nanmean), ("p99", lambda values: np.nanquantile(values, 0.99))):
            metric = f"{label} {name}"
            figures = (float(figure(measured)) * 1e3, float(figure(ours[name])) * 1e3)
            extrapolated = 1.0 if case.ranks > 1 else made.extrapolated
            found.append(
                Row(case.run, metric, *figures, extrapolated=extrapolated, other=published.get(metric))
            )
    return found


def published_errors(summary: str) -> dict[str, float]:
    """LLMServingSim's own errors, from the table that its authors publish beside the run."""
    found: dict[str, float] = {}
    for line in summary.splitlines():
        for label, metric in PUBLISHED.items():
            if line.startswith(f"{label} "):
                found[metric] = float(line.split()[-1].rstrip("%")) / 100
    return found


def twin(folder: Path, case: Case, meta: Mapping[str, Any], requests: Requests) -> Replayed:
    """The run simulated twice: with equal rows, and with rows as uneven as the first pass found them."""
    arrivals = [
        Arrival(round(time * NS_PER_S), int(prompt), int(output), int(output))
        for time, prompt, output in zip(requests.arrival_s, requests.prompt, requests.output, strict=True)
    ]
    settings = engine_settings(meta, case.ranks)
    even = replay(Server(settings, profile(folder, case, None)), arrivals)
    return replay(Server(settings, profile(folder, case, spread_of(even))), arrivals)


def engine_settings(meta: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """vLLM's settings as the run's meta file gives them, ranks in lockstep taken as one engine."""
    given = meta["engine_kwargs"]
    settings = {
        "policy": "vllm-v1",
        "max_num_seqs": given["max_num_seqs"] * ranks,
        "max_num_batched_tokens": given["max_num_batched_tokens"],
    }
    if given["max_model_len"]:
        settings["max_model_len"] = given["max_model_len"]
    if "kv_cache" in meta:
        settings["kv_blocks"] = meta["kv_cache"]["num_gpu_blocks"]
    return settings


def profile(folder: Path, case: Case, spread: Spread | None) -> Profile:
    """The per-layer profile of the run's own GPU, published beside it."""
    measurements = import_layers(
        folder / "profiler_perf" / case.profile / case.model / "bf16",
        load_model(case.model),
        load_hardware(case.hardware),
        spread=spread,
        expert_ranks=case.ranks,
    )
    if case.ranks > 1:
        link = json.loads((folder / case.run / "config.json").read_text(encoding="utf-8"))
        measurements = in_lockstep(measurements, case.ranks, link["link_bw"], link["link_latency"])
    return as_profile(fit_profile(measurements, measurements.header.host, check=False), case.run)


def in_lockstep(measured: Measurements, ranks: int, gb_per_s: float, latency_ns: float) -> Measurements:
    """Ranks that share the experts as one engine: each has its share of the decoding rows, one the prompts.

    Every layer gathers the tokens of all ranks before the experts and scatters their sums after them.
    """
    model = load_model(measured.header.model)

    def shared(sample: Sample) -> Sample:
        operator, at, ns = sample
        if operator in ("dense", "prefill_attention"):
            return sample
        if operator == "experts":
            ns += 2 * model.moe_layers * (latency_ns + BYTES * at[0] * model.hidden / gb_per_s)
        return Sample(operator, tuple(value * ranks for value in at), ns)

    return Measurements(measured.header, tuple(shared(sample) for sample in measured.samples))


def spread_of(made: Replayed) -> Spread:
    """How uneven the contexts of decoding rows are in a run, each moment weighted by its rows."""
    found: list[tuple[float, float, int]] = []
    requests = made.tables.requests
    for replica in np.unique(requests["replica"]):
        columns = {name: values[requests["replica"] == replica] for name, values in requests.items()}
        found += _moments(columns)
    longest, rate, rows = np.asarray(found).T
    return Spread(float(np.average(longest, weights=rows)), float(np.average(rate, weights=rows)))


def _moments(requests: Mapping[str, NDArray[np.int64]]) -> list[tuple[float, float, int]]:
    first, last = requests["first_token_ns"], requests["finished_ns"]
    found = []
    for time in np.linspace(first.min(), last.max(), SAMPLED_TIMES):
        running = (first <= time) & (last > time)
        if running.sum() < 2:
            continue
        share = (time - first[running]) / (last[running] - first[running])
        contexts = requests["prompt_tokens"][running] + requests["output_tokens"][running] * share
        shortest, mean, longest = contexts.min(), contexts.mean(), contexts.max()
        found.append(
            (float(longest / mean), float((mean - shortest) / (longest - shortest)), int(running.sum()))
        )
    return found


TITLE = "vLLM 0.19, ShareGPT sessions on an RTX 4090 and an RTX PRO 6000"
SOURCE = (
    "github.com/casys-kaist/LLMServingSim (MIT), bench/examples: 300 requests each at about 10/s, "
    "per-request time stamps of the engine; per-layer profiles of the same GPUs."
)
SETTING = (
    "Same arrivals, lengths, engine settings and (RTX 4090) KV blocks as the measured run. The clock "
    "is the "
    "published per-layer profile as `servetwin calibrate import llmservingsim` reads it; decoding rows are "
    "as uneven as the twin's own first pass finds them. No host term: vLLM 0.19 schedules asynchronously. "
    "Nothing is fitted to the runs. TTFT counts from the client's time stamp; the engine's clock is joined "
    "to the client's at the quickest hand-over. In the run of Qwen3-30B-A3B two data-parallel ranks share "
    "the experts and wait for each other in every layer: they are taken as one engine with twice the "
    "seats, "
    "and what they exchange is priced by the link's latency and bandwidth in the authors' own config.json. "
    "Its rows are marked as extrapolated."
)
TARGETS = (
    Target("mean E2E", 0.03, "each"),
    Target("mean TPOT", 0.03, "each"),
    Target("mean TTFT", 0.10, "each"),
)
OTHERS = "Other: LLMServingSim with its own profiles (validation/summary.txt beside each run)."
FINDINGS = (
    "Two properties of attention carry the agreement: decoding rows beside a prompt chunk cost "
    "several times "
    "what they cost alone (the profile operator `mixed_decode_attention`), and rows of unequal "
    "length cost more "
    "than equal ones; without them the RTX PRO 6000 comes out too fast. The run of Qwen3-30B-A3B "
    "misses its "
    "targets: two ranks in lockstep are not two replicas nor quite one, and an error of some percent "
    "per token "
    "turns into a large one where a queue is about to form."
)
