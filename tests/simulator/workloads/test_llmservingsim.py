"""LLMServingSim: single requests, sessions, and token ids that name content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival, Turn, whole_sessions
from simulator.workloads.traces import llmservingsim


def written(tmp_path: Path, *records: object) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def request(prompt: int, output: int, **fields: object) -> dict[str, object]:
    return {"input_toks": prompt, "output_toks": output, **fields}


def test_the_public_example_is_read_in_ns(shared: Callable[..., Path]) -> None:
    rows = list(llmservingsim.read(shared("data", "traces", "llmservingsim", "example_trace.jsonl")))
    assert [row[:4] for row in rows[:2]] == [(0, 10, 70, 70), (347938952 - 46926808, 22, 104, 104)]
    assert len(rows) == 10


def test_requests_and_sessions_may_be_mixed(tmp_path: Path) -> None:
    """A sub-request waits for the answer before it and for the tool; the last tool's time means nothing."""
    turns = [request(200, 100, tool_duration_ns=50), request(310, 20), request(400, 5, tool_duration_ns=9)]
    path = written(
        tmp_path,
        request(100, 50, arrival_time_ns=1_000),
        {"session_id": "s", "arrival_time_ns": 3_000, "sub_requests": turns},
        request(150, 80, arrival_time_ns=4_000),
    )
    assert list(llmservingsim.read(path)) == [
        Arrival(0, 100, 50, 50),
        Arrival(2_000, 200, 100, 100, later=(Turn(50, 310, 20, 20), Turn(0, 400, 5, 5))),
        Arrival(3_000, 150, 80, 80),
    ]


def test_equal_beginnings_of_tokens_have_equal_names(tmp_path: Path) -> None:
    first, second = list(range(40)), [*range(32), 99, 98, 97]
    path = written(
        tmp_path,
        request(40, 1, arrival_time_ns=0, input_tok_ids=first),
        request(35, 1, arrival_time_ns=0, input_tok_ids=second),
    )
    one, two = (row.content for row in llmservingsim.read(path))
    assert one is not None
    assert two is not None
    assert (len(one.ids), len(two.ids), one.tokens_per_id) == (3, 3, 16)
    assert [a == b for a, b in zip(one.ids, two.ids, strict=True)] == [True, True, False]


def test_names_need_as_many_ids_as_the_prompt_has_tokens(tmp_path: Path) -> None:
    """Lists need not match the counts: too many are cut, too few name nothing."""
    path = written(
        tmp_path,
        request(16, 1, arrival_time_ns=0, input_tok_ids=list(range(20))),
        request(16, 1, arrival_time_ns=0, input_tok_ids=list(range(16))),
        request(16, 1, arrival_time_ns=0, input_tok_ids=[1, 2]),
    )
    long, exact, short = (row.content for row in llmservingsim.read(path))
    assert long == exact is not None
    assert short is None


def test_an_answer_is_named_as_the_next_prompt_names_it(tmp_path: Path) -> None:
    """20 tokens and 12 of answer are two blocks of 16, both in the prompt of 40 that repeats them."""
    first = request(20, 12, input_tok_ids=list(range(20)), output_tok_ids=list(range(20, 32)))
    second = request(40, 1, input_tok_ids=list(range(40)))
    path = written(tmp_path, {"arrival_time_ns": 0, "sub_requests": [first, second]})
    one, two = (row.content for row in whole_sessions(llmservingsim.read(path)))
    assert one is not None
    assert two is not None
    assert one.names_answer
    assert one.ids == two.ids[:2]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"arrival_time_ns": 0, "sub_requests": []}, "sub_requests must hold at least one request"),
        ({"arrival_time_ns": 0, "sub_requests": [3]}, r"sub_requests\[0\] must be an object, not 3"),
        (
            {"arrival_time_ns": 0, "sub_requests": [request(5, 0)]},
            r"jsonl:1 sub_requests\[0\]: output_toks must be a whole number from 1",
        ),
        (request(5, 5, arrival_time_ns=-1), "arrival_time_ns must be nanoseconds >= 0, not -1"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, record: object, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        list(llmservingsim.read(written(tmp_path, record)))
