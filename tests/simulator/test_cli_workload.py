"""``servetwin workload`` and ``compare`` with load tools' results, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.cli import main

SCENARIO = """\
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
workload:
  arrivals: {process: clients, clients: 5, rate_per_s: 4, profile: [1, 3], period_s: 60}
  lengths: {preset: sharegpt}
  sessions: {turns_mean: 3, think_s: {mean: 5}}
  requests: 60
"""
VLLM = ("data", "formats", "vllm_bench", "SYNTHETIC_detailed_result_schema_v0.33.json")
MOONCAKE = '{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [4]}\n'


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (tmp_path / "chat.yaml").write_text(SCENARIO)
    return tmp_path / "chat.yaml"


def test_the_same_seed_writes_the_same_bytes(scenario: Path, tmp_path: Path) -> None:
    written = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        command = [
            "workload",
            "generate",
            str(scenario),
            "--to",
            "aiperf",
            "--output",
            str(tmp_path / name),
        ]
        assert main([*command, "--seed", seed]) == 0
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1] != written[2]
    assert len(written[0].splitlines()) == 60


def test_what_is_generated_is_what_a_simulation_sees(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written and replayed, the same requests come at the same times: their first one at 0."""
    trace = tmp_path / "chat.jsonl"
    arguments = [str(scenario), "--set", "workload.sessions=null"]
    assert main(["workload", "generate", *arguments, "--to", "mooncake", "--output", str(trace)]) == 0
    assert main(["simulate", *arguments, "--json"]) == 0
    direct = json.loads(capsys.readouterr().out)
    replay = [
        *("--set", "workload.sessions=null", "--set", "workload.lengths={trace: true}"),
        *("--set", f"workload.arrivals={{process: trace, file: {trace}}}"),
    ]
    assert main(["simulate", str(scenario), *replay, "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert replayed["tokens"] == direct["tokens"]
    assert replayed["ttft_ms"] == pytest.approx(direct["ttft_ms"], rel=1e-6)


def test_a_conversion_says_how_much_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.jsonl").write_text(MOONCAKE)
    command = [
        "workload",
        "convert",
        str(tmp_path / "t.jsonl"),
        "--to",
        "vidur",
        "--output",
        str(tmp_path / "t.csv"),
    ]
    assert main(command) == 0
    assert capsys.readouterr() == ("", f"1 request: {tmp_path / 't.csv'}\n")
    assert (tmp_path / "t.csv").read_text() == (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.000000000,9,5\n"
    )


def test_wrong_conversions_are_one_line_and_exit_2(
    tmp_path: Path, scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jsonl").write_text(MOONCAKE)
    convert = ["workload", "convert", str(tmp_path / "t.jsonl")]
    closed = [
        "workload",
        "generate",
        str(scenario),
        "--set",
        "workload.arrivals={process: closed, concurrency: 2}",
    ]
    for command, problem in (
        (
            [*convert, "--to", "xlsx", "--output", str(tmp_path / "x")],
            "format to write must be one of mooncake",
        ),
        ([*convert, "--to", "azure", "--output", str(tmp_path)], "is a folder; name a file in it"),
        ([*convert, "--to", "azure", "--output", str(tmp_path / "no" / "x")], "does not exist"),
        (
            [*closed, "--to", "azure", "--output", str(tmp_path / "x")],
            "the clients of a closed loop send when",
        ),
    ):
        assert main(command) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert problem in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chat.yaml", "t.jsonl"]


def test_a_conversion_replaces_traces_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.jsonl").write_text(MOONCAKE)
    (tmp_path / "notes.txt").write_text("precious\n")
    convert = ["workload", "convert", str(tmp_path / "t.jsonl"), "--to", "vidur", "--output"]
    assert main([*convert, str(tmp_path / "notes.txt")]) == 2
    assert "exists and is no trace" in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "precious\n"
    for _ in range(2):
        assert main([*convert, str(tmp_path / "out.csv")]) == 0


def test_measured_stands_beside_simulated(
    shared: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The twin is offered the requests that the tool measured: three of them, of which it answers all."""
    (tmp_path / "twin.yaml").write_text(
        "model: meta-llama/Llama-3.1-8B\nhardware: h100-sxm\n"
        f"workload: {{arrivals: {{process: trace, file: {shared(*VLLM)}}}, lengths: {{trace: true}}}}\n"
    )
    assert main(["simulate", str(tmp_path / "twin.yaml"), "--output", str(tmp_path / "twin")]) == 0
    capsys.readouterr()
    page = tmp_path / "page.html"
    arguments = [str(shared(*VLLM)), str(tmp_path / "twin")]
    assert main(["compare", *arguments, "--json", "--report", str(page)]) == 0
    measured, simulated = json.loads(capsys.readouterr().out)["alternatives"]
    assert measured["measures"]["ttft_ms.p50"]["mean"] == pytest.approx(52.1)
    assert measured["measures"]["requests.completed"]["mean"] == 3
    assert simulated["measures"]["requests.completed"]["mean"] == 3
    assert simulated["measures"]["ttft_ms.p50"]["difference"]["mean"] < 0
    assert page.stat().st_size > 10_000
    assert main(["compare", *arguments]) == 0
    assert "TTFT p50" in capsys.readouterr().out


def test_several_benchmarks_of_one_file_are_compared(
    shared: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["compare", str(shared("data", "formats", "guidellm", "guidellm_report_v2.json")), "--json"])
        == 0
    )
    names = [one["name"] for one in json.loads(capsys.readouterr().out)["alternatives"]]
    assert [name.rpartition(" ")[2] for name in names] == ["#1", "#2"]


def test_json_that_is_no_result_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert main(["compare", str(tmp_path / "x.json"), str(tmp_path / "x.json")]) == 2
    assert "is none of the results known here" in capsys.readouterr().err
