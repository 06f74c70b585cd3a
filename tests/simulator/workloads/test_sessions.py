"""Conversations: turns grow on what was said, think times are drawn, and bounds cut where they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from simulator.scenario import WorkloadSettings
from simulator.workloads.arrival import Arrival, Turn, whole_sessions
from simulator.workloads.sessions import first_requests
from simulator.workloads.workload import build_workload

SECOND = 1_000_000_000
POISSON = {"process": "poisson", "rate_per_s": 2}
FIXED = {"fixed": {"prompt": 20, "output": 10}}
CHATS = {"turns_mean": 4, "think_s": {"mean": 10, "cv": 0.5}, "system_prompt_tokens": 40}


def offered(
    lengths: dict[str, Any] = FIXED, arrivals: dict[str, Any] = POISSON, seed: int = 0, **others: Any
) -> list[Arrival]:
    settings = {"arrivals": arrivals, "lengths": lengths, "sessions": CHATS, "requests": 4000, **others}
    return list(build_workload(WorkloadSettings.model_validate(settings), seed, Path()).arrivals())


def test_a_turn_says_all_that_was_said_before_and_its_own() -> None:
    """40 for the system, 20 for each question, 10 for each answer."""
    for row in offered():
        prompts = [row.prompt_tokens, *(turn.prompt_tokens for turn in row.later)]
        assert prompts == [60 + 30 * turn for turn in range(len(prompts))]


def test_turns_and_think_times_are_as_many_and_as_long_as_asked() -> None:
    rows = offered(requests=20_000)
    thinks_s = np.array([turn.think_ns for row in rows for turn in row.later]) / SECOND
    assert np.mean([1 + len(row.later) for row in rows]) == pytest.approx(4, rel=0.05)
    assert thinks_s.mean() == pytest.approx(10, rel=0.03)
    assert thinks_s.std() / thinks_s.mean() == pytest.approx(0.5, rel=0.05)


def test_a_turn_shares_the_blocks_of_the_turn_before_and_sessions_the_system_prompt() -> None:
    """40 tokens of the system are two whole blocks of 16; the third holds words of the client too.

    60 tokens and an answer of 10 at most are five blocks, of which 90 + 10 repeat all.
    """
    first, second = [list(whole_sessions(iter([row]))) for row in offered() if row.later][:2]
    ids = [row.content.ids for row in first if row.content is not None]
    assert (len(ids[0]), len(ids[1])) == (5, 7)
    assert ids[1][:5] == ids[0]
    other = second[0].content
    assert other is not None
    assert [a == b for a, b in zip(ids[0], other.ids, strict=True)] == [True, True, False, False, False]


def test_equal_seeds_give_equal_conversations_and_others_do_not() -> None:
    assert offered(seed=3) == offered(seed=3) != offered(seed=4)


def test_arrivals_begin_sessions_as_they_begin_requests() -> None:
    """The process of arrivals does not depend on what begins with them."""
    single = WorkloadSettings.model_validate({"arrivals": POISSON, "lengths": FIXED, "requests": 50})
    times = [row.arrival_ns for row in build_workload(single, 0, Path()).arrivals()]
    assert [row.arrival_ns for row in offered()][:50] == times


def test_requests_count_turns() -> None:
    assert sum(1 + len(row.later) for row in offered(requests=101)) == 101


def test_a_conversation_ends_before_its_context_is_too_long() -> None:
    rows = offered(sessions={**CHATS, "turns_mean": 50, "max_context_tokens": 160}, requests=500)
    assert {len(row.later) for row in rows} <= {0, 1, 2, 3}
    longest = max(row.prompt_tokens + row.output_limit for row in whole_sessions(iter(rows)))
    assert longest == 160


def test_the_declared_limit_holds_for_every_turn() -> None:
    rows = whole_sessions(iter(offered({"preset": "sharegpt", "output_limit": 100})))
    assert all(row.output_limit == 100 and row.output_tokens <= 100 for row in rows)


def test_a_closed_loop_holds_conversations_too() -> None:
    settings = {"arrivals": {"process": "closed", "concurrency": 3}, "lengths": FIXED, "sessions": CHATS}
    workload = build_workload(WorkloadSettings.model_validate({**settings, "requests": 30}), 0, Path())
    assert (workload.concurrency, workload.sessions) == (3, True)
    assert sum(1 + len(row.later) for row in workload.arrivals()) == 30


def test_recorded_requests_keep_their_own_turns() -> None:
    trace = {"process": "trace", "file": "x"}
    with pytest.raises(ValidationError, match=r"sessions cannot stand beside lengths\.trace"):
        WorkloadSettings.model_validate({"arrivals": trace, "lengths": {"trace": True}, "sessions": CHATS})


def test_the_first_requests_of_sessions_are_cut_within_one() -> None:
    turn = Turn(5, 1, 1, 1)
    rows = [
        Arrival(0, 1, 1, 1, later=(turn, turn)),
        Arrival(1, 1, 1, 1),
        Arrival(2, 1, 1, 1, later=(turn,)),
    ]
    kept = [[len(row.later) for row in first_requests(iter(rows), count)] for count in range(1, 8)]
    assert kept == [[0], [1], [2], [2, 0], [2, 0, 0], [2, 0, 1], [2, 0, 1]]
    assert list(first_requests(iter(rows), None)) == rows


def test_caps_hold_for_later_turns_of_a_trace(tmp_path: Path) -> None:
    line = (
        '{"arrival_time_ns": 0, "sub_requests": '
        '[{"input_toks": 100, "output_toks": 9, "tool_duration_ns": 3}, '
        '{"input_toks": 300, "output_toks": 40}]}'
    )
    (tmp_path / "t.jsonl").write_text(line)
    trace = {"process": "trace", "file": "t.jsonl"}
    lengths = {"trace": True, "max_prompt_tokens": 200, "max_output_tokens": 20}
    settings = WorkloadSettings.model_validate({"arrivals": trace, "lengths": lengths})
    (row,) = build_workload(settings, 0, tmp_path).arrivals()
    assert row == Arrival(0, 100, 9, 9, later=(Turn(3, 200, 20, 20),))
