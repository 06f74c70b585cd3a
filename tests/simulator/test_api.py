"""``import simulator``: what a script or a notebook sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pytest

import simulator
from simulator import cli
from simulator.scenario_file import PATH_KEYS

VALUES = {
    "name": "a few requests",
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": "h100-sxm",
    "profile": "roofline",
    "engine": {"max_model_len": 4096},
    "workload": {
        "arrivals": {"process": "poisson", "rate_per_s": 8},
        "lengths": {"fixed": {"prompt": 100, "output": 10}},
        "requests": 20,
    },
}


def test_importing_loads_nothing_heavy() -> None:
    """The promise of 0.15 s of CPU, as what would break it."""
    heavy = ("numpy", "pydantic", "yaml", "duckdb", "simpy")
    code = f"import simulator, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_is_there_and_no_other() -> None:
    for name in simulator.PUBLIC:
        assert callable(getattr(simulator, name))
    assert set(simulator.PUBLIC) <= set(dir(simulator))
    with pytest.raises(AttributeError, match="module 'simulator' has no attribute 'simulat'"):
        _ = simulator.simulat


def test_a_dict_a_file_and_a_loaded_scenario_are_the_same(tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(VALUES), encoding="utf-8")
    changed = {"engine.max_num_seqs": 2, "workload.lengths": {"fixed": {"prompt": 50, "output": 5}}}
    loaded = simulator.load_scenario(VALUES, changed, seed=3)
    assert loaded == simulator.load_scenario(str(path), changed, seed=3)
    assert loaded == simulator.load_scenario(simulator.load_scenario(path), changed, seed=3)
    assert (loaded.engine.max_num_seqs, loaded.seed) == (2, 3)
    assert loaded.workload.lengths.fixed.output == 5
    runs = [simulator.simulate(VALUES, changed, seed=3), simulator.simulate(loaded)]
    figures = [{key: value for key, value in run.summary.items() if key != "simulation"} for run in runs]
    assert figures[0] == figures[1]


def test_tables_are_those_that_the_command_line_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = simulator.simulate(VALUES, {"engine.kv_blocks": 8, "workload.lengths.fixed.prompt": 130})
    assert set(run.requests["status"].tolist()) == {"rejected"}
    run = simulator.simulate(VALUES)
    run.write("api")
    Path("x.yaml").write_text(Path("api/scenario.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    assert cli.main(["simulate", "x.yaml", "--output", "cli", "--json"]) == 0
    capsys.readouterr()
    for name, table in (("requests", run.requests), ("iterations", run.iterations)):
        assert Path(f"api/{name}.parquet").read_bytes() == Path(f"cli/{name}.parquet").read_bytes()
        kept = duckdb.from_parquet(f"cli/{name}.parquet").fetchnumpy()
        assert list(table) == [column for column in kept if column != "reason"] + (
            ["reason"] if "reason" in kept else []
        )
        for column in table:
            if column != "reason":
                np.testing.assert_array_equal(table[column], np.ma.filled(kept[column]))


def test_latencies_are_those_of_the_summary() -> None:
    run = simulator.simulate(VALUES)
    for name, key in (("ttft", "ttft_ms"), ("e2e", "e2e_ms"), ("queue", "queue_ms")):
        assert np.nanquantile(run.latencies_ms[name], 0.99) == pytest.approx(run.summary[key]["p99"])
    ttft_s = run.requests["first_token_s"] - run.requests["arrival_s"]
    np.testing.assert_allclose(run.latencies_ms["ttft"], 1e3 * ttft_s)


def test_a_sweep_in_memory_and_on_the_disk(tmp_path: Path) -> None:
    vary = {"engine.max_num_seqs": [1, 8], "engine.policy": ["vllm-v1", "static"]}
    found = simulator.sweep(VALUES, vary, workers=1, price={"h100-sxm": 2.0})
    kept = simulator.sweep(VALUES, vary, workers=1, price=2.0, output=tmp_path / "a")
    again = simulator.sweep(VALUES, vary, workers=1, price=2.0, output=tmp_path / "a")
    assert found.rows == kept.rows == again.rows
    assert (found.computed, kept.computed, again.computed, again.reused) == (4, 4, 0, 4)
    assert found.columns["cost_per_hour"].tolist() == [2.0] * 4
    assert found.columns["engine.policy"].tolist() == ["vllm-v1", "static"] * 2
    assert [row.number for row in found.front] == [row.number for row in kept.front]


def test_tables_for_other_libraries() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    run = simulator.simulate(VALUES)
    table = simulator.frame(run.requests)
    assert isinstance(table, pandas.DataFrame)
    assert table["arrival_s"].tolist() == run.requests["arrival_s"].tolist()
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    assert simulator.arrow(run.requests).column("id").to_pylist() == run.requests["id"].tolist()


def test_relative_paths_start_at_the_file_and_become_absolute(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("prompt_tokens,output_tokens\n100,10\n", encoding="utf-8")
    loaded = simulator.load_scenario(
        VALUES, {"workload.lengths": {"empirical": "lengths.csv"}}, folder=tmp_path
    )
    assert loaded.workload.lengths.empirical == str(tmp_path / "lengths.csv")
    assert simulator.simulate(loaded).summary["requests"]["completed"] == 20
    wrong = {"workload.lengths": {"empirical": "gone.csv"}}
    with pytest.raises(simulator.UserError, match=r"gone\.csv"):
        simulator.load_scenario(VALUES, wrong, folder=tmp_path)


def test_what_a_switch_of_policy_leaves_out_is_a_warning() -> None:
    values = VALUES | {"engine": {"policy": "vllm-v1", "max_num_batched_tokens": 4096}}
    with pytest.warns(UserWarning, match="max_num_batched_tokens is left out"):
        simulator.load_scenario(values, {"engine.policy": "static"})


def test_what_is_wrong_is_a_user_error_without_line_numbers() -> None:
    with pytest.raises(simulator.UserError) as raised:
        simulator.simulate(VALUES | {"hardware": "h1000"})
    assert str(raised.value).startswith("scenario: ")


def test_every_key_that_names_a_file_is_known() -> None:
    """A sweep's points depend on what files hold, so none may be overlooked when a key is added."""
    from simulator.scenario import Scenario

    schema = Scenario.model_json_schema()
    named = set()
    for node in (schema, *schema["$defs"].values()):
        for key, field in node.get("properties", {}).items():
            words = field.get("description", "").lower().replace(",", " ").replace(";", " ").split()
            text = field.get("type") == "string" or {"type": "string"} in [
                {"type": option.get("type")} for option in field.get("anyOf", [])
            ]
            if text and {"file", "folder", "path", "csv", "folder's"} & set(words):
                named.add(key)
    assert {"file", "empirical", "model", "profile"} <= named
    assert named <= set(PATH_KEYS)
