"""The command line as its users meet it: output, messages, exit codes and what is left on the disk."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import typer

from simulator import cli
from simulator.cli_lists import LISTINGS
from simulator.cli_output import progress_on
from simulator.errors import ScenarioError, UserError
from simulator.policies import POLICIES
from simulator.results import read_results
from simulator.scenario import Preset, TraceFormat
from simulator.scenario_file import load_scenario

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "duckdb", "plotly", "scipy", "torch", "simpy", "pydantic", "yaml")
SCENARIO = """\
name: a few requests
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
profile: roofline
workload:
  arrivals: {process: poisson, rate_per_s: 8}
  lengths: {fixed: {prompt: 100, output: 10}}
  requests: 20
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process; gives exit code, standard output and standard error."""

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        code = cli.main([str(argument) for argument in arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    return command


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A short scenario in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    path = Path("x.yaml")
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def subprocess_of(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def command_names(app: typer.Typer, prefix: str = "") -> list[str]:
    """Every command as it is typed: ``simulate``, ``workload describe``, ..."""
    commands = [
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    ]
    names = [f"{prefix}{name}" for name in commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        names += command_names(group.typer_instance, f"{prefix}{group.name} ")
    return names


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from simulator.cli import main; code = main(['--help'])\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    with subprocess_of(code) as process:
        out, err = process.communicate()
    assert (process.returncode, err.strip()) == (0, "[]")
    assert "simulate" in out


def test_help_knows_every_command(run: Run) -> None:
    for name in command_names(cli.app):
        if name != "calibrate":
            code, out, err = run(*name.split(), "--help")
            assert (code, err) == (0, "")
            assert f"Usage: servetwin {name}" in out


def test_help_says_what_it_says_to_the_end_at_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("", "workload", "calibrate"):
        told = run(*name.split(), "--help")[1].splitlines()
        commands = told[told.index("Commands:") + 1 :]
        assert len(commands) >= 3
        assert max(map(len, told)) <= 80
        assert all(re.match(r"  \w+ +\S.*[^.]\.$", line) for line in commands), "a whole sentence on a line"


def test_every_command_is_documented_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    silent = [name for name in command_names(cli.app) if not re.search(rf"`servetwin {name}\b", readme)]
    assert silent == []


def test_without_a_command_three_examples_are_shown(run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    examples = [line for line in out.splitlines() if line.startswith("  servetwin ")]
    assert len(examples) == 3
    assert {line.split()[1] for line in examples} <= set(command_names(cli.app))


def test_version(run: Run) -> None:
    code, out, err = run("--version")
    assert (code, err) == (0, "")
    assert out.startswith("servetwin ")


WRONG_COMMANDS = [
    ("simulate", "missing argument 'SCENARIO'; see: servetwin simulate --help"),
    (
        "simulate x.yaml --sed 3",
        "no such option: --sed (Possible options: --seed, --set); see: servetwin simulate --help",
    ),
    ("simulate x.yaml --seed three", None),
    ("simulate x.yaml y.yaml", None),
    ("simulat x.yaml", None),
    ("simulate missing.yaml", "missing.yaml: no such file or directory"),
    ("simulate x.yaml --seed -1", "--seed -1: seed must be >= 0, not -1"),
    ("simulate x.yaml --set replicas=0", "--set replicas=0: replicas must be >= 1, not 0"),
    ("list", "missing argument 'WHAT'; see: servetwin list --help"),
    ("list gpus", "list gpus: there are lists of models, hardware, profiles, policies, workloads, formats"),
    ("workload", "missing command; see: servetwin workload --help"),
    ("workload describe missing.csv", None),
    ("memory --model gpt-5 --hardware h100-sxm", None),
    (
        "memory --model meta-llama/Llama-3.1-8B --hardware h100",
        "hardware: 'h100' is not known; did you mean 'h100-sxm'?",
    ),
    ("memory --model meta-llama/Llama-3.1-8B --hardware h100-sxm --batch 0", None),
    ("memory --model meta-llama/Llama-3.1-8B", "missing option '--hardware'; see: servetwin memory --help"),
]


@pytest.mark.parametrize(
    ("command", "message"), WRONG_COMMANDS, ids=[command for command, _ in WRONG_COMMANDS]
)
@pytest.mark.usefixtures("scenario")
def test_wrong_input_is_one_line_on_standard_error_and_exit_2(
    run: Run, command: str, message: str | None
) -> None:
    code, out, err = run(*command.split())
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert message is None or err == f"error: {message}\n"


def test_every_problem_of_a_scenario_has_its_own_line(run: Run, scenario: Path) -> None:
    scenario.write_text(SCENARIO + "seeds: 1\nreplicas: 0\n", encoding="utf-8")
    assert run("simulate", scenario) == (
        2,
        "",
        "error: x.yaml:9: seeds is not a known key (did you mean seed?)\n"
        "error: x.yaml:10: replicas must be >= 1, not 0\n",
    )


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (UserError("here: this"), 2, "error: here: this\n"),
        (ScenarioError("a:1: this\nb:2: that"), 2, "error: a:1: this\nerror: b:2: that\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (typer.Exit(1), 1, ""),
    ],
)
def test_what_a_command_raises_decides_the_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, said: str
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setitem(LISTINGS, "models", fail)
    assert run("list", "models") == (code, "", said)


@pytest.mark.parametrize("word", ["x" * 100_000, "x " * 50_000, "/tmp/" + "x/" * 50_000, "é" * 100_000])
@pytest.mark.parametrize(
    "command",
    [
        "simulate x.yaml --set profile={}",
        "simulate x.yaml --set model={}",
        "simulate x.yaml --set hardware={}",
        "simulate x.yaml --set {}=1",
        "simulate x.yaml --output {}",
        "simulate {}",
        "list {}",
        "{}",
    ],
)
def test_a_long_word_gives_a_short_line(run: Run, command: str, word: str) -> None:
    code, out, err = run(*(part.format(word) for part in command.split()))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert len(err) < 1500


def test_an_ordinary_long_path_stays_whole(run: Run) -> None:
    path = "/nowhere/" + "/".join(["folder"] * 50) + "/x.yaml"
    assert path in run("simulate", path)[2]


def test_a_bug_keeps_its_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: dict[str, object] = {}
    monkeypatch.setitem(LISTINGS, "models", lambda: broken["name"])
    with pytest.raises(KeyError):
        run("list", "models")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    code = "import sys; from simulator.cli import main; sys.exit(main(['list', 'models']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, text=True
    )
    os.close(write_end)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize(("key", "code"), [("name", 0), ("title", 2)])
def test_what_a_terminal_cannot_show_becomes_a_question_mark(scenario: Path, key: str, code: int) -> None:
    program = "import sys; from simulator.cli import main; sys.exit(main(sys.argv[1:]))"
    plain = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    override = f"{key}=\u65e5"
    with subprocess_of(
        program, "simulate", str(scenario.absolute()), "--set", override, env=plain
    ) as process:
        out, err = process.communicate()
    assert process.returncode == code, err
    assert "?" in (out if code == 0 else err)
    assert "Traceback" not in err


def test_simulate_prints_a_summary_for_people_or_for_programs(run: Run, scenario: Path) -> None:
    code, out, err = run("simulate", scenario)
    assert (code, err) == (0, "")
    assert "a few requests" in out
    assert "TTFT" in out
    code, out, err = run("simulate", scenario, "--json", "--seed", "3", "--set", "workload.requests=7")
    summary = json.loads(out)
    assert (code, summary["seed"], summary["requests"]["completed"]) == (0, 3, 7)
    assert err.startswith("note: uncalibrated")


@pytest.mark.parametrize(("limit", "noted"), [(131_072, False), (131_073, True)])
def test_sequences_beyond_the_models_own_limit_are_pointed_out(
    run: Run, scenario: Path, limit: int, noted: bool
) -> None:
    """Llama-3.1-8B: ``max_position_embeddings`` is 131,072 in its config.json."""
    model = "model=meta-llama/Llama-3.1-8B"
    limits = f"engine.max_model_len={limit}"
    _, _, err = run("simulate", scenario, "--json", "--set", model, "--set", limits)
    assert ("the model was made for 131,072 tokens" in err) is noted


def test_simulate_keeps_results_that_run_again_to_the_same_bytes(run: Run, scenario: Path) -> None:
    code, _, err = run(
        "simulate", scenario, "--set", "seed=5", "--output", "runs/one", "--report", "runs/one/r.html"
    )
    assert (code, err) == (0, "results: runs/one\nreport: runs/one/r.html\n")
    assert load_scenario(Path("runs/one/scenario.yaml")) == load_scenario(scenario, ["seed=5"])
    assert read_results(Path("runs/one")).summary["requests"]["completed"] == 20
    assert "<html" in Path("runs/one/r.html").read_text(encoding="utf-8")

    assert run("simulate", "runs/one/scenario.yaml", "--output", "runs/two")[0] == 0
    for name in ("scenario.yaml", "requests.parquet", "iterations.parquet"):
        assert Path("runs/one", name).read_bytes() == Path("runs/two", name).read_bytes()
    assert run("simulate", scenario, "--output", "runs/two")[0] == 0, "earlier results may be replaced"


WRONG_PLACES = [
    ("--output x.yaml", "--output x.yaml: x.yaml is a file, not a folder"),
    ("--output x.yaml/deep", "--output x.yaml/deep: {here}/x.yaml is a file, not a folder"),
    (
        "--output .",
        "--output .: holds full, which is no result of ServeTwin; name a new or an empty folder",
    ),
    (
        "--output full",
        "--output full: holds notes.txt, which is no result of ServeTwin; name a new or an empty folder",
    ),
    ("--report gone/r.html", "--report gone/r.html: folder {here}/gone does not exist"),
    ("--report full", "--report full: is a folder; name a file in it"),
    ("--report x.yaml/r.html", "--report x.yaml/r.html: {here}/x.yaml is a file, not a folder"),
    ("--report locked/r.html", "--report locked/r.html: folder {here}/locked is not writable"),
    ("--output locked/run", "--output locked/run: folder {here}/locked is not writable"),
]


@pytest.mark.parametrize(("option", "message"), WRONG_PLACES, ids=[option for option, _ in WRONG_PLACES])
def test_where_nothing_can_be_written_is_said_before_the_work(
    run: Run, scenario: Path, monkeypatch: pytest.MonkeyPatch, option: str, message: str
) -> None:
    Path("full").mkdir()
    Path("full/notes.txt").touch()
    Path("locked").mkdir()
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path).name != "locked")
    monkeypatch.setattr(
        "simulator.simulation.simulate", lambda *_, **__: pytest.fail("the work was done first")
    )
    code, out, err = run("simulate", scenario, *option.split())
    assert (code, out, err) == (2, "", f"error: {message.format(here=Path.cwd())}\n")


def test_a_report_that_fails_costs_no_results(
    run: Run, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise UserError("the disk is full")

    monkeypatch.setattr("simulator.report.write_report", fail)
    code, _, err = run("simulate", scenario, "--output", "run", "--report", "r.html")
    assert (code, err) == (2, "error: the disk is full\n")
    assert read_results(Path("run")).summary["scenario"] == "a few requests"


class Stream(list[str]):
    """A stream that remembers what was written and says whether it is a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal
        self.write = self.append
        self.flush = lambda: None


def test_progress_is_shown_on_a_terminal_only() -> None:
    stream = Stream(terminal=False)
    with progress_on(stream, "simulating") as progress:  # type: ignore[arg-type]
        assert progress is None
    assert stream == []


def test_progress_is_drawn_ten_times_a_second_however_often_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock_s = 100.0
    monkeypatch.setattr("simulator.cli_output.time", SimpleNamespace(monotonic=lambda: clock_s))
    drawn: list[int] = []
    with progress_on(Stream(terminal=True), "simulating") as progress:  # type: ignore[arg-type]
        assert progress is not None
        monkeypatch.setattr(
            "rich.progress.Progress.update", lambda *_, completed, **__: drawn.append(completed)
        )
        for done in range(1000):
            clock_s += 0.001
            progress(done, 1000)
    assert len(drawn) == 10
    assert drawn == sorted(drawn)


@pytest.mark.parametrize("what", list(LISTINGS))
def test_lists_name_the_same_things_to_people_and_programs(run: Run, what: str) -> None:
    code, out, err = run("list", what, "--json")
    rows = json.loads(out)
    assert (code, err) == (0, "")
    code, out, err = run("list", what)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == (len(rows) + 1 if rows else 0)
    for row, line in zip(rows, lines[1:], strict=True):
        assert row["name"] in line


def test_lists_name_what_scenarios_accept(run: Run) -> None:
    def names(what: str) -> list[str]:
        return [row["name"] for row in json.loads(run("list", what, "--json")[1])]

    assert sorted(names("policies")) == sorted(POLICIES)
    read = [row["name"] for row in json.loads(run("list", "formats", "--json")[1]) if row["read"]]
    assert ["auto", *read] == list(get_args(TraceFormat))
    assert set(get_args(Preset)) < set(names("workloads"))
    assert {"poisson", "gamma", "constant", "burst", "closed", "clients", "trace"} < set(names("workloads"))
    assert "h100-sxm" in names("hardware")


@pytest.mark.parametrize("what", ["formats", "workloads"])
def test_lists_fit_a_narrow_terminal(run: Run, what: str) -> None:
    assert max(map(len, run("list", what)[1].splitlines())) <= 80


def test_the_schema_is_json_with_every_key_of_a_scenario(run: Run) -> None:
    code, out, err = run("schema")
    assert (code, err) == (0, "")
    assert {"model", "hardware", "engine", "workload", "slo"} < set(json.loads(out)["properties"])


@pytest.mark.parametrize(
    ("model", "dtype", "gigabytes"),
    # 2 x layers x KV heads x head size x bytes x 8 x 2048, shapes as in the models' config.json
    [("meta-llama/Llama-2-7b-hf", "float16", 8.59), ("meta-llama/Llama-3.1-8B", "bfloat16", 2.15)],
)
def test_memory_of_a_batch(run: Run, model: str, dtype: str, gigabytes: float) -> None:
    options = (
        "--model",
        model,
        "--hardware",
        "a100-80-sxm",
        "--dtype",
        dtype,
        "--batch",
        "8",
        "--context",
        "2048",
    )
    code, out, err = run("memory", *options, "--json")
    assert (code, err) == (0, "")
    assert round(json.loads(out)["request"]["kv_bytes"] / 1e9, 2) == gigabytes
    assert f"{gigabytes} GB" in run("memory", *options)[1]


def test_workload_describe(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "a.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    code, out, err = run("workload", "describe", trace, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["format"] == "azure"
    code, out, err = run("workload", "describe", trace, "--format", "azure")
    assert (code, err) == (0, "")
    assert "374" in out


def test_calibrate_hands_everything_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[list[str]] = []

    def app(args: list[str], prog_name: str, standalone_mode: bool) -> int:
        assert (prog_name, standalone_mode) == ("servetwin calibrate", False)
        handed.append(args)
        return 0

    monkeypatch.setitem(sys.modules, "calibration.cli", SimpleNamespace(app=app))
    assert run("calibrate", "fit", "a.json", "--output", "b.json", "--help") == (0, "", "")
    assert handed == [["fit", "a.json", "--output", "b.json", "--help"]]


def test_calibrate_hides_no_other_import_that_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def app(**_: object) -> int:
        raise ModuleNotFoundError("No module named 'calibration.fits'", name="calibration.fits")

    monkeypatch.setitem(sys.modules, "calibration.cli", SimpleNamespace(app=app))
    with pytest.raises(ModuleNotFoundError):
        run("calibrate", "fit")


def test_calibrate_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def app(**_: object) -> int:
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setitem(sys.modules, "calibration.cli", SimpleNamespace(app=app))
    assert run("calibrate") == (2, "", "error: calibrate needs scipy: pip install 'servetwin[calibrate]'\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_stream_that_the_shell_closed_is_no_error(closed: str) -> None:
    """Python has None for a stream that is closed from the start."""
    for arguments, code in (("list models", 0), ("simulate nowhere.yaml", 2)):
        command = f"{sys.executable} -m simulator {arguments} {closed}"
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False)
