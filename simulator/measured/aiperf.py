"""Results of AIPerf: `profile_export.jsonl`, a record a request, and `profile_export_aiperf.json`, figures.

https://github.com/ai-dynamo/aiperf, docs/tutorials/working-with-profile-exports.md. Epoch times are ns, and
every metric names its unit. Records of other phases than profiling, such as warm-up, are left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from simulator.measured.measurement import (
    LATEST_S,
    NS_PER_S,
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
from simulator.workloads.traces.json_rows import JsonRow, json_rows

NS_PER_UNIT = {"ns": 1.0, "us": 1e3, "ms": 1e6, "sec": 1e9, "s": 1e9, "seconds": 1e9}
NS_PER_MS = 1e6
PHASE = "profiling"
TOOL = "AIPerf"
LATENCIES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "inter_token_latency",
    "e2e_ms": "request_latency",
}
STATISTICS = {"mean": "avg", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "max": "max"}
RATES = {
    "requests_per_s": "request_throughput",
    "output_tokens_per_s": "output_token_throughput",
    "total_tokens_per_s": "total_token_throughput",
}


def read_records(path: Path) -> Measurement:
    """A file of records, one a request."""
    answers: list[Answer] = []
    gaps_ns = array("q")
    warm_up = 0
    for _, row in json_rows(path):
        metadata = _inner(row, "metadata")
        if metadata.fields.get("benchmark_phase", PHASE) != PHASE:
            warm_up += 1
            continue
        answers.append(_answer(row, metadata))
        gaps_ns.extend(_chunk_gaps_ns(row))
    notes = (f"records of other phases than {PHASE} are left out: {warm_up:,}",) if warm_up else ()
    return Measurement(TOOL, "", {}, run_tables(answers, gaps_ns), timed=True, notes=notes)


def _inner(row: JsonRow, key: str) -> JsonRow:
    found = row.value(key)
    if not isinstance(found, dict):
        raise MeasurementError(f"{row.place}: {key} must be an object, not {found!r:.60}")
    return JsonRow(f"{row.place}: {key}", found)


class _Metric(NamedTuple):
    value: float
    ns_per_unit: float | None


def _metric(row: JsonRow, name: str) -> _Metric | None:
    found = _inner(row, "metrics").fields.get(name)
    value = number(found.get("value")) if isinstance(found, dict) else None
    if value is None:
        return None
    assert isinstance(found, dict)
    return _Metric(value, NS_PER_UNIT.get(str(found.get("unit"))))


def _duration_ns(row: JsonRow, name: str) -> int | None:
    metric = _metric(row, name)
    if metric is None:
        return None
    if metric.ns_per_unit is None:
        raise MeasurementError(f"{row.place}: {name} must be in one of {', '.join(NS_PER_UNIT)}")
    return ns(metric.value * metric.ns_per_unit / NS_PER_S, f"{row.place}: {name}")


def _answer(row: JsonRow, metadata: JsonRow) -> Answer:
    start_ns = metadata.value("request_start_ns")
    if type(start_ns) is not int or not 0 <= start_ns < LATEST_S * NS_PER_S:
        raise MeasurementError(f"{metadata.place}: request_start_ns must be whole ns, not {start_ns!r:.40}")
    prompt = _metric(row, "input_sequence_length") or _metric(row, "error_isl")
    output = _metric(row, "output_sequence_length")
    prompt_tokens, output_tokens = (
        tokens(length.value if length else None, f"{row.place}: sequence length")
        for length in (prompt, output)
    )
    latency_ns, ttft_ns = (_duration_ns(row, name) for name in ("request_latency", "time_to_first_token"))
    reason = _reason(row.fields.get("error"))
    if reason or latency_ns is None:
        return Answer(start_ns, prompt_tokens, 0, -1, -1, reason or "no latency was recorded")
    first_ns = start_ns + (latency_ns if ttft_ns is None else ttft_ns)
    return Answer(start_ns, prompt_tokens, output_tokens, first_ns, start_ns + latency_ns)


def _reason(error: object) -> str:
    if error is None:
        return ""
    return str(error.get("message") or error.get("type")) if isinstance(error, dict) else str(error)


def _chunk_gaps_ns(row: JsonRow) -> list[int]:
    found = _inner(row, "metrics").fields.get("inter_chunk_latency")
    if not isinstance(found, dict) or not isinstance(found.get("value"), list):
        return []
    s_per_unit = NS_PER_UNIT.get(str(found.get("unit")), NS_PER_MS) / NS_PER_S
    place = f"{row.place}: inter_chunk_latency"
    return [ns(gap * s_per_unit, place) for gap in floats(found["value"], place)]


def summarised(report: Mapping[str, object]) -> Measurement:
    """A file of figures over all requests."""
    stated: Summary = {
        "requests": counted(_count(report, "request_count"), _count(report, "error_request_count")),
        "throughput": {ours: _average(report, theirs) for ours, theirs in RATES.items()},
        **{ours: _latency(report, theirs) for ours, theirs in LATENCIES.items()},
    }
    duration, unit = _average(report, "benchmark_duration"), _unit(report, "benchmark_duration")
    if duration is not None:
        stated["duration_s"] = duration * NS_PER_UNIT.get(unit, 1e9) / 1e9
    return Measurement(TOOL, "", stated)


def _statistics(report: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = report.get(name)
    return found if isinstance(found, dict) else {}


def _average(report: Mapping[str, object], name: str) -> float | None:
    return number(_statistics(report, name).get("avg"))


def _count(report: Mapping[str, object], name: str) -> int | None:
    found = _average(report, name)
    return None if found is None else int(found)


def _unit(report: Mapping[str, object], name: str) -> str:
    return str(_statistics(report, name).get("unit"))


def _latency(report: Mapping[str, object], name: str) -> dict[str, float]:
    ns_per_unit = NS_PER_UNIT.get(_unit(report, name), NS_PER_MS)
    return spread_ms(_statistics(report, name), STATISTICS, ns_per_unit / NS_PER_MS)
