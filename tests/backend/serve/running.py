"""A real server on a free loopback port, over a small engine that answers in no time."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server needs fastapi: pip install 'servetwin[serve]'")
pytest.importorskip("uvicorn", reason="the server needs uvicorn: pip install 'servetwin[serve]'")
pytest.importorskip("prometheus_client", reason="/metrics needs prometheus_client, as above")

from backend.clock import WallClock
from backend.serve.app import Limits, Service
from backend.serve.seam import Backing
from backend.serve.server import Server, bind
from backend.serve.simulated import PacedExecutor, Placeholders
from simulator.cost_model import DecodeLine
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import IterationShape
from simulator.engine.scheduler import Scheduler
from simulator.engine.vllm_v1 import VllmV1

MODEL = "toy/model"
VOCABULARY = 1000
LONGEST = 4096


class FlatCost:
    """Every iteration takes equally long."""

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def decode_line(self, decodes: int, context_tokens: int) -> DecodeLine:
        return DecodeLine(float(self.ns), 0.0, 1 << 60)

    def iteration_ns(self, shape: IterationShape) -> int:
        return self.ns

    def extrapolated(self, columns: Any) -> Any:
        raise AssertionError("nobody asks")


def scheduler(blocks: int = 4096, seats: int = 256) -> VllmV1:
    return VllmV1(
        KVCache(blocks, 16, prefix_caching=True),
        max_num_seqs=seats,
        max_num_batched_tokens=8192,
        max_model_len=LONGEST,
    )


def backing(
    engine: Scheduler | None = None, *, iteration_ns: int = 100_000, blocks: int = 4096, seats: int = 256
) -> Backing:
    """A simulated backing whose answers, left to themselves, have 12 tokens."""
    clock = WallClock()
    return Backing(
        kind="toy",
        clock=clock,
        model_name=MODEL,
        scheduler=engine or scheduler(blocks, seats),
        executor=PacedExecutor(FlatCost(iteration_ns), repeat(12), clock),
        text=Placeholders(VOCABULARY, 16),
        kv_blocks=blocks,
        block_size=16,
        max_model_len=LONGEST,
        seats=seats,
    )


@dataclass
class Running:
    """A server under test."""

    port: int
    service: Service
    server: Server
    thread: threading.Thread
    problems: list[BaseException] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own: status, headers in lower case, body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return (
                answer.status,
                {name.lower(): value for name, value in answer.getheaders()},
                answer.read(),
            )
        finally:
            connection.close()

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        status, _, data = self.ask("POST", path, json.dumps(body).encode())
        return status, json.loads(data)

    def complete(self, **body: Any) -> Any:
        status, answer = self.post("/v1/completions", **body)
        assert status == 200, answer
        return answer

    def settle(self) -> None:
        """Wait until the engine holds no request any more."""
        wait_until(lambda: self.service.engine.outstanding == 0)

    def drain(self) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive()


def wait_until(condition: Callable[[], bool]) -> None:
    """The time bound only keeps a broken server from hanging the tests."""
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up, "it never happened"
        time.sleep(0.005)


@contextmanager
def running(
    stands_behind: Backing | None = None, *, send_bytes: int | None = None, **limits: Any
) -> Iterator[Running]:
    """A server that answers until the block ends. ``send_bytes``: what its sockets take unread, roughly."""
    listener = bind("127.0.0.1", 0)
    if send_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    service = Service(stands_behind or backing(), replace(Limits(drain_s=20), **limits))
    server = Server(service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    found = Running(listener.getsockname()[1], service, server, thread)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        yield found
    finally:
        found.drain()
        listener.close()
