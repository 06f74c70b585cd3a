"""Workloads built from settings: what is offered, when it ends, and what a seed fixes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.request import Content
from simulator.errors import ScenarioError, TraceError
from simulator.scenario import WorkloadSettings
from simulator.workloads.arrival import Arrival
from simulator.workloads.arrivals import poisson_times
from simulator.workloads.presets import PRESETS, preset_sampler
from simulator.workloads.workload import (
    PROCESSES,
    Workload,
    build_workload,
    generate,
    workload_descriptions,
    workload_seeds,
)

NOWHERE = Path("nowhere")
SECOND = 1_000_000_000
POISSON = {"process": "poisson", "rate_per_s": 8}
FIXED = {"fixed": {"prompt": 100, "output": 10}}
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:40,1000,10\n2023-11-16 18:15:42,2000,20\n2023-11-16 18:15:46,3000,30\n"
)


def settings(arrivals: dict[str, Any], lengths: dict[str, Any], **bounds: Any) -> WorkloadSettings:
    return WorkloadSettings.model_validate({"arrivals": arrivals, "lengths": lengths, **bounds})


def built(
    arrivals: dict[str, Any], lengths: dict[str, Any], folder: Path = NOWHERE, seed: int = 0, **bounds: Any
) -> Workload:
    return build_workload(settings(arrivals, lengths, **bounds), seed, folder)


def offered(*args: Any, **named: Any) -> list[Arrival]:
    return list(built(*args, **named).arrivals())


def times_ns(rows: list[Arrival]) -> list[int]:
    return [row.arrival_ns for row in rows]


def pairs(rows: list[Arrival]) -> list[tuple[int, int]]:
    return [(row.prompt_tokens, row.output_tokens) for row in rows]


# --- what a seed fixes ---


@pytest.mark.parametrize("preset", PRESETS)
def test_a_short_run_is_the_beginning_of_a_long_one(preset: str) -> None:
    short = offered(POISSON, {"preset": preset}, requests=100)
    long = offered(POISSON, {"preset": preset}, requests=20_000)
    assert len(short) == 100
    assert len(long) == 20_000
    assert long[:100] == short


@given(chunk=st.integers(1, 300))
def test_the_stream_does_not_depend_on_its_chunks(chunk: int) -> None:
    """Also where pairs are rejected, so that chunks are uneven."""

    def stream(chunk_requests: int) -> list[Arrival]:
        times = poisson_times(8, np.random.default_rng(1))
        wanted = settings(POISSON, {"preset": "arxiv"}, requests=200)
        return list(
            generate(times, preset_sampler("arxiv"), np.random.default_rng(2), wanted, chunk_requests)
        )

    assert stream(chunk) == stream(8192)


def test_each_start_gives_the_same_stream_and_another_seed_another() -> None:
    workload = built(POISSON, {"preset": "sharegpt"}, requests=500)
    assert list(workload.arrivals()) == list(workload.arrivals())
    assert offered(POISSON, {"preset": "sharegpt"}, requests=500, seed=1) != list(workload.arrivals())


def test_other_arrivals_leave_the_lengths_as_they_are() -> None:
    gamma = {"process": "gamma", "rate_per_s": 20, "cv": 2}
    first = offered(POISSON, {"preset": "lmsys"}, requests=500)
    second = offered(gamma, {"preset": "lmsys"}, requests=500)
    assert pairs(first) == pairs(second)
    assert times_ns(first) != times_ns(second)


def test_other_lengths_leave_the_arrivals_as_they_are() -> None:
    first = offered(POISSON, {"preset": "lmsys"}, requests=500)
    assert times_ns(first) == times_ns(offered(POISSON, FIXED, requests=500))


def test_another_rate_only_stretches_the_same_gaps() -> None:
    slow = np.diff(times_ns(offered(POISSON, FIXED, requests=500)))
    fast = np.diff(times_ns(offered({"process": "poisson", "rate_per_s": 16}, FIXED, requests=500)))
    assert np.abs(fast * 2 - slow).max() <= 3  # roundings to whole nanoseconds


def test_each_purpose_draws_from_its_own_seed() -> None:
    seeds = workload_seeds(5)
    assert len({tuple(seed.generate_state(4)) for seed in seeds}) == 5
    rows = offered(POISSON, {"preset": "sharegpt"}, requests=50, seed=5)
    assert times_ns(rows) == poisson_times(8, np.random.default_rng(seeds.arrivals)).take(50).tolist()
    lengths = preset_sampler("sharegpt")(np.random.default_rng(seeds.lengths), 50)
    assert pairs(rows) == list(zip(*(side.tolist() for side in lengths), strict=True))


# --- how many ---


def test_requests_and_duration_bound_the_stream_whichever_comes_first() -> None:
    constant = {"process": "constant", "rate_per_s": 10}
    assert len(offered(constant, FIXED, requests=7)) == 7
    assert len(offered(constant, FIXED, duration_s=5)) == 50
    assert len(offered(constant, FIXED, requests=7, duration_s=5)) == 7
    assert len(offered(constant, FIXED, requests=70, duration_s=5)) == 50


def test_no_request_is_later_than_the_duration_and_none_before_it_is_lost() -> None:
    bounded = offered(POISSON, FIXED, duration_s=2000)
    unbounded = offered(POISSON, FIXED, requests=len(bounded) + 1)
    assert bounded == unbounded[:-1]
    assert bounded[-1].arrival_ns <= 2000 * SECOND < unbounded[-1].arrival_ns


def test_a_rare_arrival_within_a_long_duration_is_no_overflow() -> None:
    assert len(offered({"process": "constant", "rate_per_s": 1e-7}, FIXED, duration_s=1e9)) == 100


def test_the_number_of_requests_is_told_only_where_it_is_known() -> None:
    assert built(POISSON, FIXED, requests=7).requests == 7
    assert built(POISSON, FIXED, requests=7, duration_s=1).requests is None
    assert built(POISSON, FIXED, duration_s=1).requests is None


def test_a_million_requests_are_generated_as_they_are_consumed() -> None:
    stream = built(POISSON, {"preset": "azure-conv"}, requests=1_000_000).arrivals()
    next(stream)
    tracemalloc.start()
    for _ in islice(stream, 30_000):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


# --- what is offered ---


def test_a_burst_arrives_at_once_and_a_closed_loop_has_no_times() -> None:
    burst = built({"process": "burst"}, FIXED, requests=3)
    assert list(burst.arrivals()) == [Arrival(0, 100, 10, 10)] * 3
    assert burst.concurrency is None
    closed = built({"process": "closed", "concurrency": 4}, FIXED, requests=3)
    assert list(closed.arrivals()) == [Arrival(0, 100, 10, 10)] * 3
    assert (closed.concurrency, closed.requests) == (4, 3)


def test_a_closed_loop_bounded_by_time_never_runs_out_of_requests() -> None:
    """How long it runs only the driver can know: time passes where requests are answered."""
    closed = built({"process": "closed", "concurrency": 4}, FIXED, duration_s=1)
    assert len(list(islice(closed.arrivals(), 20_000))) == 20_000
    assert closed.requests is None


def test_each_request_declares_its_own_output_unless_a_limit_is_given() -> None:
    assert all(
        row.output_limit == row.output_tokens for row in offered(POISSON, {"preset": "lmsys"}, requests=200)
    )
    limited = offered(POISSON, {"preset": "lmsys", "output_limit": 64}, requests=200)
    free = offered(POISSON, {"preset": "lmsys"}, requests=200)
    assert {row.output_limit for row in limited} == {64}
    assert [row.output_tokens for row in limited] == [min(row.output_tokens, 64) for row in free]


def test_uniform_and_lognormal_lengths_come_from_their_settings() -> None:
    uniform = offered(POISSON, {"uniform": {"prompt": [5, 6], "output": [7, 7]}}, requests=100)
    assert set(pairs(uniform)) == {(5, 7), (6, 7)}
    lognormal = {"prompt": {"mean": 800, "cv": 0.5}, "output": {"mean": 90, "cv": 0.1}}
    means = np.mean(pairs(offered(POISSON, {"lognormal": lognormal}, requests=20_000)), axis=0)
    assert means == pytest.approx([800, 90], rel=0.02)


def test_values_are_plain_integers() -> None:
    """Numpy scalars would slow every sum in the engine and could overflow silently."""
    row = offered(POISSON, {"preset": "lmsys"}, requests=1)[0]
    assert type(row) is Arrival
    assert [type(value) for value in row[:4]] == [int] * 4


# --- recorded workloads ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "azure.csv").write_text(AZURE)
    return tmp_path


def recorded(**more: Any) -> dict[str, Any]:
    return {"process": "trace", "file": "azure.csv", **more}


def test_a_trace_is_replayed_as_it_is(folder: Path) -> None:
    assert offered(recorded(), {"trace": True}, folder) == [
        Arrival(0, 1000, 10, 10),
        Arrival(2 * SECOND, 2000, 20, 20),
        Arrival(6 * SECOND, 3000, 30, 30),
    ]


def test_an_absolute_path_is_taken_as_it_is(folder: Path) -> None:
    absolute = recorded() | {"file": str(folder / "azure.csv")}
    assert len(offered(absolute, {"trace": True}, NOWHERE)) == 3


def test_a_trace_at_twice_its_rate_takes_half_the_time(folder: Path) -> None:
    assert times_ns(offered(recorded(rate_scale=2), {"trace": True}, folder)) == [0, SECOND, 3 * SECOND]


def test_requests_and_duration_cut_a_trace(folder: Path) -> None:
    assert len(offered(recorded(), {"trace": True}, folder, requests=2)) == 2
    assert len(offered(recorded(), {"trace": True}, folder, requests=9)) == 3
    assert len(offered(recorded(), {"trace": True}, folder, duration_s=2)) == 2
    assert len(offered(recorded(rate_scale=3), {"trace": True}, folder, duration_s=2)) == 3


def test_recorded_times_may_carry_drawn_lengths(folder: Path) -> None:
    rows = offered(recorded(), FIXED, folder)
    assert times_ns(rows) == [0, 2 * SECOND, 6 * SECOND]
    assert set(pairs(rows)) == {(100, 10)}


def test_caps_cut_recorded_lengths_and_say_how_many(folder: Path) -> None:
    lengths = {"trace": True, "max_prompt_tokens": 1500, "max_output_tokens": 25}
    workload = built(recorded(), lengths, folder)
    assert pairs(list(workload.arrivals())) == [(1000, 10), (1500, 20), (1500, 25)]
    assert workload.notes == (
        "2 of 3 prompts in azure.csv are cut to 1,500 tokens",
        "1 of 3 outputs in azure.csv are cut to 25 tokens",
    )


def test_a_declared_limit_holds_for_recorded_requests_too(folder: Path) -> None:
    rows = offered(recorded(), {"trace": True, "output_limit": 15}, folder)
    assert [(row.output_tokens, row.output_limit) for row in rows] == [(10, 15), (15, 15), (15, 15)]


def test_a_cut_prompt_keeps_the_content_of_what_is_left(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": 1500, "output_length": 5, "hash_ids": [7, 8, 9]}\n'
    (tmp_path / "mooncake.jsonl").write_text(line)
    arrivals = {"process": "trace", "file": "mooncake.jsonl"}
    rows = offered(arrivals, {"trace": True, "max_prompt_tokens": 600}, tmp_path)
    assert rows == [Arrival(0, 600, 5, 5, Content((7, 8), 512))]


def test_spread_ticks_are_announced_and_seeded(tmp_path: Path) -> None:
    line = '{{"timestamp": {}, "input_length": 9, "output_length": 5}}\n'
    (tmp_path / "ticks.jsonl").write_text("".join(line.format(3000 * (n // 5)) for n in range(20)))
    arrivals = {"process": "trace", "file": "ticks.jsonl", "spread_ticks": True}
    workload = built(arrivals, {"trace": True}, tmp_path)
    rows = list(workload.arrivals())
    assert len(set(times_ns(rows))) == 20
    assert [time // (3 * SECOND) for time in times_ns(rows)] == [n // 5 for n in range(20)]
    assert rows == list(workload.arrivals())
    assert times_ns(rows) != times_ns(offered(arrivals, {"trace": True}, tmp_path, seed=1))
    assert workload.notes == (
        "requests of ticks.jsonl that share a time are spread uniformly over its tick of 3 s",
    )


def test_empirical_lengths_are_rows_of_the_file_and_report_what_they_cut(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nXXX,10,3\nXXX,9000,4\n")
    lengths = {"empirical": "lengths.csv", "max_prompt_tokens": 4000}
    workload = built(POISSON, lengths, tmp_path, requests=200)
    rows = list(workload.arrivals())
    assert set(pairs(rows)) == {(10, 3), (4000, 4)}
    assert workload.notes == ("1 of 2 prompts in lengths.csv are cut to 4,000 tokens",)
    assert times_ns(rows) == times_ns(offered(POISSON, FIXED, requests=200))


def test_a_file_without_times_cannot_be_replayed_but_is_told_how_to_serve(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nXXX,10,3\n")
    with pytest.raises(ScenarioError) as refused:
        built(recorded(), {"trace": True}, tmp_path)
    assert str(refused.value) == (
        f"workload.arrivals.file {tmp_path / 'azure.csv'} has lengths but no times; take another arrival "
        "process and lengths: {empirical: azure.csv}"
    )


def test_a_missing_trace_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"azure\.csv: there is no such trace file$"):
        built(recorded(), {"trace": True}, tmp_path)


def test_a_row_that_goes_back_in_time_is_refused_when_the_stream_reaches_it(folder: Path) -> None:
    with (folder / "azure.csv").open("a") as file:
        file.write("2023-11-16 18:15:41,1,1\n")
    stream = built(recorded(), {"trace": True}, folder).arrivals()
    assert len(list(islice(stream, 3))) == 3
    with pytest.raises(TraceError, match=r"azure\.csv:5: TIMESTAMP goes back by 5 s"):
        next(stream)


def test_the_whole_conversation_trace_is_offered(shared: Callable[..., Path]) -> None:
    path = shared("data", "traces", "azure-llm-2023", "AzureLLMInferenceTrace_conv.csv")
    rows = offered({"process": "trace", "file": path.name}, {"trace": True}, path.parent)
    assert len(rows) == 19_366
    assert rows[-1].arrival_ns == pytest.approx(3501.722 * SECOND, abs=SECOND / 1000)


def test_processes_and_presets_are_listed_with_a_line_each() -> None:
    described = workload_descriptions()
    assert list(described) == [*PROCESSES, *PRESETS]
    assert all(described.values())


def test_clients_may_ask_for_a_timeout_whatever_the_source(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,3\n1,20,4\n")
    sources = (
        {"arrivals": {"process": "burst"}, "lengths": {"fixed": {"prompt": 9, "output": 3}}, "requests": 2},
        {"arrivals": {"process": "trace", "file": "t.csv"}, "lengths": {"trace": True}},
    )
    for source in sources:
        settings = WorkloadSettings.model_validate({**source, "timeout_ms": 1.5})
        workload = build_workload(settings, 0, tmp_path)
        assert [arrival.timeout_ns for arrival in workload.arrivals()] == [1_500_000] * 2
