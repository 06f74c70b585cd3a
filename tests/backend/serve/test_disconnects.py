"""Clients that vanish or stall cost nobody else anything."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from backend.serve.seam import Backing
from backend.serve.simulated import Placeholders
from tests.backend.serve.running import VOCABULARY, Running, backing, running, scheduler, wait_until


def request_bytes(**body: Any) -> bytes:
    data = json.dumps({"prompt": "hi", "ignore_eos": True, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def used_blocks(server: Running) -> int:
    return server.service.backing.scheduler.used_blocks


async def stream(port: int, tokens: int, *, leave_after: int | None) -> int:
    """Read a stream to its end, or vanish after some events; how many tokens its usage says."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    writer.write(request_bytes(max_tokens=tokens, **options))
    seen, usage = 0, 0
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            seen += 1
            usage = json.loads(line[6:]).get("usage", {}).get("completion_tokens", 0)
        if line.startswith(b"data: [DONE]") or (leave_after is not None and seen > leave_after):
            break
    writer.transport.abort()
    return usage


async def crowd(port: int, clients: int, tokens: int) -> list[int]:
    return await asyncio.gather(
        *(
            stream(port, 10 * tokens, leave_after=i % 7)
            if i % 2
            else stream(port, tokens, leave_after=None)
            for i in range(clients)
        )
    )


def test_a_client_of_several_answers_that_vanishes_leaves_none_of_them_behind() -> None:
    async def ask(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes(max_tokens=4000, n=5, stream=True))
        while not (await reader.readline()).startswith(b"data: {"):
            pass
        writer.transport.abort()

    with running(backing(iteration_ns=1_000_000)) as server:
        asyncio.run(ask(server.port))
        server.settle()
        assert used_blocks(server) == 0


def test_200_streams_half_of_which_vanish_leave_nothing_behind() -> None:
    """The tokens would fill the cache three times over, so requests are preempted and recomputed too."""
    with running(backing(scheduler(blocks=400), blocks=400, iteration_ns=1_000_000)) as server:
        usages = asyncio.run(crowd(server.port, 200, 100))
        assert usages[::2] == [100] * 100
        server.settle()
        engine = server.service.engine
        assert used_blocks(server) == 0
        assert engine.metrics._ended == {"stop": 0, "length": 100, "abort": 100}
        assert not engine._runs
        assert not engine._requests
        assert not server.service.backing.executor._lengths  # type: ignore[attr-defined]
        assert server.ask("GET", "/health")[0] == 200
        assert server.complete(prompt="hi", max_tokens=3)["usage"]["completion_tokens"] == 3


def test_an_abandoned_whole_answer_is_cancelled() -> None:
    with running(backing(iteration_ns=5_000_000)) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(request_bytes(max_tokens=4000))
            wait_until(lambda: used_blocks(server) > 0)
        server.settle()
        assert used_blocks(server) == 0
        assert server.service.engine.metrics._ended == {"stop": 0, "length": 0, "abort": 1}


def test_a_client_that_leaves_the_queue_is_forgotten() -> None:
    """It waits for a seat, so nothing is ever sent that could fail."""
    with running(backing(scheduler(seats=1), seats=1, iteration_ns=5_000_000)) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as first:
            first.sendall(request_bytes(max_tokens=4000, stream=True))
            wait_until(lambda: server.service.backing.scheduler.used_blocks > 0)
            with socket.create_connection(("127.0.0.1", server.port)) as second:
                second.sendall(request_bytes(max_tokens=4000, stream=True))
                wait_until(lambda: server.service.backing.scheduler.waiting_requests == 1)
            wait_until(lambda: server.service.backing.scheduler.waiting_requests == 0)
            assert [request.id for request in server.service.engine._runs] == [0]  # the first still runs
        server.settle()


def stalled(port: int, **body: Any) -> socket.socket:
    """A client with small buffers that asks for a stream and reads nothing of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(request_bytes(stream=True, **body))
    return client


def read_all(client: socket.socket) -> bytes:
    """What comes until the server hangs up or the answer is complete."""
    heard = b""
    while piece := client.recv(65536):
        heard += piece
        if heard.endswith(b"0\r\n\r\n"):
            break
    return heard


class Wordy(Placeholders):
    """Every token is 256 characters, so that answers soon fill whatever buffers there are."""

    def decoder(self) -> Any:
        return self

    def add(self, tokens: Sequence[int], *, last: bool) -> str:
        return "".join(f"{token:>256}" for token in tokens)


def wordy() -> Backing:
    return replace(backing(), text=Wordy(VOCABULARY, 16))


def test_a_client_too_far_behind_loses_its_place_while_others_are_served() -> None:
    """Some 80 kB, a few hundred tokens, fit the sockets and the server's buffer; 500 more may wait."""
    with (
        running(wordy(), backlog_tokens=500, send_bytes=4096) as server,
        stalled(server.port, max_tokens=4000) as client,
    ):
        wait_until(lambda: used_blocks(server) > 0)
        assert server.complete(prompt="hi", max_tokens=12)["usage"]["completion_tokens"] == 12
        server.settle()
        assert used_blocks(server) == 0
        heard = read_all(client)
        assert b'"slow_client"' in heard
        assert b"[DONE]" not in heard


def test_a_client_that_takes_nothing_is_hung_up_on() -> None:
    with (
        running(wordy(), stall_s=0.2, send_bytes=4096) as server,
        stalled(server.port, max_tokens=4000) as client,
    ):
        wait_until(lambda: used_blocks(server) > 0)
        wait_until(lambda: not server.server.server_state.tasks)
        server.settle()
        assert used_blocks(server) == 0
        assert b"[DONE]" not in read_all(client)


def test_a_slow_reader_gets_every_token() -> None:
    with running(wordy(), send_bytes=4096) as server, stalled(server.port, max_tokens=3000) as client:
        server.settle()
        heard = read_all(client)
        assert b"[DONE]" in heard
        assert heard.count(b" 2999") == 1
        assert len(heard) > 3000 * 256
