"""The Mooncake reader: milliseconds, blocks of 512 tokens, and the whole public file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulator.engine.request import Content
from simulator.errors import TraceError
from simulator.workloads.traces import mooncake

CONVERSATION = ("data", "traces", "mooncake-fast25", "conversation_trace.jsonl")


def written(tmp_path: Path, *records: dict[str, object]) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def record(**changed: object) -> dict[str, object]:
    return {"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]} | changed


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as refused:
        list(mooncake.read(path))
    return str(refused.value).removeprefix(str(path))


def test_times_are_milliseconds_and_start_at_the_first_row(tmp_path: Path) -> None:
    rows = mooncake.read(written(tmp_path, record(timestamp=5000), record(timestamp=8001.5)))
    assert [row.arrival_ns for row in rows] == [0, 3_001_500_000]


def test_hash_ids_become_the_content(tmp_path: Path) -> None:
    assert next(mooncake.read(written(tmp_path, record()))).content == Content((0, 1), 512)


@pytest.mark.parametrize("tokens", [1, 512, 513, 1024, 1025])
def test_the_last_block_may_be_partial(tmp_path: Path, tokens: int) -> None:
    blocks = -(-tokens // 512)
    ids = list(range(blocks))
    assert next(mooncake.read(written(tmp_path, record(input_length=tokens, hash_ids=ids))))
    found = refusal(written(tmp_path, record(input_length=tokens, hash_ids=[*ids, 99])))
    assert found.startswith(
        f":1: hash_ids must hold {blocks} ids, one for each started 512 of {tokens} tokens"
    )


def test_rows_without_ids_share_nothing(tmp_path: Path) -> None:
    bare = record()
    del bare["hash_ids"]
    assert next(mooncake.read(written(tmp_path, bare))).content is None


def test_ids_that_are_names_are_told_apart_by_name(tmp_path: Path) -> None:
    rows = list(mooncake.read(written(tmp_path, record(hash_ids=["a", "b"]), record(hash_ids=["a", "c"]))))
    first, second = (row.content.ids for row in rows if row.content)
    assert first[0] == second[0]
    assert len({*first, *second}) == 3
    assert all(0 <= number < 2**63 for number in (*first, *second))


@pytest.mark.parametrize("ids", [[0, "1"], [0, 1.0], [0, None], [True, 2]])
def test_ids_of_mixed_kinds_are_refused(tmp_path: Path, ids: list[object]) -> None:
    assert ":1: hash_ids must be all whole numbers or all strings" in refusal(
        written(tmp_path, record(hash_ids=ids))
    )


@pytest.mark.parametrize("time", [-1, "0", None, True])
def test_times_must_be_numbers_from_zero(tmp_path: Path, time: object) -> None:
    found = refusal(written(tmp_path, record(timestamp=time)))
    assert found == f":1: timestamp must be milliseconds >= 0, not {time!r}"


def test_ids_must_be_a_list(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, record(hash_ids=7))) == ":1: hash_ids must be a list of ids, not 7"


def test_the_conversation_trace_is_read_whole(shared: Callable[..., Path]) -> None:
    """Counts, means and ticks of the public file; every prompt starts with block 0."""
    rows = list(mooncake.read(shared(*CONVERSATION)))
    columns = np.array([row[:3] for row in rows])
    times, counts = np.unique(columns[:, 0], return_counts=True)
    assert len(rows) == 12_031
    assert len(times) == 1180
    assert columns[-1, 0] == 3_536_999_000_000
    assert columns[:, 1].mean() == pytest.approx(12_035, abs=0.5)
    assert columns[:, 2].mean() == pytest.approx(343, abs=0.5)
    assert (columns[:, 1].max(), columns[:, 2].max()) == (126_195, 2_000)
    assert set(np.diff(times).tolist()) <= {n * 1_000_000 for n in range(2997, 3004)}
    assert counts.mean() == pytest.approx(10.2, abs=0.05)
    assert sum(len(row.content.ids) for row in rows if row.content) == 288_500
    assert {row.content.ids[0] for row in rows if row.content} == {0}
