"""OpenAI batch files: JSON Lines of requests to be made, or of the answers to them. Neither has times.

https://platform.openai.com/docs/guides/batch. Answers carry exact lengths in `usage`; those that failed are
left out. Requests only have their text, of which a token is taken to be four characters, and a limit for
the answer, which is taken for its length: give the file of the answers where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.workloads.arrival import Arrival
from simulator.workloads.traces.json_rows import JsonRow, json_rows

CHARACTERS_PER_TOKEN = 4
LIMIT_KEYS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
TEXT_KEYS = ("messages", "prompt", "input")


def read(path: Path) -> Iterator[Arrival]:
    """The requests in file order, streamed; all arrive at 0."""
    for _, row in json_rows(path):
        if "response" in row.fields:
            if _answered(row):
                yield _arrival(*_usage(row))
        else:
            yield _arrival(*_request(_inner(row, "body")))


def estimates(path: Path) -> bool:
    """Whether lengths have to be guessed from text: the file holds requests, not answers."""
    first = next(json_rows(path), None)
    return first is not None and "response" not in first[1].fields


def _arrival(prompt_tokens: int, output_tokens: int) -> Arrival:
    return Arrival(0, prompt_tokens, output_tokens, output_tokens)


def _inner(row: JsonRow, key: str) -> JsonRow:
    found = row.value(key)
    if not isinstance(found, dict):
        raise row.error(f"{key} must be an object, not {found!r:.80}")
    return JsonRow(f"{row.place}: {key}", found)


def _answered(row: JsonRow) -> bool:
    return row.fields.get("error") is None and row.value("response") is not None


def _usage(row: JsonRow) -> tuple[int, int]:
    usage = _inner(_inner(_inner(row, "response"), "body"), "usage")
    newer = "input_tokens" in usage.fields
    keys = ("input_tokens", "output_tokens") if newer else ("prompt_tokens", "completion_tokens")
    return usage.tokens(keys[0]), usage.tokens(keys[1], least=0)


def _request(body: JsonRow) -> tuple[int, int]:
    limit = next((key for key in LIMIT_KEYS if body.fields.get(key) is not None), None)
    if limit is None:
        raise body.error(
            "max_tokens is missing, so nothing tells how long the answer is; give the batch's output file"
        )
    text = next((body.fields[key] for key in TEXT_KEYS if key in body.fields), None)
    if text is None:
        raise body.error(f"must hold one of {', '.join(TEXT_KEYS)}")
    return max(1, -(-_characters(text) // CHARACTERS_PER_TOKEN)), body.tokens(limit)


def _characters(said: object) -> int:
    """Length of all text in a prompt or in messages, roles and other keys left out."""
    if isinstance(said, str):
        return len(said)
    if isinstance(said, list):
        return sum(map(_characters, said))
    if isinstance(said, dict):
        return sum(_characters(said[key]) for key in ("content", "text") if key in said)
    return 0
