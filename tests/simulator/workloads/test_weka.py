"""WEKA's sessions: what follows what, after how long, and which beginnings are the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.engine.request import Content
from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival, whole_sessions
from simulator.workloads.describe import describe
from simulator.workloads.traces import weka
from simulator.workloads.traces.trace import open_trace

SECOND = 1_000_000_000
FOLDER = ("data", "traces", "weka-claude-code")


def request(t: float, prompt: int, output: int, **fields: object) -> dict[str, object]:
    ids = list(range(1, prompt // 64 + 1))
    return {"t": t, "type": "n", "in": prompt, "out": output, "hash_ids": ids, **fields}


def session(path: Path, *requests: object, tool: int = 64, system: int = 70) -> Path:
    fields = {"id": "x", "block_size": 64, "hash_id_scope": "local"}
    path.write_text(
        json.dumps({**fields, "tool_tokens": tool, "system_tokens": system, "requests": list(requests)})
    )
    return path


def only(path: Path) -> Arrival:
    (found,) = weka.read(path)
    return found


def test_a_short_public_session(shared: Callable[..., Path]) -> None:
    """trace_0504: 11,133 tokens, then 11,300 after a think time of 3 s, as its file says."""
    found = only(shared(*FOLDER, "trace_0504.json"))
    fields = json.loads(shared(*FOLDER, "trace_0504.json").read_text())["requests"]
    assert found[:4] == (0, 11133, 139, 139)
    assert [(turn.prompt_tokens, turn.output_tokens) for turn in found.later] == [
        (row["in"], row["out"]) for row in fields[1:]
    ]
    assert [turn.think_ns for turn in found.later] == [row["think_time"] * SECOND for row in fields[1:]]


def contents(path: Path) -> list[Content]:
    return [row.content for row in whole_sessions(weka.read(path)) if row.content is not None]


def test_blocks_are_whole_and_the_rest_of_a_prompt_has_a_name_of_its_own(tmp_path: Path) -> None:
    """floor(in / 64) ids, not ceil as elsewhere: Content must cover the whole prompt all the same."""
    path = session(tmp_path / "a.json", request(0, 230, 1), request(9, 200, 1))
    first, second = contents(path)
    assert (len(first.ids), len(second.ids)) == (4, 4)
    assert first.ids[:3] == second.ids[:3]
    assert first.ids[3] != second.ids[3]


def test_an_answer_has_the_names_that_the_next_prompt_gives_it(tmp_path: Path) -> None:
    """200 tokens and an answer of 100 go on to 350 where they are repeated, and not after compaction."""
    kept = session(tmp_path / "a.json", request(0, 200, 100), request(9, 350, 1))
    first, second = contents(kept)
    assert (first.names_answer, second.names_answer) == (True, False)
    assert first.ids == second.ids[:5]
    compacted = request(9, 350, 1, hash_ids=[1, 2, 77, 78, 79])
    first, _ = contents(session(tmp_path / "b.json", request(0, 200, 100), compacted))
    assert not first.names_answer


def test_a_wrong_number_of_blocks_is_refused(tmp_path: Path) -> None:
    path = session(tmp_path / "a.json", request(0, 200, 1, hash_ids=[1, 2, 3, 4]))
    with pytest.raises(
        TraceError, match=r"a\.json requests\[0\]: hash_ids must hold 3 ids, one for each whole 64"
    ):
        list(weka.read(path))


def test_missing_think_times_follow_from_the_clock(tmp_path: Path) -> None:
    """t and api_time leave 7 s; without api_time the gap itself; whole seconds may leave less than none."""
    path = session(
        tmp_path / "a.json",
        request(0, 64, 1, api_time=3.0),
        request(10, 64, 1),
        request(14, 64, 1, api_time=2.5),
        request(16, 64, 1),
        request(20, 64, 1, think_time=0.25),
    )
    assert [turn.think_ns / SECOND for turn in only(path).later] == [7.0, 4.0, 0.0, 0.25]


def test_a_negative_think_time_is_refused(tmp_path: Path) -> None:
    path = session(tmp_path / "a.json", request(0, 64, 1), request(3, 64, 1, think_time=-1))
    with pytest.raises(TraceError, match=r"requests\[1\]: think_time must be seconds >= 0, not -1"):
        list(weka.read(path))


def test_an_empty_answer_still_takes_a_token(tmp_path: Path) -> None:
    assert only(session(tmp_path / "a.json", request(0, 64, 0))).output_tokens == 1


def test_sessions_share_tools_and_system_prompt_and_nothing_else(tmp_path: Path) -> None:
    """134 tokens are the same where both counts are: two whole blocks; local ids 3 and 4 differ by file."""
    session(tmp_path / "a.json", request(0, 256, 1))
    session(tmp_path / "b.json", request(0, 256, 1))
    session(tmp_path / "c.json", request(0, 256, 1), tool=65)
    a, b, c = (row.content.ids for row in weka.read(tmp_path) if row.content is not None)
    assert [x == y for x, y in zip(a, b, strict=True)] == [True, True, False, False]
    assert set(a).isdisjoint(c)


def test_a_prompt_of_another_model_does_not_share_the_beginning(tmp_path: Path) -> None:
    other = request(5, 128, 1, hash_ids=[90, 91], model="small")
    path = session(tmp_path / "a.json", request(0, 256, 1), other)
    first, second = (row.content.ids for row in whole_sessions(weka.read(path)) if row.content is not None)
    assert set(first).isdisjoint(second)


def test_subagents_begin_at_their_own_time_and_share_the_namespace(shared: Callable[..., Path]) -> None:
    """trace_0291 has two, of 5 and 7 requests, at 1,148.013 and 1,180.553 s; their t starts at 0 again."""
    parent, *agents = weka.read(shared(*FOLDER, "trace_0291.json"))
    assert parent.arrival_ns == 0
    assert [agent.arrival_ns for agent in agents] == [1_148_013_000_000, 1_180_553_000_000]
    assert [1 + len(agent.later) for agent in agents] == [5, 7]
    assert agents[0].content is not None
    assert agents[1].content is not None
    assert agents[0].content.ids[0] == agents[1].content.ids[0]


def test_a_folder_is_all_of_its_sessions_in_order_of_time(shared: Callable[..., Path]) -> None:
    rows = list(weka.read(shared(*FOLDER)))
    assert [row.arrival_ns for row in rows] == sorted(row.arrival_ns for row in rows)
    assert sum(row.arrival_ns == 0 for row in rows) == 16


def test_the_public_sessions_are_described(shared: Callable[..., Path]) -> None:
    """16 of the 739 files; over all of them turns and think times have medians 45 and 10 s, hits 96.3 %."""
    report = describe(shared(*FOLDER))
    assert (report["requests"], report["sessions"]["count"]) == (357, 18)
    assert report["sessions"]["turns"]["max"] == 51
    assert report["prefix_reuse"]["reused_token_share"] > 0.9
    assert open_trace(shared(*FOLDER)).sessions


def test_a_cut_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = session(tmp_path / "a.json", request(0, 64, 1))
    path.write_text(path.read_text()[:-9])
    with pytest.raises(TraceError, match=r"a\.json:1: must be one complete JSON object"):
        list(weka.read(path))
