"""The client's half of a request: where its tokens arrive. Used from the server's event loop alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal, NamedTuple

from backend.serve.seam import Order

Ending = Literal["stop", "length", "cancelled", "too_slow", "refused", "full", "expired", "failed"]


class Piece(NamedTuple):
    """Tokens that arrived since the last look, and how the answer ended if it has."""

    tokens: list[int]
    ended: Ending | None


class Ticket:
    """One request on its way. Tokens wait here, at most ``backlog_tokens`` of them, until they are read.

    ``reason`` tells why the answer was refused or failed.
    """

    def __init__(self, order: Order, arrival_ns: int, backlog_tokens: int) -> None:
        self.order = order
        self.arrival_ns = arrival_ns
        self.backlog_tokens = backlog_tokens
        self.cancelled = False  # set by the loop, read by the engine's thread
        self.cached_tokens = 0  # prompt tokens found in the prefix cache; known when the first token comes
        self.ended: Ending | None = None
        self.reason = ""
        self._tokens: list[int] = []
        self._accepted = False
        self._news = asyncio.Event()

    def accept(self) -> None:
        """The engine has taken the request in."""
        self._accepted = True
        self._news.set()

    def push(self, tokens: Sequence[int]) -> bool:
        """Tokens arrive. False where the reader is too far behind: then they are dropped."""
        if self.ended:
            return True
        if len(self._tokens) + len(tokens) > self.backlog_tokens:
            self.end("too_slow", f"more than {self.backlog_tokens} tokens were waiting to be read")
            return False
        self._tokens.extend(tokens)
        self._news.set()
        return True

    def end(self, ending: Ending, reason: str = "") -> None:
        """No more tokens come; the first ending counts."""
        if not self.ended:
            self.ended, self.reason = ending, reason
        self._news.set()

    async def settled(self) -> None:
        """Wait until the engine has taken the request in or turned it away."""
        while not (self._accepted or self.ended):
            await self._wait()

    async def read(self) -> Piece:
        """Wait for tokens or the end; all that has arrived."""
        while not (self._tokens or self.ended):
            await self._wait()
        tokens, self._tokens = self._tokens, []
        return Piece(tokens, self.ended)

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()
