"""``servetwin sweep`` as its users meet it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import duckdb
import pytest

from simulator.simulation import simulate
from simulator.sweeps import search
from tests.simulator.sweeps.conftest import Run

ALONE = ("--workers", "1")


def test_a_table_files_and_a_page(run: Run) -> None:
    options = ("--vary", "engine.max_num_seqs=1,8", "--vary", "replicas=1,2", "--price", "2.5", *ALONE)
    code, out, err = run("x.yaml", *options, "--output", "a", "--report", "page.html")
    assert (code, err) == (0, "results: a\nreport: page.html\n")
    assert "4 points: 4 computed, 0 reused." in out
    assert "UNCALIBRATED" in out
    page = Path("page.html").read_text(encoding="utf-8")
    assert "4 points: 4 computed, 0 reused." in page
    assert 'data-figure="front"' in page
    assert sorted(path.name for path in Path("a").iterdir()) == [
        "points",
        "results.csv",
        "results.parquet",
        "sweep.json",
    ]


def test_both_tables_hold_what_single_runs_give(run: Run, beside_scenario: Path) -> None:
    """A row is the summary of the same scenario simulated alone, whatever the table's format."""
    from simulator.scenario_file import load_scenario

    run("x.yaml", "--vary", "engine.max_num_seqs=1,8", "--output", "a", *ALONE)
    with Path("a/results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    columns = duckdb.from_parquet("a/results.parquet").fetchnumpy()
    assert list(columns) == list(rows[0])
    for place, seats in enumerate((1, 8)):
        alone = simulate(load_scenario(Path("x.yaml"), [f"engine.max_num_seqs={seats}"])).summary
        assert rows[place]["engine.max_num_seqs"] == str(seats)
        assert float(rows[place]["ttft_ms.p99"]) == alone["ttft_ms"]["p99"] == columns["ttft_ms.p99"][place]
        assert columns["requests.completed"].dtype.kind == "i"
        assert columns["front"].dtype.kind == "b"


def test_a_point_that_cannot_run_is_a_row_with_its_reason(run: Run) -> None:
    options = ("--vary", "engine.max_num_seqs=0,8", "--vary", "engine.kv_blocks=auto,2", *ALONE)
    code, out, err = run("x.yaml", *options, "--output", "a", "--json")
    told = json.loads(out)
    assert (code, told["failed"], told["computed"]) == (0, 2, 2)
    assert err.startswith(
        "2 of 4 points cannot run: --vary engine.max_num_seqs=0: engine.max_num_seqs must be"
    )
    assert [row["status"] for row in told["rows"]] == ["failed", "failed", "done", "done"]
    assert told["rows"][0]["reason"].endswith("must be >= 1, not 0")
    assert told["rows"][3]["requests.completed"] == 0, "two blocks hold none of the requests"
    assert 4 not in told["front"]
    columns = duckdb.from_parquet("a/results.parquet").fetchnumpy()
    assert columns["ttft_ms.p99"].mask.tolist() == [True, True, False, True]


def test_a_point_that_only_fails_as_it_runs_is_kept_with_its_reason(run: Run) -> None:
    options = ("--vary", "hardware=a10g,h200-sxm", "--set", "model=meta-llama/Llama-2-70b-hf")
    options += ("--set", "parallel.tensor=2", "--output", "a", "--json", *ALONE)
    told = json.loads(run("x.yaml", "--vary", "replicas=1", *options)[1])
    assert (told["computed"], told["failed"], told["front"]) == (2, 1, [2])
    assert "does not fit on a10g" in told["rows"][0]["reason"]
    again = json.loads(run("x.yaml", "--vary", "replicas=1", *options, "--resume")[1])
    assert (again["computed"], again["reused"], again["failed"]) == (0, 2, 1)


def test_a_fault_of_ours_ends_one_point_and_is_tried_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(scenario: object, **options: object) -> object:
        if scenario.engine.max_num_seqs == 1:  # type: ignore[attr-defined]
            raise ZeroDivisionError("a bug")
        return simulate(scenario, **options)  # type: ignore[arg-type]

    grid = ("--vary", "engine.max_num_seqs=1,8", "--output", "a", "--json", *ALONE)
    with monkeypatch.context() as patch:
        patch.setattr("simulator.simulation.simulate", faulty)
        told = json.loads(run("x.yaml", *grid)[1])
    assert told["rows"][0]["reason"].startswith("a fault of ServeTwin (ZeroDivisionError: a bug)")
    mended = json.loads(run("x.yaml", *grid, "--resume")[1])
    assert (mended["computed"], mended["reused"], mended["failed"]) == (1, 1, 0)


def test_the_same_bytes_whatever_the_number_of_workers(run: Run) -> None:
    grid = ("--vary", "engine.max_num_seqs=1:6", "--vary", "seed=0,1")
    outs = [run("x.yaml", *grid, "--output", f"w{count}", "--workers", str(count))[1] for count in (1, 3)]
    assert outs[0] == outs[1]
    for name in ("results.csv", "results.parquet", "sweep.json"):
        assert Path("w1", name).read_bytes() == Path("w3", name).read_bytes()


WRONG = [
    ("--vary engine.max_num_seqs=1,2 --set replica=2", "--set replica=2: replica is not a known key"),
    ("--vary engine.max_seqs=1,2", "--vary engine.max_seqs=1: engine.max_seqs is not a known key"),
    ("--vary replicas=2:1", "--vary replicas=2:1: a range goes upwards, not from 2 to 1"),
    ("--vary replicas=1,2 --workers 2 --cluster tcp://x:1", "sweep: give --workers or --cluster, not both"),
    ("--vary replicas=1,2 --workers 0", "invalid value for '--workers'"),
    ("--vary replicas=1,2 --price dear", "--price dear: must be a price per GPU-hour"),
    ("--vary hardware=h100-sxm,l40s --price h100-sxm=2", "--price: no price for l40s; add ,l40s=PRICE"),
    ("--vary replicas=1,2 --latency ttft", "--latency ttft: must be one of ttft_ms, tpot_ms"),
    ("--vary replicas=1,2 --report gone/page.html", "folder"),
    ("--output x.yaml --vary replicas=1,2", "--output x.yaml: is a file, not a folder"),
    ("--output busy --vary replicas=1,2", "--output busy: holds mine.txt, which is no sweep"),
    ("", "missing option '--vary'"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[arguments for arguments, _ in WRONG])
def test_wrong_input_is_told_and_leaves_nothing(run: Run, arguments: str, message: str) -> None:
    Path("busy").mkdir()
    Path("busy/mine.txt").touch()
    output = () if "--output" in arguments else ("--output", "a")
    code, out, err = run("x.yaml", *arguments.split(), *output)
    assert (code, out) == (2, "")
    assert message in err
    assert all(line.startswith("error: ") for line in err.splitlines())
    assert not Path("a").exists()


def test_another_sweep_in_the_folder_is_refused_with_or_without_resume(run: Run) -> None:
    run("x.yaml", "--vary", "engine.max_num_seqs=1,8", "--output", "a", *ALONE)
    other = ("x.yaml", "--vary", "replicas=2,3", "--output", "a", *ALONE)
    for options in (other, (*other, "--resume")):
        code, _, err = run(*options)
        told = "holds a different sweep, 'x' over engine.max_num_seqs; name another folder"
        assert (code, err) == (2, f"error: --output a: {told}\n")
    code, _, err = run("x.yaml", "--vary", "engine.max_num_seqs=1,8", "--output", "a", *ALONE)
    assert (code, err) == (
        2,
        "error: --output a: holds this sweep, 2 points of it done; add --resume to go on\n",
    )


def test_a_front_that_is_empty_is_explained(run: Run) -> None:
    tiny = ("--set", "engine.kv_blocks=2", "--output", "a", *ALONE)
    code, out, _ = run("x.yaml", "--vary", "engine.max_num_seqs=1,8", *tiny)
    assert code == 0
    assert "0 on the Pareto front" in " ".join(out.split())
    assert "each loses more requests than E2E p99 leaves aside" in " ".join(out.split())


def test_a_point_that_misses_the_slo_is_on_no_front_however_cheap(run: Run) -> None:
    """At 400 requests/s one seat makes nearly everyone wait; two replicas with 64 seats do not."""
    slo = ("--set", "slo={ttft_ms: 100}", "--set", "workload.arrivals.rate_per_s=400")
    grid = ("--vary", "replicas=1,2", "--vary", "engine.max_num_seqs=1,64")
    told = json.loads(run("x.yaml", *grid, *slo, "--output", "a", "--json", *ALONE)[1])
    met = [row["meets_slo"] for row in told["rows"]]
    assert met == [False, True, False, True]
    assert set(told["front"]) <= {2, 4}
    out = " ".join(run("x.yaml", *grid, *slo, "--output", "a", "--resume", *ALONE)[1].split())
    assert "2 left out, which miss the SLO." in out
    strict = ("--set", "slo={ttft_ms: 0.001}", "--output", "b", *ALONE)
    assert "no point meets the SLO, so none is on the front" in " ".join(
        run("x.yaml", *grid, *strict)[1].split()
    )


def test_a_sweep_over_loads_says_that_its_front_mixes_them(run: Run) -> None:
    rates = ("--vary", "workload.arrivals.rate_per_s=4,8", "--output", "a", *ALONE)
    out = run("x.yaml", *rates)[1]
    assert "the front mixes loads" in " ".join(out.split())
    assert {"rate", "per", "s"} <= set(" ".join(out.splitlines()[3:8]).split()), "heads break between words"


SPACE = ("--vary", "workload.arrivals.rate_per_s=1.0:40.0:log", "--vary", "engine.max_num_seqs=1:64:log")


def test_a_search_is_seeded_resumable_and_blind_to_the_number_of_workers(run: Run) -> None:
    options = ("x.yaml", *SPACE, "--search", "24", "--set", "workload.requests=10")
    first = run(*options, "--output", "a", "--workers", "1")
    second = run(*options, "--output", "b", "--workers", "2")
    assert (first[0], first[1]) == (0, second[1])
    assert Path("a/results.parquet").read_bytes() == Path("b/results.parquet").read_bytes()
    told = json.loads(run(*options, "--output", "a", "--resume", "--json")[1])
    assert (told["points"], told["computed"]) == (24, 0)
    longer = json.loads(
        run("x.yaml", *SPACE, "--search", "30", *options[-2:], "--output", "a", "--resume", "--json")[1]
    )
    assert longer["rows"][:24] == [
        row | {"front": longer["rows"][place]["front"]} for place, row in enumerate(told["rows"])
    ]
    assert 0 < longer["computed"] <= 6
    other = run(*options, "--output", "c", "--workers", "1", "--seed", "7")
    assert other[1] != first[1], "another seed tries other points"


def test_a_search_finds_more_of_the_front_than_chance_does(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bred from the best, later generations lie on the front more often than the first, random one."""
    options = ("--set", "workload.requests=30", "--workers", "1", "--json")
    told = json.loads(run("x.yaml", *SPACE, "--search", "100", "--output", "a", *options)[1])

    def scored(row: dict[str, float]) -> tuple[float | None, ...]:
        return tuple(row.get(objective["key"]) for objective in told["objectives"])

    best = {scored(row) for row in told["rows"] if row["front"]}
    front = [scored(row) in best for row in told["rows"]]
    assert sum(front[-search.GENERATION :]) > sum(front[: search.GENERATION])
