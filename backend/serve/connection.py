"""A client's connection, which says what it asks for in bounded time or is closed."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """Uvicorn's protocol, which by itself waits for the head of a request for ever.

    ``head_s``: from the opening of the connection, or from the first byte of a later request, to the end
    of the head. How long it may idle between requests is uvicorn's setting; bodies are the application's.
    """

    def __init__(self, head_s: float, **made: Any) -> None:
        super().__init__(**made)
        self._head_s = head_s
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Take what came: the rest of a head, a body, or the beginning of the next request."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()
        else:
            self._expect_nothing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self._head_s, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
