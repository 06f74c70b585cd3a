"""OpenAI batch files: answers have lengths, requests only text and a limit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces import openai_batch
from simulator.workloads.traces.trace import open_trace


def written(tmp_path: Path, *records: object) -> Path:
    path = tmp_path / "batch.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def asked(**body: object) -> dict[str, object]:
    return {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}


def test_answers_have_exact_lengths_and_those_that_failed_are_left_out(shared: Callable[..., Path]) -> None:
    path = shared("data", "formats", "openai_batch", "SYNTHETIC_output.jsonl")
    assert list(openai_batch.read(path)) == [Arrival(0, 24, 15, 15)]
    trace = open_trace(path)
    assert (trace.format, trace.timed, trace.notes) == ("openai-batch", False, ())


def test_requests_are_guessed_from_text_and_say_so(shared: Callable[..., Path]) -> None:
    """'You are a helpful assistant.' and the question: 28 + 43 characters, a token per four of them."""
    path = shared("data", "formats", "openai_batch", "sample_job_input.jsonl")
    rows = list(openai_batch.read(path))
    assert len(rows) == 10
    assert rows[0] == Arrival(0, 18, 1000, 1000)
    assert open_trace(path).notes[0].startswith("prompts are taken for a token per 4 characters")


def test_text_of_several_parts_counts(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "12345678"}, {"type": "image_url", "image_url": {"url": "http://x"}}]
    path = written(tmp_path, asked(messages=[{"role": "user", "content": parts}], max_completion_tokens=3))
    assert list(openai_batch.read(path)) == [Arrival(0, 2, 3, 3)]


def test_a_request_without_a_limit_says_nothing_of_its_answer(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"batch\.jsonl:1: body: max_tokens is missing"):
        list(openai_batch.read(written(tmp_path, asked(prompt="Hi"))))


def test_the_order_of_answers_does_not_matter_to_an_offline_batch(tmp_path: Path) -> None:
    def answer(prompt: int) -> dict[str, object]:
        usage = {"prompt_tokens": prompt, "completion_tokens": 2}
        return {"custom_id": str(prompt), "response": {"body": {"usage": usage}}, "error": None}

    rows = list(openai_batch.read(written(tmp_path, answer(9), answer(5))))
    assert {(row.arrival_ns, row.prompt_tokens) for row in rows} == {(0, 9), (0, 5)}
