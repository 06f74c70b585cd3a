"""Results of `vllm bench serve` and of SGLang's bench_serving, which began as one program.

One JSON object a run, several runs a file. Keys as written by vllm 0.33 (vllm/benchmarks/serve.py) and
sglang 0.5.23 (sglang/benchmark/serving.py); forks that leave out `_ms` mean seconds. With
``--save-detailed`` and ``--output-details`` they hold every request; one that failed keeps its place, with
nothing generated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from simulator.measured.measurement import (
    Answer,
    Measurement,
    MeasurementError,
    counted,
    floats,
    ns,
    number,
    run_tables,
    spread_ms,
    tokens,
)
from simulator.metrics import Summary

LATENCIES = {
    "ttft_ms": ("ttft",),
    "tpot_ms": ("tpot",),
    "itl_ms": ("itl",),
    "e2e_ms": ("e2el", "e2e_latency"),
}
STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99", "max": "max"}
SGLANG_KEYS = ("total_output_tokens_retokenized", "dataset_name")

Run = Mapping[str, object]


def measurement(run: Run, place: str) -> Measurement:
    """One run as its file has it; ``place`` finds it for whoever reads an error."""
    sglang = any(key in run for key in SGLANG_KEYS)
    tool = "SGLang bench_serving" if sglang else "vllm bench serve"
    model = str(run.get("model_id") or _server_model(run) or "")
    stated = _stated(run)
    if not isinstance(run.get("input_lens"), list):
        return Measurement(tool, model, stated)
    answers, gaps_ns = _answers(run, place)
    timed = "start_times" in run
    notes = () if timed else ("start times are not in the file: only latencies come from its requests",)
    return Measurement(tool, model, stated, run_tables(answers, gaps_ns), timed, notes)


def _server_model(run: Run) -> object:
    server = run.get("server_info")
    return server.get("model_path") if isinstance(server, dict) else None


def _stated(run: Run) -> Summary:
    completed, failed = (number(run.get(key)) for key in ("completed", "failed"))
    offered = number(run.get("num_prompts"))
    if failed is None and offered is not None and completed is not None:
        failed = max(offered - completed, 0.0)
    throughput = {
        "requests_per_s": number(run.get("request_throughput")),
        "output_tokens_per_s": number(run.get("output_throughput")),
        "total_tokens_per_s": number(run.get("total_token_throughput", run.get("total_throughput"))),
    }
    latencies = {name: _latency(run, words) for name, words in LATENCIES.items()}
    return {
        "requests": counted(_whole(completed), _whole(failed)),
        "duration_s": number(run.get("duration")),
        "throughput": throughput,
        "slo": {"goodput_requests_per_s": number(run.get("request_goodput"))},
        "tokens": {
            "prompt": _whole(number(run.get("total_input_tokens"))),
            "output": _whole(number(run.get("total_output_tokens"))),
        },
        **latencies,
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _latency(run: Run, words: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for word in words:
        for suffix, ms_per_unit in (("", 1000.0), ("_ms", 1.0)):
            names = {ours: f"{theirs}_{word}{suffix}" for ours, theirs in STATISTICS.items()}
            found |= spread_ms(run, names, ms_per_unit)
    return found


def _answers(run: Run, place: str) -> tuple[list[Answer], Iterator[int]]:
    prompts = floats(run["input_lens"], f"{place}: input_lens")
    count = len(prompts)
    outputs, ttfts = (floats(run.get(key), f"{place}: {key}", count) for key in ("output_lens", "ttfts"))
    gaps = _gaps(run, place, count)
    starts = floats(run["start_times"], f"{place}: start_times", count) if "start_times" in run else None
    latencies = floats(run["latencies"], f"{place}: latencies", count) if "latencies" in run else None
    errors = _errors(run, place, count)
    answers = []
    for i in range(count):
        where = f"{place}: request {i}"
        start = 0.0 if starts is None else starts[i]
        latency = ttfts[i] + sum(gaps[i]) if latencies is None else latencies[i]
        reason = errors[i] or ("" if outputs[i] else "nothing was generated")
        ended = (start + ttfts[i], start + latency)
        first, end = (-1, -1) if reason else (ns(time, where) for time in ended)
        lengths = (tokens(prompts[i], where), tokens(outputs[i], where))
        answers.append(Answer(ns(start, where), *lengths, first, end, reason))
    return answers, (ns(gap, f"{place}: itls") for gap in chain.from_iterable(gaps))


def _gaps(run: Run, place: str, count: int) -> list[list[float]]:
    gaps = run.get("itls", [[]] * count)
    if not isinstance(gaps, list) or len(gaps) != count:
        raise MeasurementError(f"{place}: itls must hold {count} lists like the lists beside it")
    return [list(floats(one, f"{place}: itls[{i}]")) for i, one in enumerate(gaps)]


def _errors(run: Run, place: str, count: int) -> list[str]:
    errors = run.get("errors", [""] * count)
    if not isinstance(errors, list) or len(errors) != count:
        raise MeasurementError(f"{place}: errors must hold {count} texts like the lists beside it")
    return [(str(error).strip().splitlines() or [""])[-1] if error else "" for error in errors]
