from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest

from simulator import results
from simulator.columns import CompactColumns
from simulator.errors import UserError
from simulator.results import read_results, write_results
from simulator.run_tables import RunTables
from tests.simulator.run_examples import MS, NEVER, random_run, run_of, summary_of

FILES = ("scenario.yaml", "summary.json", "requests.parquet", "iterations.parquet")
YAML = "name: chat – «test»\n"


def write(directory: Path, tables: RunTables) -> Path:
    write_results(directory, YAML, summary_of(tables), tables)
    return directory


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.mark.parametrize("tables", [random_run(400), run_of(), run_of([{}], [{"end_ns": 1}])])
def test_reading_gives_back_what_was_written(tmp_path: Path, tables: RunTables) -> None:
    found = read_results(write(tmp_path / "a" / "b", tables))
    assert found.scenario_yaml == YAML
    assert found.summary == summary_of(tables)
    assert found.reasons == tables.reasons
    for read, written in ((found.requests, tables.requests), (found.iterations, tables.iterations)):
        assert set(read) == set(written)
        for name, column in written.items():
            np.testing.assert_array_equal(read[name], column, err_msg=name)


def test_equal_tables_give_equal_bytes(tmp_path: Path) -> None:
    first = digests(write(tmp_path / "one", random_run(400)))
    again = digests(write(tmp_path / "two's", random_run(400)))
    assert first == again
    assert sorted(first) == sorted(FILES)  # and nothing temporary is left behind
    other = digests(write(tmp_path / "three", random_run(400, seed=2)))
    assert first["requests.parquet"] != other["requests.parquet"]


def test_how_a_table_is_held_does_not_show_in_the_files(tmp_path: Path) -> None:
    wide = random_run(400)
    compact = replace(wide, requests=compacted(wide.requests), iterations=compacted(wide.iterations))
    assert digests(write(tmp_path / "one", wide)) == digests(write(tmp_path / "two", compact))


def compacted(columns: Mapping[str, np.ndarray]) -> CompactColumns:
    table = CompactColumns(tuple(columns))
    for part in (slice(0, 7), slice(7, None)):
        table.append(np.column_stack([column[part] for column in columns.values()]))
    return table


def test_the_tables_are_as_promised(tmp_path: Path) -> None:
    requests = [
        {"arrival_ns": 1500 * MS, "finished_ns": 2000 * MS},
        NEVER | {"arrival_ns": 1501 * MS, "status": 1},
    ]
    directory = write(tmp_path, run_of(requests, [{"end_ns": 3}], reasons={1: "it's too long"}))
    described = duckdb.sql(f"DESCRIBE SELECT * FROM '{directory}/requests.parquet'").fetchall()
    types = {name: kind for name, kind, *_ in described}
    promised = (
        "id arrival_s prompt_tokens output_tokens output_limit replica status reason scheduled_s "
        "first_token_s finished_s preemptions cached_tokens"
    )
    assert list(types) == promised.split()
    assert {types[name] for name in types if name.endswith("_s")} == {"DOUBLE"}
    assert {types[name] for name in types if not name.endswith("_s")} == {"BIGINT", "VARCHAR"}
    query = "SELECT arrival_s, status, reason, finished_s"
    rows = duckdb.sql(f"{query} FROM '{directory}/requests.parquet'").fetchall()
    assert rows == [(1.5, "completed", None, 2.0), (1.501, "rejected", "it's too long", None)]
    names = [
        row[0] for row in duckdb.sql(f"DESCRIBE SELECT * FROM '{directory}/iterations.parquet'").fetchall()
    ]
    promised = (
        "replica start_s end_s prefill_tokens prefill_pairs decodes context_tokens padding_tokens "
        "preempted waiting kv_blocks_used repeats"
    )
    assert names == [*promised.split(), "prefills"]


@pytest.mark.parametrize("lost", FILES)
def test_a_missing_file_is_named(tmp_path: Path, lost: str) -> None:
    (write(tmp_path, random_run(10)) / lost).unlink()
    with pytest.raises(UserError, match=lost.replace(".", r"\.")) as error:
        read_results(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damaged", FILES[1:])
def test_a_truncated_file_is_named(tmp_path: Path, damaged: str) -> None:
    path = write(tmp_path, random_run(50)) / damaged
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=f"{damaged}: damaged") as error:
        read_results(tmp_path)
    assert "\n" not in str(error.value)


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such directory"):
        read_results(tmp_path / "nothing")


def test_a_foreign_table_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, random_run(10)) / "requests.parquet"
    duckdb.sql("SELECT 1 AS id").write_parquet(str(path))
    with pytest.raises(UserError, match="column 'arrival_s' is missing"):
        read_results(tmp_path)
    columns = ", ".join(f"'x' AS {name}" for name in results.REQUEST_COLUMNS)
    duckdb.sql(f"SELECT {columns}").write_parquet(str(path))
    with pytest.raises(UserError, match="not of a ServeTwin run"):
        read_results(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"requests": 3}'])
def test_a_foreign_summary_is_refused(tmp_path: Path, text: str) -> None:
    (write(tmp_path, random_run(10)) / "summary.json").write_text(text)
    with pytest.raises(UserError, match="not the summary of a ServeTwin run"):
        read_results(tmp_path)


@pytest.mark.parametrize("key", ["requests", "duration_s", "throughput", "ttft_ms", "tpot_ms", "e2e_ms"])
def test_an_edited_summary_is_refused(tmp_path: Path, key: str) -> None:
    path = write(tmp_path, random_run(50)) / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    if key == "duration_s":
        summary[key] += 1
    else:
        name = next(name for name, value in summary[key].items() if isinstance(value, int | float))
        summary[key][name] = 2 * summary[key][name] + 1
    path.write_text(json.dumps(summary), encoding="utf-8")
    with pytest.raises(UserError, match=f"{key} is not that of the tables|speaks of"):
        read_results(tmp_path)


def test_files_of_different_runs_do_not_mix(tmp_path: Path) -> None:
    write(tmp_path / "a", random_run(10))
    write(tmp_path / "b", random_run(11))
    (tmp_path / "a" / "requests.parquet").replace(tmp_path / "b" / "requests.parquet")
    with pytest.raises(UserError, match=r"holds 10 requests, summary\.json speaks of 11"):
        read_results(tmp_path / "b")


@pytest.mark.parametrize("stop_after", range(4))
def test_an_interrupted_write_never_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    """Killed between any two renames, over the results of an earlier run."""
    write(tmp_path, random_run(10))
    renames = iter(range(stop_after))
    rename = Path.replace

    def killed(path: Path, target: Path) -> Path:
        if next(renames, None) is None:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, random_run(10, seed=2))
    with pytest.raises(UserError, match=r"summary\.json is missing"):
        read_results(tmp_path)


def test_a_failure_before_the_renames_leaves_the_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digests(write(tmp_path, random_run(10)))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        write(tmp_path, random_run(10, seed=2))
    after = digests(tmp_path)
    assert {name: after[name] for name in FILES} == before


def test_a_file_in_the_way_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="results cannot be written"):
        write(tmp_path / "out", random_run(10))


def test_nan_never_reaches_the_summary_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_results(tmp_path, YAML, {"duration_s": float("nan")}, random_run(10))
    assert not list(tmp_path.iterdir())


def test_the_summary_is_plain_json(tmp_path: Path) -> None:
    text = (write(tmp_path, random_run(10)) / "summary.json").read_text(encoding="utf-8")
    assert json.loads(text)["requests"]["offered"] == 10
