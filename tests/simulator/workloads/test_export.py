"""What is written in a format is what its reader reads back."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.request import Content
from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival, Turn
from simulator.workloads.export import WRITERS, write_workload
from simulator.workloads.traces.trace import open_trace

MS = 1_000_000


def lengths() -> st.SearchStrategy[int]:
    return st.integers(1, 5000)


@st.composite
def requests(draw: st.DrawFn, *, sessions: bool = False) -> list[Arrival]:
    """Arrivals in order from 0 on, named in Mooncake's blocks or not at all."""
    rows, now = [], 0
    for _ in range(draw(st.integers(1, 8))):
        prompt, output = draw(lengths()), draw(lengths())
        blocks = -(-prompt // 512)
        named = not sessions and draw(st.booleans())
        ids = tuple(draw(st.lists(st.integers(0, 99), min_size=blocks, max_size=blocks))) if named else None
        content = Content(ids, 512) if ids is not None else None
        row, said = Arrival(now, prompt, output, output, content), prompt + output
        later: list[Turn] = []
        for _ in range(draw(st.integers(0, 3)) if sessions else 0):
            said += draw(lengths())
            answer = draw(lengths())
            later.append(Turn(draw(st.integers(0, 10**12)), said, answer, answer))
            said += answer
        rows.append(row._replace(later=tuple(later)))
        now += draw(st.sampled_from([0, 1, 999_999, MS, 123_456_789_012]))
    return rows


def read_back(path: Path, rows: list[Arrival], format: str) -> list[Arrival]:  # noqa: A002
    write_workload(iter(rows), format, path)
    return list(open_trace(path).rows())


@given(rows=requests())
def test_mooncake_and_back_gives_the_same_arrivals(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Arrival]
) -> None:
    assert read_back(tmp_path_factory.mktemp("m") / "t.jsonl", rows, "mooncake") == rows


@given(rows=requests(sessions=True))
def test_aiperf_and_back_gives_the_same_sessions(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Arrival]
) -> None:
    assert read_back(tmp_path_factory.mktemp("a") / "t.jsonl", rows, "aiperf") == rows


@given(rows=requests())
def test_vidur_and_back_keeps_times_and_lengths(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Arrival]
) -> None:
    bare = [row._replace(content=None) for row in rows]
    assert read_back(tmp_path_factory.mktemp("v") / "t.csv", rows, "vidur") == bare


def test_a_public_trace_comes_back_byte_for_byte(shared: Callable[..., Path], tmp_path: Path) -> None:
    source = shared("data", "traces", "mooncake-fast25", "conversation_trace.jsonl")
    write_workload(open_trace(source).rows(), "mooncake", tmp_path / "t.jsonl")
    assert (tmp_path / "t.jsonl").read_bytes() == source.read_bytes()


def test_azure_keeps_its_seven_decimals(shared: Callable[..., Path], tmp_path: Path) -> None:
    source = open_trace(shared("data", "traces", "azure-llm-2023", "AzureLLMInferenceTrace_conv.csv"))
    rows = list(islice(source.rows(), 500))
    assert read_back(tmp_path / "t.csv", rows, "azure") == rows


def test_finer_blocks_are_put_together(tmp_path: Path) -> None:
    """Ids are cumulative: those of Bailian's blocks of 16 that end where Mooncake's do, or the prompt."""
    content = Content(tuple(range(1000, 1065)), 16)  # 65 blocks: 1,033 tokens
    write_workload(iter([Arrival(0, 1033, 5, 5, content)]), "mooncake", tmp_path / "t.jsonl")
    assert json.loads((tmp_path / "t.jsonl").read_text())["hash_ids"] == [1031, 1063, 1064]


def test_turns_that_shrink_are_counted(tmp_path: Path) -> None:
    """Compaction: 150 tokens after 100 and 10 add 40, then 50 after 160 cannot."""
    row = Arrival(0, 100, 10, 10, later=(Turn(0, 150, 10, 10), Turn(0, 50, 10, 10)))
    assert write_workload(iter([row]), "aiperf", tmp_path / "t.jsonl").bent_turns == 1
    added = [json.loads(line)["input_length"] for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert added == [100, 40, 1]


@pytest.mark.parametrize("format", sorted(set(WRITERS) - {"aiperf"}))
def test_turns_need_a_format_that_has_them_and_nothing_half_is_left(tmp_path: Path, format: str) -> None:  # noqa: A002
    rows = [Arrival(0, 1, 1, 1), Arrival(0, 1, 1, 1, later=(Turn(0, 3, 1, 1),))]
    (tmp_path / "t").write_text("before")
    with pytest.raises(TraceError, match=f"{format} has no turns that wait for an answer"):
        write_workload(iter(rows), format, tmp_path / "t")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("t", "before")]


def test_times_are_not_made_up(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="mooncake needs arrival times"):
        write_workload(iter([Arrival(0, 1, 1, 1)]), "mooncake", tmp_path / "t", timed=False)
    write_workload(iter([Arrival(0, 7, 2, 2)]), "lengths", tmp_path / "t", timed=False)
    assert open_trace(tmp_path / "t").format == "lengths"


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"format to write must be one of mooncake, aiperf, .* not 'parquet'"
    ):
        write_workload(iter([]), "parquet", tmp_path / "t")
