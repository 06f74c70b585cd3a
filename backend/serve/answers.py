"""What a client gets: whole answers and the frames of a stream, in the shapes of OpenAI's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from backend.serve.problems import Problem
from backend.serve.seam import Decoder
from backend.serve.ticket import Ending, Ticket

Text: TypeAlias = tuple[str, Ending | None]  # of an answer, and how it ended if it has
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

    def answer(self, texts: Sequence[tuple[str, Ending | None]], usage: Usage) -> dict[str, Any]:
        """Whole answers to one prompt, each with how it ended."""
        kind = "text_completion" if self.kind == "text" else "chat.completion"
        make = _text_choice if self.kind == "text" else _message_choice
        choices = [make(text, ending, index) for index, (text, ending) in enumerate(texts)]
        return {**self._head(kind), "choices": choices, "usage": usage}

    def opening(self, index: int) -> bytes:
        """What the stream of an answer begins with, before any token."""
        if self.kind == "text":
            return b""
        return self._chunk([_delta_choice({"role": "assistant", "content": ""}, None, index)])

    def piece(self, text: str, ending: str | None, index: int) -> bytes:
        """A frame with text of one answer, or with its end, or both."""
        if self.kind == "text":
            return self._chunk([_text_choice(text, ending, index)])
        return self._chunk([_delta_choice({"content": text} if text else {}, ending, index)])

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


def _text_choice(text: str, ending: str | None, index: int) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": ending}


def _message_choice(text: str, ending: str | None, index: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": ending}


def _delta_choice(delta: dict[str, str], ending: str | None, index: int) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": ending}


def _frame(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(data, separators=(",", ":")).encode()


class Answer:
    """One answer as it grows: tokens to text, and their count."""

    def __init__(self, ticket: Ticket, decoder: Decoder, stops: Sequence[str]) -> None:
        self.ticket = ticket
        self.tokens = 0
        self._decoder = decoder
        self._stops = StopTexts(stops)

    async def pieces(self) -> AsyncIterator[Text]:
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

    def problem(self, ended: Ending) -> Problem | None:
        """What to tell the client where the answer has not come to its own end."""
        if ended not in FAILURES:
            return None
        status, code = FAILURES[ended]
        return Problem(status, self.ticket.reason or "the request was cancelled", code=code)


def usage_of(answers: Sequence[Answer]) -> Usage:
    """Token counts so far; the prompt that all answers share counts once."""
    first = answers[0].ticket
    prompt, generated = first.order.prompt.tokens, sum(answer.tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": first.cached_tokens},
    }


async def whole(head: Head, answers: Sequence[Answer]) -> dict[str, Any]:
    """All answers in one piece each."""
    texts = await asyncio.gather(*map(_collected, answers))
    for answer, (_, ending) in zip(answers, texts, strict=True):
        if ending is not None and (problem := answer.problem(ending)):
            raise problem
    return head.answer(texts, usage_of(answers))


async def _collected(answer: Answer) -> tuple[str, Ending | None]:
    text = ""
    ending: Ending | None = None
    async for piece, last in answer.pieces():
        text, ending = text + piece, last
    return text, ending


async def frames(head: Head, answers: Sequence[Answer], *, wants_usage: bool) -> AsyncIterator[bytes]:
    """Answers as server-sent events; where one breaks off, all end with an error, without ``[DONE]``."""
    if opening := b"".join(head.opening(index) for index in range(len(answers))):
        yield opening
    async for index, (text, ending) in _as_they_come(answers):
        if ending is not None and (problem := answers[index].problem(ending)):
            told = _frame(problem.body())
            yield head.piece(text, None, index) + told if text else told
            return
        yield head.piece(text, ending, index)
    yield (head.usage(usage_of(answers)) if wants_usage else b"") + DONE


async def _as_they_come(answers: Sequence[Answer]) -> AsyncIterator[tuple[int, Text]]:
    """Pieces of all answers, each with the answer's number; at most one of each is read ahead."""
    sources = [answer.pieces() for answer in answers]
    if len(sources) == 1:
        async for piece in sources[0]:
            yield 0, piece
        return
    waiting = {asyncio.ensure_future(anext(source)): index for index, source in enumerate(sources)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                index = waiting.pop(task)
                piece = task.result()
                if piece[1] is None:
                    waiting[asyncio.ensure_future(anext(sources[index]))] = index
                yield index, piece
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
