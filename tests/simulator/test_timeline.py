"""The timeline is checked against the tables it was made from, by the rules of the Trace Event Format."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import UserError
from simulator.timeline import events, write_timeline
from tests.simulator.run_examples import random_run, run_of


def test_iterations_of_a_replica_follow_one_another_and_cover_its_busy_time() -> None:
    tables = random_run(200)
    slices = defaultdict(list)
    for event in events(tables):
        if event["ph"] == "X":
            slices[event["pid"]].append(event)
    busy = (tables.iterations["end_ns"] - tables.iterations["start_ns"]).sum() / 1e3
    assert sum(e["dur"] for found in slices.values() for e in found) == pytest.approx(busy)
    assert sum(map(len, slices.values())) == len(tables.iterations["replica"])
    for found in slices.values():
        ends = [event["ts"] + event["dur"] for event in found]
        assert all(end <= event["ts"] + 1e-3 for end, event in zip(ends, found[1:], strict=False))


def test_phases_of_a_request_lie_inside_it_and_every_begin_has_its_end() -> None:
    tables = random_run(200)
    open_events: dict[Any, list[Any]] = defaultdict(list)
    ended = 0
    for event in events(tables):
        if event["ph"] == "b":
            outer = open_events[event["id"]]
            assert not outer or outer[-1]["ts"] <= event["ts"], "a phase starts before its request"
            outer.append(event)
        elif event["ph"] == "e":
            begun = open_events[event["id"]].pop()
            assert begun["name"] == event["name"]
            assert begun["ts"] <= event["ts"]
            ended += not open_events[event["id"]]
    assert not any(open_events.values())
    assert ended == len(tables.requests["id"])


def test_the_file_is_json_that_says_what_was_preempted_and_turned_away(tmp_path: Path) -> None:
    request = {"status": 1, "scheduled_ns": -1, "first_token_ns": -1, "finished_ns": -1}
    iteration = {"end_ns": 2_000_000, "preempted": 2, "decodes": 3, "repeats": 1}
    tables = run_of([request], [iteration])
    tables.reasons[int(tables.requests["id"][0])] = "too long"
    write_timeline(tmp_path / "t.json", tables)
    found = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    named = {event["name"]: event for event in found if event["ph"] in "Xbi"}
    assert named["2 preempted"]["ph"] == "i"
    assert next(e for e in found if e["ph"] == "X")["name"].endswith("decode 3")
    request_event = next(event for event in found if event["ph"] == "b")
    assert request_event["args"]["reason"] == "too long"
    assert not {"queued", "prefill", "decode"} & named.keys()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="the timeline cannot be written"):
        write_timeline(tmp_path / "file" / "t.json", run_of())
