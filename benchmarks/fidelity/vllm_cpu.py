"""Real vLLM 0.32 on a CPU: single steps, and whole runs behind a server."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fidelity.replay import NS_PER_S, Server, replay
from benchmarks.fidelity.study import Row, Split, Study
from calibration.black_box import Iteration, as_measurements, fit_iterations
from calibration.client_results import ClientRequest, engine_steps, read_requests, server_overhead
from calibration.fit import as_profile, fit_profile
from calibration.imports import Subject, black_box
from calibration.iteration_logs import UNTIMED, shape_of_rows
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.profile import Profile
from simulator.workloads.arrival import Arrival

FOLDER = Path("engines/vllm_cpu_0.32")
STEPPED = {
    "vllm_m50_bf16_inproc": "servetwin/llama-50m",
    "vllm_m50_bf16_inproc_quiet": "servetwin/llama-50m",
    "vllm_m250_bf16_inproc": "servetwin/llama-250m",
}
SERVED = {"vllm_serve_rate4": 4096, "vllm_serve_rateinf": 4096}
CALIBRATED_ON = "vllm_m50_bf16_inproc"
OVERHEAD_FROM = "vllm_serve_rate4"
FOLDS = 2


def study(source: Path) -> Study:
    """Steps predicted by the other half of their run; served runs predicted by steps of another process."""
    folder = source / FOLDER
    rows = [row for name in STEPPED for row in step_rows(folder, name)]
    rows += [row for name in SERVED for row in served_rows(folder, name)]
    return Study(TITLE, SOURCE, SETTING, rows)


def read_steps(path: Path) -> list[Iteration]:
    """Timed steps: from the start of one to the start of the next, the engine's own loop included."""
    steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
    return [
        Iteration(shape_of_rows(step["n"], step["ctx"]), (after["t"] - step["t"]) * NS_PER_S)
        for step, after in pairwise(steps)
    ]


def step_rows(folder: Path, name: str) -> list[Row]:
    """Every second step, predicted by a fit of the others, so that a drift of the machine is in both."""
    steps = read_steps(folder / f"{name}.json")
    fit = fit_iterations(steps[::FOLDS])
    left_out = [step for index, step in enumerate(steps) if index % FOLDS]
    guesses = fit.predict([step.shape for step in left_out])
    return [
        Row(
            name, "prompt step" if step.shape.prefills else "decode step", step.ns / 1e6, float(guess) / 1e6
        )
        for step, guess in zip(left_out, guesses, strict=True)
    ]


def calibrated(folder: Path) -> Profile:
    """A profile from the steps of one in-process run, with the overhead that half the requests show."""
    subject = Subject(load_model("servetwin/llama-50m"), load_hardware("cpu"), "bfloat16", 1, "vllm")
    header = replace(black_box(subject, CALIBRATED_ON), host=UNTIMED)
    measurements = as_measurements(read_steps(folder / f"{CALIBRATED_ON}.json"), header)
    profile = as_profile(fit_profile(measurements, UNTIMED, check=False), CALIBRATED_ON)
    requests = read_requests(folder / f"{OVERHEAD_FROM}.json")
    found = server_overhead(requests, engine_steps(requests))
    return replace(profile, server_overhead_ns=found["overhead_ns"])


def served_rows(folder: Path, name: str) -> list[Row]:
    """TTFT, TPOT and E2E of a run behind a server, as its client saw it."""
    requests = sorted(read_requests(folder / f"{name}.json"), key=_sent)
    start = requests[0].sent_s
    arrivals = [
        Arrival(
            round((request.sent_s - start) * NS_PER_S),
            request.prompt_tokens,
            len(request.token_s),
            len(request.token_s),
        )
        for request in requests
    ]
    made = replay(Server(settings(SERVED[name]), calibrated(folder)), arrivals)
    ours = {"TTFT": made.metrics.ttft_ns, "TPOT": made.metrics.tpot_ns, "E2E": made.metrics.e2e_ns}
    measured = {
        "TTFT": [request.token_s[0] - request.sent_s for request in requests],
        "TPOT": [_per_token_s(request) for request in requests],
        "E2E": [request.token_s[-1] - request.sent_s for request in requests],
    }
    split: Split = "fit" if name == OVERHEAD_FROM else "test"
    found = []
    for metric, theirs in measured.items():
        predicted = float(np.nanmean(ours[metric])) / 1e6
        shown: Split = split if metric != "TPOT" else "test"
        found.append(
            Row(
                name, f"mean {metric}", float(np.nanmean(theirs)) * 1e3, predicted, shown, made.extrapolated
            )
        )
    return found


def _sent(request: ClientRequest) -> float:
    return request.sent_s


def _per_token_s(request: ClientRequest) -> float:
    times = request.token_s
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else float("nan")


def settings(budget: int) -> dict[str, Any]:
    """vLLM's settings in these runs, by their meta fields."""
    return {
        "policy": "vllm-v1",
        "max_num_seqs": 256,
        "max_num_batched_tokens": budget,
        "block_size": 128,
        "kv_blocks": 2048,
        "prefix_caching": False,
    }


TITLE = "vLLM 0.32 on two CPU cores"
SOURCE = (
    "Measured for this project on a shared two-core Xeon with random-weight models of 48 M and 247 M "
    "parameters: 64 requests at once in process (every step timed), and `vllm serve` under "
    "`vllm bench serve` at 4 requests/s (48) and all at once (64)."
)
SETTING = (
    "In-process steps: every second step is predicted by a black-box fit of the others "
    "(`calibration/black_box.py`). Served runs: the clock is fitted to the steps of the in-process run of "
    "the small model, 40 minutes earlier, the server overhead to the run at 4 requests/s, whose TTFT and "
    "E2E therefore count as fit. The machine's speed drifts by up to 2 between runs, which no model knows."
)
