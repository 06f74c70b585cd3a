"""Results of load tools: our figures from their requests are their own figures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import UserError
from simulator.measured.read import read_measurements
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces.trace import open_trace

MS = 1_000_000
VLLM = ("data", "formats", "vllm_bench", "SYNTHETIC_detailed_result_schema_v0.33.json")
SGLANG = ("data", "formats", "sglang_bench", "SYNTHETIC_output_details_schema_v0.5.23.jsonl")
AIPERF = ("data", "formats", "aiperf", "profile_export.from_docs.jsonl")
GUIDELLM = ("data", "formats", "guidellm", "guidellm_report_v2.json")
STAGE = ("data", "formats", "inference_perf", "stage_0_lifecycle_metrics.json")
LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms"}


def summary(path: Path) -> dict[str, Any]:
    (found,) = read_measurements(path)
    return found.summary()


@pytest.mark.parametrize(("file", "e2e"), [(VLLM, "e2el"), (SGLANG, "e2e_latency")])
def test_figures_of_the_requests_are_those_that_the_tool_states(
    shared: Callable[..., Path], file: tuple[str, ...], e2e: str
) -> None:
    """One of four requests failed, and statistics are over the others."""
    stated, found = json.loads(shared(*file).read_text()), summary(shared(*file))
    for theirs, ours in {**LATENCIES, e2e: "e2e_ms"}.items():
        assert found[ours]["mean"] == pytest.approx(stated[f"mean_{theirs}_ms"])
        assert found[ours]["p50"] == pytest.approx(stated[f"median_{theirs}_ms"])
        assert found[ours]["p99"] == pytest.approx(stated[f"p99_{theirs}_ms"])
    counted = {key: found["requests"][key] for key in ("offered", "completed", "failed")}
    assert counted == {"offered": 4, "completed": 3, "failed": 1}
    assert found["requests"]["reasons"][0]["example"] == "Service Unavailable"


def test_start_times_make_a_run_of_its_own_clock(shared: Callable[..., Path]) -> None:
    """Starts at 1000.0 to 1000.9 s; the last answer ends 58.5 ms after the last start."""
    assert summary(shared(*VLLM))["duration_s"] == pytest.approx(0.9585)
    assert open_trace(shared(*VLLM)).timed
    assert list(open_trace(shared(*VLLM)).rows()) == [
        Arrival(0, 374, 4, 4),
        Arrival(310 * MS, 396, 3, 3),
        Arrival(900 * MS, 91, 2, 2),
    ]


def test_without_start_times_throughput_is_the_tool_s_own(shared: Callable[..., Path]) -> None:
    found = summary(shared(*SGLANG))
    assert found["duration_s"] == 1.25
    assert found["throughput"]["requests_per_s"] == 2.4
    assert found["throughput"]["offered_requests_per_s"] is None
    assert not open_trace(shared(*SGLANG)).timed


def test_a_fork_s_seconds_become_milliseconds(shared: Callable[..., Path]) -> None:
    """InferenceX leaves out _ms and means seconds: median_ttft 0.2914, p99_e2el 9.5906."""
    found = summary(shared("data", "formats", "vllm_bench", "inferencex_variant_real.json"))
    assert found["ttft_ms"]["p50"] == pytest.approx(291.39942955)
    assert found["e2e_ms"]["p99"] == pytest.approx(9590.55404728)
    assert found["ttft_ms"]["p90"] is None
    assert found["tokens"] == {"prompt": 163840, "output": 20480, "cached": None}


def test_older_results_lack_failures_and_latencies(shared: Callable[..., Path], tmp_path: Path) -> None:
    """Without latencies an answer ends its gaps after its first token; failures are what is missing."""
    run = json.loads(shared(*VLLM).read_text())
    whole = summary(shared(*VLLM))
    del run["latencies"]
    (tmp_path / "old.json").write_text(json.dumps(run))
    assert summary(tmp_path / "old.json")["e2e_ms"]["p50"] == pytest.approx(whole["e2e_ms"]["p50"])
    for key in ("failed", "input_lens", "start_times"):
        del run[key]
    (tmp_path / "older.json").write_text(json.dumps(run))
    assert summary(tmp_path / "older.json")["requests"]["failed"] == 1


def test_runs_appended_to_a_file_are_runs_of_their_own(shared: Callable[..., Path], tmp_path: Path) -> None:
    line = json.dumps(json.loads(shared(*VLLM).read_text()))
    (tmp_path / "runs.json").write_text(f"{line}\n{line}\n")
    assert [run.tool for run in read_measurements(tmp_path / "runs.json")] == ["vllm bench serve"] * 2
    with pytest.raises(UserError, match="holds 2 runs; a trace is one"):
        open_trace(tmp_path / "runs.json")


def test_aiperf_names_the_unit_of_every_figure(shared: Callable[..., Path]) -> None:
    """The documented record: TTFT 255.886568 ms, latency 297.525228 ms, 9 tokens, ITL 5.2048325 ms."""
    (run,) = read_measurements(shared(*AIPERF))
    found = run.summary()
    assert found["ttft_ms"]["max"] == pytest.approx(255.886568)
    assert found["e2e_ms"]["max"] == pytest.approx(297.525228)
    assert found["tpot_ms"]["max"] == pytest.approx(5.2048325)
    assert found["requests"]["failed"] == 1
    assert list(run.arrivals()) == [Arrival(0, 550, 9, 9)]


def test_aiperf_warm_up_is_left_out(shared: Callable[..., Path], tmp_path: Path) -> None:
    line = shared(*AIPERF).read_text().splitlines()[0]
    (tmp_path / "a.jsonl").write_text(f"{line.replace('profiling', 'warmup')}\n{line}\n")
    (run,) = read_measurements(tmp_path / "a.jsonl")
    assert run.summary()["requests"]["offered"] == 1
    assert run.notes == ("records of other phases than profiling are left out: 1",)


def test_figures_of_aiperf_are_told_in_ms(tmp_path: Path) -> None:
    latency = {"unit": "sec", "avg": 2.0, "p50": 1.5, "p90": 3.0, "p99": 4.0, "max": 5.0}
    rate = {"unit": "requests/sec", "avg": 7.5}
    report = {"request_latency": latency, "request_throughput": rate, "input_config": {}}
    (tmp_path / "p.json").write_text(json.dumps(report, indent=2))
    found = summary(tmp_path / "p.json")
    assert (found["e2e_ms"]["p90"], found["e2e_ms"]["p95"]) == (3000.0, None)
    assert found["throughput"]["requests_per_s"] == 7.5


def test_every_benchmark_of_a_guidellm_report(shared: Callable[..., Path]) -> None:
    """Its time per output token divides the whole latency; p999 is not the 99th percentile."""
    slow, fast = (run.summary() for run in read_measurements(shared(*GUIDELLM)))
    stated = json.loads(shared(*GUIDELLM).read_text())["benchmarks"][0]["metrics"]
    assert slow["ttft_ms"]["p99"] == stated["time_to_first_token_ms"]["successful"]["percentiles"]["p99"]
    assert slow["normalized_ms_per_token"]["mean"] == pytest.approx(19.789 / 8.1, rel=0.02)
    assert slow["tpot_ms"]["mean"] == pytest.approx(1.1508464813)
    assert slow["throughput"]["requests_per_s"] < fast["throughput"]["requests_per_s"]


def test_requests_of_guidellm_are_taken_where_all_were_kept(
    shared: Callable[..., Path], tmp_path: Path
) -> None:
    def kept(start: float) -> dict[str, Any]:
        timings = {"request_start": start, "first_token_iteration": start + 0.1, "request_end": start + 0.5}
        lengths = {"input_metrics": {"text_tokens": 40}, "output_metrics": {"text_tokens": 5}}
        return {"info": {"timings": timings}, **lengths}

    report = json.loads(shared(*GUIDELLM).read_text())
    sampled, whole = report["benchmarks"]
    sampled["requests"]["successful"] = [kept(7.0)]
    whole["requests"]["successful"] = [kept(9.0), kept(8.0)]
    (tmp_path / "g.json").write_text(json.dumps(report, indent=1))
    one, two = read_measurements(tmp_path / "g.json")
    assert one.tables is None
    assert two.summary()["tpot_ms"]["p50"] == pytest.approx(100)
    assert list(two.arrivals()) == [Arrival(0, 40, 5, 5), Arrival(1000 * MS, 40, 5, 5)]


def test_inference_perf_tells_seconds(shared: Callable[..., Path]) -> None:
    """A real stage of 60 requests at 1/s."""
    found = summary(shared(*STAGE))
    assert found["ttft_ms"]["p50"] == pytest.approx(31.026913959)
    assert found["tpot_ms"]["p99"] == pytest.approx(3.521602816)
    assert found["itl_ms"]["max"] == pytest.approx(9.143111994)
    assert found["requests"]["completed"] == 60
    assert found["throughput"]["offered_requests_per_s"] == pytest.approx(1.0254654)


@pytest.mark.parametrize("newer", [False, True])
def test_requests_of_inference_perf(tmp_path: Path, newer: bool) -> None:
    answer = {"output_tokens": 3, "output_token_times": [5.2, 5.3, 5.5]}
    info = (
        {"request_metrics": {"text": {"input_tokens": 11}}, "response_metrics": answer}
        if newer
        else {"input_tokens": 11, **answer}
    )
    good = {"start_time": 5.0, "end_time": 5.6, "request": "", "response": "", "info": info, "error": None}
    bad = {
        **good,
        "start_time": 5.1,
        "info": {},
        "error": {"error_type": "Timeout", "error_msg": "too late"},
    }
    (tmp_path / "r.json").write_text(json.dumps([good, bad], indent=2))
    (run,) = read_measurements(tmp_path / "r.json")
    found = run.summary()
    assert found["ttft_ms"]["max"] == pytest.approx(200)
    assert found["e2e_ms"]["max"] == pytest.approx(500)
    assert found["itl_ms"]["max"] == pytest.approx(200)
    assert found["requests"]["reasons"][0]["example"] == "too late"
    assert list(run.arrivals()) == [Arrival(0, 11, 3, 3)]


def test_what_nobody_saw_is_unknown_and_not_zero(shared: Callable[..., Path]) -> None:
    found = summary(shared(*VLLM))
    assert set(found["batch"].values()) | set(found["kv"].values()) | set(
        found["padding_waste"].values()
    ) == {None}
    assert (found["iterations"], found["requests"]["preemptions"]) == (None, None)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ttfts": [0.1]}, r":1: ttfts must hold 4 numbers like the lists beside it, not 1"),
        ({"itls": [[0.1], [], []]}, r":1: itls must hold 4 lists"),
        ({"output_lens": "x"}, r":1: output_lens must be a list of numbers \(below 1e\+19\), not 'x'"),
    ],
)
def test_lists_that_do_not_fit_are_refused(
    shared: Callable[..., Path], tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    (tmp_path / "r.json").write_text(json.dumps({**json.loads(shared(*VLLM).read_text()), **change}))
    with pytest.raises(UserError, match=problem):
        read_measurements(tmp_path / "r.json")


def test_a_truncated_file_is_refused_with_its_line(shared: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(shared(*VLLM).read_text()[:-40])
    with pytest.raises(
        UserError, match=r"r\.json:\d+: must be JSON from start to end; is the file truncated\?"
    ):
        read_measurements(tmp_path / "r.json")


def test_other_json_is_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(UserError, match="is none of the results known here, those of vllm bench serve"):
        read_measurements(tmp_path / "x.json")


LISTED = [
    {
        "start_time": 5.0,
        "end_time": 5.6,
        "request": "",
        "response": "",
        "info": {"input_tokens": 11, "output_tokens": 3, "output_token_times": [5.2, 5.3, 5.5]},
    }
]
KEPT = {
    "info": {"timings": {"request_start": 7.0, "first_token_iteration": 7.1, "request_end": 7.5}},
    "input_metrics": {"text_tokens": 40},
    "output_metrics": {"text_tokens": 5},
}
KEPT_BY_GUIDELLM = {
    "metadata": {},
    "config": {},
    "benchmarks": [
        {"metrics": {"request_totals": {"successful": 1, "errored": 0}}, "requests": {"successful": [KEPT]}}
    ],
}
NUMBER = re.compile(r"(?<=[\s\[:,])-?\d+(\.\d+)?(?=[\s\],}])")
WRONG_NUMBERS = ("NaN", "-Infinity", "1e400", "-1e400", "1e17", "-1", "9" * 400, "9" * 5000, '"x"', "null")


@pytest.mark.parametrize("wrong", WRONG_NUMBERS, ids=lambda text: text[:9])
@pytest.mark.parametrize(
    "source",
    [VLLM, SGLANG, AIPERF, STAGE, LISTED, KEPT_BY_GUIDELLM],
    ids=["vllm", "sglang", "aiperf", "stage", "listed", "guidellm"],
)
def test_no_number_takes_the_reader_along(
    shared: Callable[..., Path], tmp_path: Path, source: Any, wrong: str
) -> None:
    """Each number in turn replaced: the file is read, or refused in one line that names it."""
    text = shared(*source).read_text() if isinstance(source, tuple) else json.dumps(source)
    places = [found.span() for found in NUMBER.finditer(text)]
    places = places[:: -(-len(places) // 24)]
    assert places
    damaged = tmp_path / "damaged.json"
    for start, end in places:
        damaged.write_text(text[:start] + wrong + text[end:])
        told = complaint(damaged)
        assert told is None or re.fullmatch(rf"{re.escape(str(damaged))}[^\n]+", told)


def complaint(path: Path) -> str | None:
    try:
        for measurement in read_measurements(path):
            measurement.summary()
    except UserError as error:
        return str(error)
    return None
