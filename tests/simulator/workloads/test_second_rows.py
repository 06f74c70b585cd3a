"""CSV traces in seconds: BurstGPT with and without sessions, SplitwiseSim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.describe import describe
from simulator.workloads.traces import burstgpt, splitwise_sim
from simulator.workloads.traces.trace import open_trace

SECOND = 1_000_000_000
V1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
V3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_the_rows_of_burstgpt_start_at_zero(shared: Callable[..., Path]) -> None:
    """Seconds since midnight of day 1 in the file; lengths as published."""
    path = shared("data", "traces", "burstgpt-excerpt", "BurstGPT_1.first3rows.csv")
    assert list(burstgpt.read(path)) == [
        Arrival(0, 472, 18, 18),
        Arrival(40 * SECOND, 1087, 230, 230),
        Arrival(113 * SECOND, 417, 276, 276),
    ]


def test_inserted_columns_do_not_shift_lengths(tmp_path: Path) -> None:
    """From v3 on the third column is Elapsed time: a reader by position takes it for the prompt."""
    old = written(tmp_path, V1 + "5,GPT-4,472,18,490,API log\n7.25,ChatGPT,9,4,13,Conversation log\n")
    rows = list(burstgpt.read(old))
    new = written(tmp_path, V3 + "5,,3.5,GPT-4,472,18,490,API log\n7.25,s1,2.0,ChatGPT,9,4,13,Chat\n")
    assert list(burstgpt.read(new)) == rows == [Arrival(0, 472, 18, 18), Arrival(2_250_000_000, 9, 4, 4)]


def test_failed_requests_are_left_out_and_counted(tmp_path: Path) -> None:
    """Failures have no response tokens, some none of the request; time starts with the first answer."""
    path = written(tmp_path, V1 + "1,GPT-4,5,0,5,x\n2,GPT-4,0,0,0,x\n3,GPT-4,6,2,8,x\n9,GPT-4,7,1,8,x\n")
    assert list(burstgpt.read(path)) == [Arrival(0, 6, 2, 2), Arrival(6 * SECOND, 7, 1, 1)]
    assert burstgpt.failures(path) == 2
    notes = describe(path)["notes"]
    assert "rows with 0 tokens are failed requests and left out" in notes
    assert "2 of 4 rows are left out" in notes


def test_a_file_of_failures_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no requests that ran"):
        open_trace(written(tmp_path, V1 + "1,GPT-4,5,0,5,x\n"))


def test_a_negative_length_is_no_failure(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace\.csv:2: Response tokens must be a whole number from 1"):
        list(burstgpt.read(written(tmp_path, V1 + "1,GPT-4,5,-1,4,x\n")))


def test_burstgpt_given_as_azure_is_told(shared: Callable[..., Path]) -> None:
    path = shared("data", "traces", "burstgpt-excerpt", "BurstGPT_1.first3rows.csv")
    with pytest.raises(TraceError, match="this looks like burstgpt, not azure; set format: burstgpt"):
        open_trace(path, "azure")


def test_splitwise_sim_is_read_by_its_columns(shared: Callable[..., Path]) -> None:
    """prompt_size and token_size; times are seconds, the first request comes at 1."""
    path = shared("data", "traces", "splitwise-sim", "test_trace.csv")
    assert list(splitwise_sim.read(path)) == [
        Arrival(0, 4096, 32, 32),
        Arrival(2 * SECOND, 2048, 8, 8),
        Arrival(3 * SECOND, 2048, 16, 16),
    ]


@pytest.mark.parametrize("header", ["Timestamp,Request tokens,Response tokens,Response tokens"])
def test_a_column_that_stands_there_twice_is_refused(tmp_path: Path, header: str) -> None:
    path = written(tmp_path, f"{header}\n1,2,3,4\n")
    with pytest.raises(TraceError, match=r"trace\.csv:1: column Response tokens stands there twice"):
        list(burstgpt.read(path))


def test_azure_of_2025_is_read_past_its_images(tmp_path: Path) -> None:
    """NumImages is inserted second, and times end in Z."""
    text = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15T12:00:00.269Z,1,1500,40\n"
    trace = open_trace(written(tmp_path, text))
    assert list(trace.rows()) == [Arrival(0, 1500, 40, 40)]
    assert trace.notes == (
        "column NumImages is not read: images cost nothing beyond their tokens in ContextTokens",
    )
