"""Reads whatever a load tool left behind, once it is known which tool it was."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path

from simulator.measured import aiperf, bench, guidellm, inference_perf
from simulator.measured.measurement import LARGEST, Measurement, MeasurementError
from simulator.workloads.traces.head import json_keys
from simulator.workloads.traces.trace_file import open_text

# What sets each tool's file apart: all of these names are among the keys of its first object.
SIGNS = (
    ("guidellm", ("metadata", "config", "benchmarks")),
    ("aiperf records", ("metadata", "metrics", "error")),
    ("aiperf figures", ("input_config", "request_latency", "request_throughput")),
    ("inference-perf figures", ("load_summary", "successes", "failures")),
    ("inference-perf requests", ("start_time", "end_time", "request", "info")),
    ("bench", ("duration", "completed", "request_throughput", "output_throughput")),
)
TOOLS = "vllm bench serve, SGLang bench_serving, GuideLLM, AIPerf and inference-perf"


def kind_of(keys: Collection[str]) -> str | None:
    """What kind of results begin with an object of these keys; None if none of those known."""
    return next((kind for kind, wanted in SIGNS if all(key in keys for key in wanted)), None)


def is_measurement(path: Path) -> bool:
    """Whether a file looks like results of a load tool."""
    return path.is_file() and kind_of(json_keys(path)) is not None


def read_measurements(path: Path) -> list[Measurement]:
    """All runs of a load tool's file, at least one."""
    kind = kind_of(json_keys(path))
    if kind is None:
        raise MeasurementError(f"{path}: is none of the results known here, those of {TOOLS}")
    if kind == "aiperf records":
        return [aiperf.read_records(path)]
    return [found for place, document in _documents(path) for found in _runs(kind, document, place)]


def _runs(kind: str, document: object, place: str) -> list[Measurement]:
    if kind == "inference-perf requests" and isinstance(document, list):
        return [inference_perf.listed(document, place)]
    if not isinstance(document, dict):
        raise MeasurementError(f"{place}: must be a JSON object, not {document!r:.60}")
    if kind == "guidellm":
        return guidellm.measurements(document, place)
    if kind == "aiperf figures":
        return [aiperf.summarised(document)]
    if kind == "inference-perf figures":
        return [inference_perf.summarised(document)]
    return [bench.measurement(document, place)]


def _documents(path: Path) -> Iterator[tuple[str, object]]:
    """Every JSON value of a file, one after the other, each with its place."""
    with open_text(path) as opened:
        text = opened.read()
    decoder = json.JSONDecoder(parse_constant=_no_figure, parse_float=_bounded, parse_int=_bounded_whole)
    position = 0
    while position < len(text):
        try:
            document, end = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError) as error:
            line = text.count("\n", 0, getattr(error, "pos", position)) + 1
            raise MeasurementError(
                f"{path}:{line}: must be JSON from start to end; is the file truncated?"
            ) from error
        except ValueError as error:  # of a number; JSONDecodeError, its child, is dealt with
            line = text.count("\n", 0, position) + 1
            raise MeasurementError(
                f"{path}:{line}: numbers must be below {LARGEST:g}, not {error}"
            ) from error
        yield f"{path}:{text.count(chr(10), 0, position) + 1}", document
        while end < len(text) and text[end].isspace():
            end += 1
        position = end


def _no_figure(_: str) -> None:
    """NaN and the infinities, which stand where a tool had nothing to count."""


def _bounded(written: str) -> float:
    if not abs(value := float(written)) < LARGEST:
        raise ValueError(written if len(written) < 40 else f"{written[:37]}...")
    return value


def _bounded_whole(written: str) -> int:
    _bounded(written)
    return int(written)
