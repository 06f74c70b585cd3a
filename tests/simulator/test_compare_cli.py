"""``servetwin compare`` as its users meet it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator import cli

SCENARIO = """\
name: a few requests
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
profile: roofline
engine: {max_num_batched_tokens: 4096, max_model_len: 4096}
workload:
  arrivals: {process: poisson, rate_per_s: 8}
  lengths: {fixed: {prompt: 100, output: 10}}
  requests: 20
"""
LARGE = ["--set", "model=meta-llama/Llama-2-70b-hf"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``compare`` beside a short scenario; gives exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(SCENARIO, encoding="utf-8")

    def command(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["compare", *arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    return command


def test_a_table_a_page_and_folders_that_compare_again(run: Run) -> None:
    options = ["--vary", "engine.policy=vllm-v1,static", "--set", "workload.requests=15"]
    code, out, err = run("x.yaml", *options, "--output", "runs", "--report", "page.html")
    assert (code, err) == (0, "report: page.html\nresults: runs\n")
    assert "2 alternatives under the same random numbers (seed 0; 15 requests)" in " ".join(out.split())
    assert "note: static: the file's engine.max_num_batched_tokens is left out" in out
    assert "<html" in Path("page.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "01-vllm-v1",
        "02-static",
        "comparison.json",
    ]

    code, again, err = run("runs/01-vllm-v1", "runs/02-static", "--report", "again.html")
    assert (code, err) == (0, "report: again.html\n")
    table = [line for line in out.splitlines() if line.startswith(" TTFT")]
    assert [line.split() for line in again.splitlines() if line.startswith(" TTFT")] == [
        line.split() for line in table
    ]
    assert run("x.yaml", *options, "--output", "runs")[0] == 0, "earlier results may be replaced"


def test_json_is_the_file_and_holds_every_difference(run: Run) -> None:
    options = ["--vary", "engine.max_num_seqs=1,8", "--repeat", "3", "--seed", "4", "--json"]
    code, out, err = run("x.yaml", *options, "--output", "runs")
    told = json.loads(out)
    assert code == 0
    assert err.startswith("note: profile roofline: UNCALIBRATED")
    assert told == json.loads(Path("runs/comparison.json").read_text(encoding="utf-8"))
    assert (told["first"], told["seeds"], told["confidence"]) == ("max_num_seqs=1", [4, 5, 6], 0.95)
    first, second = told["alternatives"]
    assert second["values"] == {"engine.max_num_seqs": "8"}
    cell = second["measures"]["e2e_ms.p50"]
    assert first["measures"]["e2e_ms.p50"]["difference"] is None
    assert cell["difference"]["mean"] == pytest.approx(
        cell["mean"] - first["measures"]["e2e_ms.p50"]["mean"]
    )
    low, high = cell["difference"]["interval"]
    assert low < cell["difference"]["mean"] < high
    assert [summary["seed"] for summary in second["summaries"]] == [4, 5, 6]
    assert len(list(Path("runs").glob("*-seed-5/summary.json"))) == 2


def test_one_that_cannot_run_is_shown_with_its_reason(run: Run) -> None:
    code, out, _ = run(
        "x.yaml", "--vary", "hardware=rtx-4090,h200-sxm", *LARGE, "--set", "parallel.tensor=2"
    )
    assert code == 0
    assert "1 of 2 alternatives" in out
    assert "rtx-4090 cannot run: meta-llama/Llama-2-70b-hf does not fit on rtx-4090" in " ".join(
        out.split()
    )


def test_none_that_can_run_is_wrong_input(run: Run) -> None:
    code, out, err = run("x.yaml", "--vary", "hardware=rtx-4090,a10g", *LARGE, "--output", "runs")
    assert (code, out) == (2, "")
    assert [line.split(": ")[:2] for line in err.splitlines()] == [["error", "rtx-4090"], ["error", "a10g"]]
    assert not Path("runs").exists()


WRONG = [
    ("", "missing argument 'SCENARIO|DIRS'; see: servetwin compare --help"),
    (
        "x.yaml",
        "compare x.yaml: a scenario needs --vary KEY=V1,V2,..., "
        "such as --vary engine.policy=static,vllm-v1",
    ),
    ("folder", "compare folder: one folder compares with nothing; give two or more"),
    ("folder x.yaml", "compare: x.yaml is no folder; give one scenario, or folders with results"),
    ("x.yaml x.yaml", "compare: x.yaml is no folder; give one scenario, or folders with results"),
    (
        "folder folder --seed 3",
        "compare: folders hold finished runs; only --json and --report go with them",
    ),
    (
        "folder folder --vary replicas=1,2",
        "compare: folders hold finished runs; only --json and --report go with them",
    ),
    (
        "folder folder",
        "folder: no complete results here, summary.json is missing; write them with --output",
    ),
    ("gone.yaml --vary replicas=1,2", "gone.yaml: no such file or directory"),
    (
        "x.yaml --vary replicas",
        "--vary replicas: must be KEY=V1,V2,..., such as engine.policy=static,vllm-v1",
    ),
    ("x.yaml --vary replicas=0,1", "--vary replicas=0: replicas must be >= 1, not 0"),
    (
        "x.yaml --vary engine.policy=vllm-v1,vllm_v1",
        None,
    ),
    ("x.yaml --vary replicas=1,2 --set replica=2", None),
    ("x.yaml --vary replicas=1,2 --repeat 0", None),
    ("x.yaml --vary replicas=1,2 --report gone/page.html", None),
    ("x.yaml --vary replicas=1,2 --output x.yaml", "--output x.yaml: x.yaml is a file, not a folder"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[arguments for arguments, _ in WRONG])
def test_wrong_input_is_one_line_and_exit_2(run: Run, arguments: str, message: str | None) -> None:
    Path("folder").mkdir()
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message is None or err == f"error: {message}\n"


def test_simulate_tells_which_keys_a_switch_of_policy_leaves_out(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["simulate", "x.yaml", "--set", "engine.policy=static", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["policy"] == "static"
    assert "note: the file's engine.max_num_batched_tokens is left out: no key of this policy" in told.err
