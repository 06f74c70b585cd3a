"""`servetwin serve` as a process: the port, the signals, the exit code."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from backend.serve.server import bind
from simulator import cli
from simulator.errors import UserError
from tests.backend.serve.running import backing, running, wait_until

SCENARIO = """\
name: to serve
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
profile: roofline
workload:
  arrivals: {process: poisson, rate_per_s: 8}
  lengths: {fixed: {prompt: 100, output: 10}}
  requests: 20
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "simulator", "serve", *arguments],
        cwd=Path(__file__).resolve().parents[3],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def open_stream(port: int, tokens: int) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"prompt": "hi", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    return connection, connection.getresponse()


def test_a_signal_drains_and_the_exit_code_is_0(scenario: Path) -> None:
    with command(str(scenario), "--simulated", "--port", "0") as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if not line.startswith("note: "))
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", said)[1])  # type: ignore[index]
        assert said.startswith("serving meta-llama/Llama-3.1-8B (simulated h100-sxm, profile roofline")
        connection, stream = open_stream(port, 100)
        assert stream.readline().startswith(b"data: ")
        process.send_signal(signal.SIGTERM)
        assert stream.read().endswith(b"data: [DONE]\n\n")
        connection.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_while_draining_nobody_else_is_let_in() -> None:
    with running(backing(iteration_ns=2_000_000)) as server:
        connection, stream = open_stream(server.port, 200)
        assert stream.readline().startswith(b"data: ")
        server.server.should_exit = True
        wait_until(lambda: not connects(server.port))
        assert stream.read().endswith(b"data: [DONE]\n\n")
        connection.close()
        server.thread.join(60)
        assert not server.thread.is_alive()
        assert server.service.backing.scheduler.used_blocks == 0


def connects(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_an_answer_that_outlasts_the_drain_is_cut_off() -> None:
    with running(backing(iteration_ns=20_000_000), drain_s=1) as server:
        connection, stream = open_stream(server.port, 4000)
        assert stream.readline().startswith(b"data: ")
        server.drain()
        assert b'"message":"the server is shutting down"' in stream.read().splitlines()[-2]
        connection.close()
        assert server.service.backing.scheduler.used_blocks == 0


def test_a_port_that_is_taken(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert cli.main(["serve", str(scenario), "--simulated", "--port", str(port)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        f"error: --port {port}: cannot listen on 127.0.0.1: Address already in use; name another port\n"
    )


def test_a_host_that_is_none() -> None:
    with pytest.raises(UserError, match=r"^--host no\.such\.host\.invalid: "):
        bind("no.such.host.invalid", 0)


def test_more_than_one_replica_is_refused(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", str(scenario), "--simulated", "--port", "0", "--set", "replicas=2"]) == 2
    assert capsys.readouterr().err == (
        "error: replicas must be 1 to serve, not 2: a server is one engine\n"
    )


def test_without_the_extra_the_command_names_it(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("backend.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["serve", str(scenario), "--simulated"]) == 2
    assert capsys.readouterr().err == "error: serve needs uvicorn: pip install 'servetwin[serve]'\n"


def test_without_torch_a_live_server_names_the_other_extra(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("backend.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["serve", str(scenario), "--port", "0"]) == 2
    assert capsys.readouterr().err == (
        "error: serve needs torch for a live model: pip install 'servetwin[live]', or add --simulated\n"
    )


def test_switching_the_policy_is_noted(scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(import_module("backend.serve.server"), "serve", lambda *_: None)
    scenario.write_text(SCENARIO + "engine: {policy: vllm-v1, max_num_batched_tokens: 512}\n")
    assert cli.main(["serve", str(scenario), "--simulated", "--set", "engine.policy=orca"]) == 0
    told = capsys.readouterr().err
    assert told == "note: the file's engine.max_num_batched_tokens is left out: no key of this policy\n"
