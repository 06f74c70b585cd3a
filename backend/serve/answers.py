"""What a client gets: whole answers and the frames of a stream, in the shapes of OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from backend.serve.problems import Problem
from backend.serve.seam import Decoder
from backend.serve.ticket import Ending, Ticket

Usage: TypeAlias = dict[str, int | dict[str, int]]

DONE = b"data: [DONE]\n\n"
FAILURES: dict[str, tuple[int, str]] = {
    "refused": (400, "context_length_exceeded"),
    "full": (429, "queue_full"),
    "expired": (503, "waited_too_long"),
    "too_slow": (400, "slow_client"),
    "cancelled": (503, "shutting_down"),
    "failed": (500, "engine_failed"),
}


class StopTexts:
    """Cuts an answer at the first stop text, holding back what may turn out to begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.found = False
        self._held = ""

    def add(self, text: str, *, last: bool) -> str:
        """The text that is now certain."""
        if not self.stops:
            return text
        text = self._held + text
        cuts = [cut for cut in map(text.find, self.stops) if cut >= 0]
        if cuts:
            self.found, self._held = True, ""
            return text[: min(cuts)]
        keep = 0 if last else self._overlap(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _overlap(self, text: str) -> int:
        """Characters at the end that begin a stop text."""
        longest = min(len(text), max(map(len, self.stops)) - 1)
        return next((n for n in range(longest, 0, -1) if self._begins(text[-n:])), 0)

    def _begins(self, tail: str) -> bool:
        return any(stop.startswith(tail) for stop in self.stops)


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of an answer repeats."""

    kind: Literal["text", "chat"]
    id: str
    created: int
    model: str

    def answer(self, text: str, ending: str | None, usage: Usage) -> dict[str, Any]:
        """A whole answer."""
        if self.kind == "text":
            return {
                **self._head("text_completion"),
                "choices": [_text_choice(text, ending)],
                "usage": usage,
            }
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": ending}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage}

    def opening(self) -> bytes:
        """What a stream begins with, before any token."""
        return (
            b""
            if self.kind == "text"
            else self._chunk([_delta_choice({"role": "assistant", "content": ""})])
        )

    def piece(self, text: str, ending: str | None) -> bytes:
        """A frame with text, or with the end, or both."""
        if self.kind == "text":
            return self._chunk([_text_choice(text, ending)])
        return self._chunk([_delta_choice({"content": text} if text else {}, ending)])

    def usage(self, usage: Usage) -> bytes:
        """The frame that ends a stream with its token counts."""
        return self._chunk([], usage)

    def _chunk(self, choices: list[dict[str, Any]], usage: Usage | None = None) -> bytes:
        chunk = self._head("text_completion" if self.kind == "text" else "chat.completion.chunk")
        chunk["choices"] = choices
        if usage is not None:
            chunk["usage"] = usage
        return _frame(chunk)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _text_choice(text: str, ending: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": ending}


def _delta_choice(delta: dict[str, str], ending: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": ending}


def _frame(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(data, separators=(",", ":")).encode()


class Answer:
    """One answer as it grows: tokens to text, and their count."""

    def __init__(self, ticket: Ticket, decoder: Decoder, stops: Sequence[str]) -> None:
        self.ticket = ticket
        self.tokens = 0
        self._decoder = decoder
        self._stops = StopTexts(stops)

    async def pieces(self) -> AsyncIterator[tuple[str, Ending | None]]:
        """Text as it comes; the last piece carries the ending."""
        ended: Ending | None = None
        while ended is None:
            tokens, ended = await self.ticket.read()
            self.tokens += len(tokens)
            text = self._stops.add(
                self._decoder.add(tokens, last=ended is not None), last=ended is not None
            )
            if self._stops.found:
                ended = "stop"
            if text or ended:
                yield text, ended

    def usage(self) -> Usage:
        """Token counts so far."""
        prompt = self.ticket.order.prompt.tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.tokens,
            "total_tokens": prompt + self.tokens,
            "prompt_tokens_details": {"cached_tokens": self.ticket.cached_tokens},
        }

    def problem(self, ended: Ending) -> Problem | None:
        """What to tell the client where the answer has not come to its own end."""
        if ended not in FAILURES:
            return None
        status, code = FAILURES[ended]
        return Problem(status, self.ticket.reason or "the request was cancelled", code=code)


async def whole(head: Head, answer: Answer) -> dict[str, Any]:
    """The answer in one piece."""
    text = ""
    ending: Ending | None = None
    async for piece, last in answer.pieces():
        text, ending = text + piece, last
    if ending is not None and (problem := answer.problem(ending)):
        raise problem
    return head.answer(text, ending, answer.usage())


async def frames(head: Head, answer: Answer, *, wants_usage: bool) -> AsyncIterator[bytes]:
    """The answer as server-sent events; one that breaks off ends with an error and without ``[DONE]``."""
    if opening := head.opening():
        yield opening
    async for text, ending in answer.pieces():
        if ending is not None and (problem := answer.problem(ending)):
            yield head.piece(text, None) + _frame(problem.body()) if text else _frame(problem.body())
            return
        yield head.piece(text, ending)
    yield (head.usage(answer.usage()) if wants_usage else b"") + DONE
