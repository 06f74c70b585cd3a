"""Reports of inference-perf: figures of a run or a stage, and a list of all requests.

https://github.com/kubernetes-sigs/inference-perf, inference_perf/reportgen. All times are seconds. Requests
keep their lengths and the times of their tokens in `info`, later releases in parts of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise

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

TOOL = "inference-perf"
LATENCIES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "time_per_output_token",
    "itl_ms": "inter_token_latency",
    "e2e_ms": "request_latency",
    "normalized_ms_per_token": "normalized_time_per_output_token",
}
STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99", "max": "max"}
RATES = {
    "requests_per_s": "requests_per_sec",
    "output_tokens_per_s": "output_tokens_per_sec",
    "total_tokens_per_s": "total_tokens_per_sec",
}

Fields = Mapping[str, object]


def summarised(report: Fields) -> Measurement:
    """The figures of a run or of one of its stages."""
    successes, failures = _fields(report.get("successes")), _fields(report.get("failures"))
    completed, failed = (int(number(one.get("count")) or 0) for one in (successes, failures))
    latency, rates = _fields(successes.get("latency")), _fields(successes.get("throughput"))
    stated: Summary = {
        "requests": counted(completed, failed),
        "throughput": {ours: number(rates.get(theirs)) for ours, theirs in RATES.items()},
        **{
            ours: spread_ms(_fields(latency.get(theirs)), STATISTICS, 1000.0)
            for ours, theirs in LATENCIES.items()
        },
    }
    offered = number(_fields(report.get("load_summary")).get("achieved_rate"))
    stated["throughput"]["offered_requests_per_s"] = offered
    return Measurement(TOOL, "", stated)


def _fields(value: object) -> Fields:
    return value if isinstance(value, dict) else {}


def listed(requests: Sequence[object], place: str) -> Measurement:
    """A list of all requests."""
    gaps_ns = array("q")
    answers = [_answer(_fields(one), f"{place}: [{i}]", gaps_ns) for i, one in enumerate(requests)]
    return Measurement(TOOL, "", {}, run_tables(answers, gaps_ns), timed=True)


def _answer(request: Fields, place: str, gaps_ns: array[int]) -> Answer:
    start, end = (number(request.get(key)) for key in ("start_time", "end_time"))
    if start is None or end is None:
        raise MeasurementError(f"{place}: start_time and end_time must be seconds")
    info = _fields(request.get("info"))
    answer = _fields(info.get("response_metrics")) or info
    asked = _fields(_fields(info.get("request_metrics")).get("text")) or info
    prompt, output = (
        tokens(number(asked.get("input_tokens")), f"{place}: input_tokens"),
        tokens(number(answer.get("output_tokens")), f"{place}: output_tokens"),
    )
    error = request.get("error")
    if error is not None or not output:
        return Answer(ns(start, place), prompt, 0, -1, -1, _reason(error))
    times = floats(answer.get("output_token_times") or [], f"{place}: output_token_times")
    times_ns = [ns(time, f"{place}: output_token_times") for time in times or (end,)]
    gaps_ns.extend(after - before for before, after in pairwise(times_ns))
    return Answer(ns(start, place), prompt, output, times_ns[0], times_ns[-1])


def _reason(error: object) -> str:
    if error is None:
        return "nothing was generated"
    return str(error.get("error_msg") or error.get("error_type")) if isinstance(error, dict) else str(error)
