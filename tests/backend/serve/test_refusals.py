"""Whatever is wrong with a request, the answer says so in OpenAI's shape, and the engine never sees it."""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import suppress
from typing import Any

import pytest
from pydantic import ValidationError

from backend.serve.bodies import ChatBody, CompletionBody, completion_prompt
from backend.serve.problems import Problem
from tests.backend.serve.running import LONGEST, MODEL, VOCABULARY, Running, backing, running, scheduler

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HI: dict[str, Any] = {"prompt": "hi"}
TALK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def check(status: int, data: bytes, wanted: int, words: str, param: str | None) -> None:
    error = json.loads(data)["error"]
    assert status == wanted, error
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("path", "body", "status", "words", "param"),
    [
        (TEXT, HI | {"model": "gpt-4"}, 404, "'gpt-4' is not served here", "model"),
        (TEXT, {}, 400, "prompt: Field required", "prompt"),
        (TEXT, {"prompt": ""}, 400, "the prompt is empty", None),
        (TEXT, {"prompt": []}, 400, "the prompt is empty", None),
        (TEXT, {"prompt": ["a", "b"]}, 400, "prompt: one per request, got 2", "prompt"),
        (TEXT, {"prompt": [VOCABULARY]}, 400, "token id 1000 is not in the vocabulary", "prompt"),
        (TEXT, {"prompt": [-1]}, 400, "token id -1", "prompt"),
        (TEXT, {"prompt": [1, "a"]}, 400, "prompt", "prompt"),
        (TEXT, HI | {"max_tokens": -1}, 400, "max_tokens", "max_tokens"),
        (TEXT, HI | {"max_tokens": 0}, 400, "greater than or equal to 1, got 0", "max_tokens"),
        (TEXT, HI | {"max_tokens": "5"}, 400, "max_tokens", "max_tokens"),
        (TEXT, HI | {"max_tokens": 1.5}, 400, "max_tokens", "max_tokens"),
        (TEXT, HI | {"max_tokens": True}, 400, "max_tokens", "max_tokens"),
        (TEXT, HI | {"max_tokens": 10**30}, 400, "a sequence of this model holds 4096", None),
        (TEXT, HI | {"max_tokens": LONGEST}, 400, "a sequence of this model holds 4096", None),
        (TEXT, {"prompt": "x" * 4 * LONGEST}, 400, "the prompt has 4096 tokens", None),
        (TEXT, HI | {"min_tokens": -1}, 400, "min_tokens", "min_tokens"),
        (TEXT, HI | {"min_tokens": 9, "max_tokens": 8}, 400, "must be <= the output limit 8", "min_tokens"),
        (TEXT, HI | {"temperature": -0.1}, 400, "temperature", "temperature"),
        (TEXT, HI | {"top_p": 0}, 400, "top_p", "top_p"),
        (TEXT, HI | {"n": 0}, 400, "n: ", "n"),
        (TEXT, HI | {"n": 129}, 400, "n: ", "n"),
        (TEXT, HI | {"n": 2, "best_of": 3}, 400, "best_of: 3 is not supported here", "best_of"),
        (TEXT, HI | {"logprobs": 1}, 400, "logprobs: 1 is not supported", "logprobs"),
        (TEXT, HI | {"echo": True}, 400, "echo: True is not supported", "echo"),
        (TEXT, HI | {"logit_bias": {"5": 1}}, 400, "logit_bias", "logit_bias"),
        (
            TEXT,
            HI | {"stream_options": {"include_usage": True}},
            400,
            "needs stream: true",
            "stream_options",
        ),
        (TEXT, HI | {"stop": 5}, 400, "stop", "stop"),
        (TEXT, HI | {"stop": ["a"] * 257}, 400, "stop: List should have at most 256 items", "stop"),
        (TEXT, HI | {"stop": "a" * 1025}, 400, "stop: String should have at most 1024 characters", "stop"),
        (TEXT, HI | {"stop": ["a" * 1025]}, 400, "at most 1024 characters", "stop"),
        (TEXT, HI | {"stop_token_ids": [1] * 257}, 400, "at most 256 items", "stop_token_ids"),
        (CHAT, {"messages": []}, 400, "messages", "messages"),
        (CHAT, {"messages": "hi"}, 400, "messages", "messages"),
        (CHAT, {"messages": [{"role": "king", "content": "hi"}]}, 400, "messages.0.role", "messages"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "text",
            "messages",
        ),
        (CHAT, TALK | {"tools": [{"type": "function"}]}, 400, "tools", "tools"),
        (
            CHAT,
            TALK | {"response_format": {"type": "json_object"}},
            400,
            "response_format",
            "response_format",
        ),
        (CHAT, TALK | {"logprobs": True}, 400, "logprobs", "logprobs"),
    ],
)
def test_a_wrong_field(
    server: Running, path: str, body: dict[str, Any], status: int, words: str, param: str | None
) -> None:
    before = server.service.engine._taken
    found, _, data = server.ask("POST", path, json.dumps(body).encode())
    check(found, data, status, words, param)
    assert server.service.engine._taken == before


@pytest.mark.parametrize(
    "data", [b"", b"{", b"nonsense", b'{"prompt": "\xff"}', b"[" * 100_000, b"[]", b"null", b'"hi"']
)
def test_a_body_that_is_no_json_object(server: Running, data: bytes) -> None:
    status, _, answer = server.ask("POST", TEXT, data)
    assert status == 400
    assert json.loads(answer)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 1},
        {"logprobs": None},
        {"tools": []},
        {"user": "somebody"},
        {"presence_penalty": 0.0},
        {"echo": False},
    ],
)
def test_fields_that_ask_for_nothing_are_let_through(server: Running, extra: dict[str, Any]) -> None:
    assert server.complete(**HI, max_tokens=1, model=MODEL, **extra)["usage"]["completion_tokens"] == 1


def test_a_ten_megabyte_prompt(server: Running) -> None:
    status, _, data = server.ask("POST", TEXT, json.dumps({"prompt": "x" * 10_000_000}).encode())
    check(status, data, 413, "the body is larger than 4,194,304 bytes", None)
    assert server.complete(**HI, max_tokens=1)


def test_a_body_without_end_is_cut_off() -> None:
    """It is read on for a while, without being kept, so that an honest client gets its answer."""
    with running(body_bytes=1000) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        client.sendall(b"x" * 9000)
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_never_comes() -> None:
    with running(body_s=0.05) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_head_that_never_ends() -> None:
    """One byte at a time keeps no connection open."""
    with running(head_s=0.2) as server, socket.create_connection(("127.0.0.1", server.port), 30) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nX: ")
        with suppress(OSError):
            for _ in range(1000):
                client.sendall(b"x")
                time.sleep(0.02)
            pytest.fail("a connection is open for as long as bytes come")


def test_a_connection_without_a_request_is_closed() -> None:
    with running(head_s=0.05) as server, socket.create_connection(("127.0.0.1", server.port), 30) as client:
        assert client.recv(100) == b""


def test_the_next_request_has_its_own_time() -> None:
    """Neither an answer that takes longer nor a pause between two requests closes a connection."""
    with running(backing(iteration_ns=5_000_000), head_s=0.2) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        used = []
        for _ in range(2):
            body = {"prompt": "hi", "max_tokens": 100, "ignore_eos": True}
            connection.request("POST", TEXT, json.dumps(body))
            answer = connection.getresponse()
            assert len(answer.read()) > 100
            assert answer.status == 200
            used.append(connection.sock)
            time.sleep(0.4)
        assert used[0] is used[1], "the connection was kept"
        connection.sock.sendall(b"GET /health HTTP/1.1\r\nX: ")
        assert connection.sock.recv(100) == b"", "half a head has a time, too"
        connection.close()


def test_a_long_value_is_quoted_shortly(server: Running) -> None:
    for body in (
        HI | {"model": "m" * 1_000_000},
        HI | {"echo": "e" * 1_000_000},
        HI | {"seed": "s" * 10**6},
    ):
        status, _, data = server.ask("POST", TEXT, json.dumps(body).encode())
        assert 400 <= status < 500
        assert len(data) < 500


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"prompt": [1, *[""] * 200_000]}),
        (TEXT, {"prompt": [""] * 200_000}),
        (TEXT, HI | {"stop": [1] * 200_000}),
        (CHAT, {"messages": [{}] * 200_000}),
    ],
)
def test_wrong_entries_take_no_more_memory_than_right_ones(path: str, body: dict[str, Any]) -> None:
    """The first of them is what the answer tells; all of them took a kilobyte each."""
    data = json.dumps(body).encode()
    kind = CompletionBody if path == TEXT else ChatBody
    with pytest.raises((ValidationError, Problem)) as refused:
        completion_prompt(kind.model_validate_json(data), None)  # type: ignore[arg-type]
    if isinstance(refused.value, ValidationError):
        assert refused.value.error_count() <= 4


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v2", 404), ("GET", TEXT, 405), ("GET", "/v1/models/other", 404), ("DELETE", "/health", 405)],
)
def test_other_paths_and_methods(server: Running, method: str, path: str, status: int) -> None:
    found, _, data = server.ask(method, path)
    assert (found, set(json.loads(data))) == (status, {"error"})


def test_what_only_the_scheduler_knows_is_refused_before_a_stream_begins() -> None:
    with running(backing(scheduler(blocks=4), blocks=4)) as server:
        for stream in (False, True):
            status, answer = server.post(TEXT, **HI, max_tokens=200, stream=stream)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
            assert "needs 13 KV blocks, the cache has 4" in answer["error"]["message"]
        assert server.complete(**HI, max_tokens=1)
