"""Reports of GuideLLM: several benchmarks a file, each with figures, and with requests if they were kept.

https://github.com/vllm-project/guidellm, src/guidellm/schemas. Its `time_per_output_token_ms` divides the
whole latency by the tokens, which is called latency per token here; its `inter_token_latency_ms` is what is
called TPOT here, but weighted by tokens. `p001` is the 0.1th percentile and `p999` the 99.9th.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.measured.measurement import (
    Answer,
    Measurement,
    MeasurementError,
    counted,
    ns,
    number,
    run_tables,
    spread_ms,
    tokens,
)
from simulator.metrics import Summary

LATENCIES = {
    "ttft_ms": ("time_to_first_token_ms", 1.0),
    "tpot_ms": ("inter_token_latency_ms", 1.0),
    "e2e_ms": ("request_latency", 1000.0),
    "normalized_ms_per_token": ("time_per_output_token_ms", 1.0),
}
PERCENTILES = ("p50", "p90", "p95", "p99")
RATES = {
    "requests_per_s": "requests_per_second",
    "output_tokens_per_s": "output_tokens_per_second",
    "total_tokens_per_s": "tokens_per_second",
}

Fields = Mapping[str, object]


def measurements(report: Fields, place: str) -> list[Measurement]:
    """Every benchmark of a report."""
    found = report.get("benchmarks")
    if not isinstance(found, list) or not found:
        raise MeasurementError(f"{place}: benchmarks must be a list of at least one")
    return [_measurement(_fields(one), f"{place}: benchmarks[{i}]") for i, one in enumerate(found)]


def _measurement(benchmark: Fields, place: str) -> Measurement:
    metrics = _fields(benchmark.get("metrics"))
    totals = _fields(metrics.get("request_totals"))
    completed, failed, unfinished = (
        tokens(number(totals.get(key)), f"{place}: metrics.request_totals.{key}")
        for key in ("successful", "errored", "incomplete")
    )
    stated: Summary = {
        "requests": counted(completed, failed, unfinished),
        "duration_s": number(benchmark.get("duration")),
        "throughput": {ours: _successes(metrics, theirs).get("mean") for ours, theirs in RATES.items()},
        **{ours: _latency(metrics, *theirs) for ours, theirs in LATENCIES.items()},
    }
    answers = _answers(_fields(benchmark.get("requests")), place)
    model = str(_fields(_fields(benchmark.get("config")).get("backend")).get("model") or "")
    if len(answers) != completed + failed or not answers:
        return Measurement("GuideLLM", model, stated)
    return Measurement("GuideLLM", model, stated, run_tables(answers, ()), timed=True)


def _fields(value: object) -> Fields:
    return value if isinstance(value, dict) else {}


def _successes(metrics: Fields, name: str) -> Fields:
    return _fields(_fields(metrics.get(name)).get("successful"))


def _latency(metrics: Fields, name: str, ms_per_unit: float) -> dict[str, float]:
    statistics = _successes(metrics, name)
    if not statistics.get("count"):
        return {}
    shares = spread_ms(_fields(statistics.get("percentiles")), dict(pairs(PERCENTILES)), ms_per_unit)
    return spread_ms(statistics, {"mean": "mean", "max": "max"}, ms_per_unit) | shares


def pairs(names: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Names that are the same on both sides."""
    return [(name, name) for name in names]


def _answers(requests: Fields, place: str) -> list[Answer]:
    kept = [(_fields(one), False) for one in _list(requests.get("successful"))]
    kept += [(_fields(one), True) for one in _list(requests.get("errored"))]
    return [_answer(one, failed, f"{place}: requests") for one, failed in kept]


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _answer(request: Fields, failed: bool, place: str) -> Answer:
    timings = _fields(_fields(request.get("info")).get("timings"))
    start = number(timings.get("request_start")) or number(timings.get("resolve_start"))
    if start is None:
        raise MeasurementError(f"{place}: info.timings.request_start is missing")
    prompt, output = (
        tokens(number(_fields(request.get(key)).get("text_tokens")), f"{place}: {key}")
        for key in ("input_metrics", "output_metrics")
    )
    end = number(timings.get("request_end"))
    if failed or end is None:
        reason = str(_fields(request.get("info")).get("error") or "failed")
        return Answer(ns(start, place), prompt, 0, -1, -1, reason)
    first = number(timings.get("first_token_iteration")) or end
    return Answer(ns(start, place), prompt, output, ns(first, place), ns(end, place))
