"""Bailian's rows, and what sets them apart from Mooncake's: the unit and the block."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.engine.request import Content
from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival, Turn
from simulator.workloads.traces import bailian, mooncake
from simulator.workloads.traces.trace import open_trace

MS = 1_000_000


def written(tmp_path: Path, *records: object) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def chat(**changes: object) -> dict[str, object]:
    record = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.0, "type": "text", "turn": 1}
    return {**record, "input_length": 20, "output_length": 5, "hash_ids": [4, 9], **changes}


def test_the_documented_record_is_read(shared: Callable[..., Path]) -> None:
    """502 prompt tokens are ceil(502 / 16) = 32 ids."""
    path = shared("data", "traces", "qwen-bailian-excerpt", "qwen_blksz_16.documented_records.jsonl")
    assert list(bailian.read(path)) == [Arrival(0, 502, 1494, 1494, Content(tuple(range(32)), 16))]


def test_times_are_seconds_with_decimals(tmp_path: Path) -> None:
    rows = bailian.read(written(tmp_path, chat(timestamp=3.0), chat(timestamp=61.036)))
    assert [row.arrival_ns for row in rows] == [0, 58_036 * MS]


def test_blocks_of_another_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"trace\.jsonl:1: hash_ids must hold 2 ids, one for each started 16"
    ):
        list(bailian.read(written(tmp_path, chat(hash_ids=[4]))))


def test_milliseconds_are_not_read_as_seconds(shared: Callable[..., Path]) -> None:
    """An hour of Mooncake would become six weeks."""
    path = shared("data", "traces", "mooncake-fast25", "conversation_trace.jsonl")
    with pytest.raises(TraceError, match="this looks like mooncake, not bailian; set format: mooncake"):
        open_trace(path, "bailian")


def test_a_truncated_last_line_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, chat())
    path.write_text(path.read_text() + json.dumps(chat())[:-7])
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: must be one complete JSON object .* truncated"):
        list(bailian.read(path))


# --- AIPerf's sessions ---


def row(**fields: object) -> dict[str, object]:
    return {"input_length": 100, "output_length": 10, **fields}


def test_rows_with_a_delay_go_on_with_the_session_before_them(tmp_path: Path) -> None:
    """A turn's prompt is everything before it and the tokens that its row adds."""
    path = written(
        tmp_path,
        row(timestamp=0, session_id="a"),
        row(delay=1500, session_id="a", input_length=7, output_length=3),
        row(delay=20.5, session_id="a", input_length=5, output_length=2),
        row(timestamp=9),
    )
    later = (Turn(1500 * MS, 117, 3, 3), Turn(20_500_000, 125, 2, 2))
    assert list(mooncake.read(path)) == [
        Arrival(0, 100, 10, 10, later=later),
        Arrival(9 * MS, 100, 10, 10),
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [row(delay=5, session_id="a")],
        [row(timestamp=0, session_id="b"), row(delay=5, session_id="a")],
    ],
)
def test_a_delay_after_nothing_is_refused(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    with pytest.raises(TraceError, match="delay must follow another row of its session_id"):
        list(mooncake.read(written(tmp_path, *rows)))
