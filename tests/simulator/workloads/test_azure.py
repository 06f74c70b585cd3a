"""The Azure reader: every way in which its time stamps have been seen, and the whole public file."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces import azure
from simulator.workloads.traces.azure import Instants
from simulator.workloads.traces.trace import open_trace

CONV = ("data", "traces", "azure-llm-2023", "AzureLLMInferenceTrace_conv.csv")
EXCERPT = ("data", "traces", "azure-llm-2024-excerpt", "AzureLLMInferenceTrace_code_1week.excerpt.csv")


@pytest.mark.parametrize(
    ("text", "second", "fraction_ns"),
    [
        ("2023-11-16 18:15:46.6805900", 1_700_158_546, 680_590_000),  # 2023: seven digits
        ("2024-05-10 00:00:00.009930+00:00", 1_715_299_200, 9_930_000),  # 2024: six and an offset
        ("2024-05-12 00:00:00+00:00", 1_715_472_000, 0),  # 2024: no fraction at all
        ("2024-10-15T12:00:00.269Z", 1_728_993_600, 269_000_000),  # 2025 release: ISO with Z
        ("2024-05-10 02:00:00.5+02:00", 1_715_299_200, 500_000_000),
        ("2024-05-10 00:00:00.1234567899", 1_715_299_200, 123_456_789),
    ],
)
def test_every_known_time_stamp_is_exact(text: str, second: int, fraction_ns: int) -> None:
    assert Instants().since_epoch_ns(text) == second * 1_000_000_000 + fraction_ns


@given(
    moment=st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2100, 1, 1)),  # noqa: DTZ001
    hours=st.integers(-12, 14),
    digit=st.integers(0, 9),
)
def test_time_stamps_agree_with_datetime_and_keep_the_seventh_digit(
    moment: datetime, hours: int, digit: int
) -> None:
    there = moment.replace(tzinfo=timezone(timedelta(hours=hours)))
    text = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond:06d}{digit}{hours:+03d}:00"
    microseconds = (there - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert Instants().since_epoch_ns(text) == microseconds * 1000 + digit * 100


@pytest.mark.parametrize(
    "text",
    [
        "XXX",
        "",
        "1700000000",
        "20231116",
        "2023-11-16",
        "2023-11-16 18:15:61",
        "nan",
        "2023-11-16 18:15:46.",
    ],
)
def test_what_is_no_time_stamp_is_refused_with_an_example(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{text},1,1\n")
    with pytest.raises(TraceError) as refused:
        list(azure.read(path))
    assert str(refused.value) == (
        f"{path}:2: TIMESTAMP must be a time such as 2023-11-16 18:15:46.6805900, not {text!r}"
    )


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    """The 2025 multimodal release has NumImages in second place."""
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP, NumImages, ContextTokens, GeneratedTokens\n"
        "2024-10-15T12:00:00.269Z,3,500,20\n2024-10-15T12:00:01.269Z,0,600,30\n"
    )
    trace = open_trace(path)
    assert list(trace.rows()) == [Arrival(0, 500, 20, 20), Arrival(1_000_000_000, 600, 30, 30)]
    assert trace.notes == (
        "column NumImages is not read: images cost nothing beyond their tokens in ContextTokens",
    )


def test_naive_and_offset_times_may_be_mixed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-12 00:00:00+00:00,1,1\n2024-05-12 00:00:00.5,1,1\n2024-05-12 01:00:01+01:00,1,1\n"
    )
    assert [row.arrival_ns for row in azure.read(path)] == [0, 500_000_000, 1_000_000_000]


def test_the_2023_conversation_trace_is_read_whole(shared: Callable[..., Path]) -> None:
    """CRLF, seven digits, no final newline; counts and means of the public file."""
    rows = list(azure.read(shared(*CONV)))
    columns = np.array([row[:3] for row in rows])
    assert len(rows) == 19_366
    assert columns[-1, 0] / 1e9 == pytest.approx(3501.722, abs=5e-4)
    assert columns[:, 1].mean() == pytest.approx(1154.697, abs=5e-4)
    assert columns[:, 2].mean() == pytest.approx(211.126, abs=5e-4)
    assert (np.diff(columns[:, 0]) > 0).all()
    assert rows[:2] == [Arrival(0, 374, 44, 44), Arrival(4_314_579_000, 396, 109, 109)]


def test_a_copy_with_other_line_ends_is_the_same_trace(shared: Callable[..., Path]) -> None:
    """inference-perf ships the first 20 rows with LF."""
    first = list(azure.read(shared(*CONV)))[:20]
    assert list(azure.read(shared("data", "traces", "inference-perf-azure20", "trace.csv"))) == first


def test_the_2024_excerpt_spans_its_week(shared: Callable[..., Path]) -> None:
    rows = list(open_trace(shared(*EXCERPT)).rows())
    assert len(rows) == 10
    assert rows[1] == Arrival(7_405_000, 2399, 6, 6)
    assert rows[-1].arrival_ns == ((7 * 86_400 * 1_000_000) - 70_499 - 9_930) * 1000
