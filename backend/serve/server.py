"""From a backing to a running server: the port, the signals, the drain."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import uvicorn

from backend.serve.app import Limits, Service, make_app
from backend.serve.connection import Connection
from backend.serve.seam import Backing
from simulator.errors import UserError

KEEP_ALIVE_S = 65  # longer than the pools of common clients keep idle connections: they, not we, close them
HANG_UP_S = 5  # after the drain: for cut-off clients to be told
LOOPBACK = ("127.", "::1")


class Server(uvicorn.Server):
    """Uvicorn over one service: after a signal it lets running answers end, for a bounded time.

    Then the process ends with exit code 0, where uvicorn alone would die of the signal.
    """

    def __init__(self, service: Service, on_start: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                make_app(service),
                http=partial(Connection, service.limits.head_s),  # type: ignore[arg-type]  # makes one
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=service.limits.drain_s + HANG_UP_S,
                lifespan="on",
            )
        )
        self.service = service
        self.on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        self.on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, wait for the answers under way, and tell those that take too long."""
        stopping = asyncio.get_running_loop().call_later(
            self.service.limits.drain_s, self.service.engine.stop
        )
        await super().shutdown(sockets)
        stopping.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal drains, the second ends at once."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        with suppress(ValueError, RuntimeError):  # another thread than the main one hears no signals
            for number in signals:
                loop.add_signal_handler(number, self._on_signal)
        yield

    def _on_signal(self) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """The listening socket, taken before anything slow is loaded; port 0 picks a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"--host {host}: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise UserError(
            f"--port {port}: cannot listen on {host}: {error.strerror}; name another port"
        ) from None
    return listener


def serve(
    make_backing: Callable[[], Backing],
    host: str,
    port: int,
    limits: Limits,
    announce: Callable[[str], None],
) -> None:
    """Serve until a signal comes; ``announce`` is told what and where. The port is taken first."""
    with bind(host, port) as listener:
        backing = make_backing()
        for note in backing.notes:
            announce(f"note: {note}")
        if not listener.getsockname()[0].startswith(LOOPBACK):
            announce("note: there is no authentication: whoever reaches this address can use the server")
        shown, number = f"[{host}]" if ":" in host else host, listener.getsockname()[1]
        ready = f"serving {backing.model_name} ({backing.kind}) on http://{shown}:{number}; Ctrl-C ends it"
        Server(Service(backing, limits), lambda: announce(ready)).run(sockets=[listener])
