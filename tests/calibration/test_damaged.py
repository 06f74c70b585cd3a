"""Whatever is done to kernel tables and measurement files, importing and fitting end in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibration.aiconfigurator import import_tables
from calibration.fit import fit_profile, host_term
from calibration.measurements import (
    AXES,
    Header,
    Measurements,
    Sample,
    read_measurements,
    write_measurements,
)
from simulator.errors import UserError
from simulator.hardware import load_hardware
from simulator.models import load_model

MODEL = load_model("meta-llama/Llama-3.1-8B")
H100 = load_hardware("h100-sxm")
HEADS = (
    "32 num_heads, 8 num_key_value_heads, 128 head_dim, 'bfloat16' kv_cache_dtype, 'bfloat16' attn_dtype"
)
TABLES = {
    "gemm/vllm/0.24.0/gemm_perf": (
        "select 'H100' device, 'bfloat16' gemm_dtype, m.x m, n.x n, k.x k, "
        "1e-9 * m.x * n.x * k.x + 1e-2 latency "
        "from (values (1), (64), (512), (4096)) m(x), (values (1024), (4096), (16384), (131072)) n(x), "
        "(values (1024), (4096), (16384), (131072)) k(x)"
    ),
    "attention/vllm/0.24.0/context_attention_perf": (
        f"select b.x batch_size, s.x isl, 0 step, {HEADS}, 1e-8 * b.x * s.x * s.x + 1e-3 latency "
        "from (values (1), (4)) b(x), (values (16), (128), (512), (1024), (4096)) s(x)"
    ),
    "attention/vllm/0.24.0/generation_attention_perf": (
        f"select b.x batch_size, 1 isl, s.x step, {HEADS}, 1e-6 * b.x * s.x + 1e-3 latency "
        "from (values (1), (4), (16), (64)) b(x), (values (15), (127), (511), (1023)) s(x)"
    ),
}
WRONG = ("null", "-1", "0", "'NaN'::double", "'Infinity'::double", "1e300", "'x'", "[1, 2]")


def make_tables(folder: Path, damage: Callable[[str], str] = lambda query: query) -> Path:
    """The smallest set of tables that gives a profile, each through ``damage``."""
    for name, query in TABLES.items():
        file = folder / "data" / "h100_sxm" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        with duckdb.connect() as connection:
            connection.execute(f"copy ({damage(query)}) to '{file}' (format parquet)")
    return folder


def profile_of(folder: Path) -> None:
    found = import_tables(folder, MODEL, H100, "bfloat16", 1)
    write_measurements(found, folder / "found.jsonl")
    fit_profile(read_measurements(folder / "found.jsonl"), host_term("h100-sxm", 1, MODEL.layers))


def test_the_undamaged_tables_give_a_profile(tmp_path: Path) -> None:
    profile_of(make_tables(tmp_path))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_tables_end_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    columns = ("device", "m", "n", "k", "latency", "batch_size", "isl", "step", "num_heads")
    column, wrong = data.draw(st.sampled_from(columns)), data.draw(st.sampled_from(WRONG))
    share = data.draw(st.sampled_from((1, 3, 10)))

    def damage(query: str) -> str:
        kind = data.draw(st.sampled_from(("none", "none", "value", "drop", "empty", "few")))
        if kind == "empty":
            return f"select * from ({query}) where false"
        if kind == "few":
            return f"select * from ({query}) limit {data.draw(st.integers(1, 9))}"
        if f" {column}," not in f"{query} ,".replace(" from", ",") or kind == "none":
            return query
        if kind == "drop":
            return f"select * exclude ({column}) from ({query})"
        chosen = f"case when hash(latency) % {share} = 0 then {wrong} else {column} end"
        return f"select * replace ({chosen} as {column}) from ({query})"

    folder = tmp_path_factory.mktemp("tables")
    try:
        make_tables(folder, damage)
    except duckdb.Error:
        return  # no such table can exist
    try:
        profile_of(folder)
    except UserError as error:
        refused = error
    else:
        return
    assert "\n" not in str(refused)


def test_a_table_that_is_no_parquet_ends_in_one_line(tmp_path: Path) -> None:
    make_tables(tmp_path)
    file = next(tmp_path.rglob("gemm_perf.parquet"))
    for content in (b"", b"PAR1", file.read_bytes()[:300], b"m,n,k\n1,2,3\n"):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"gemm_perf\.parquet: not such a table") as refused:
            profile_of(tmp_path)
        assert "\n" not in str(refused.value)


HEADER = Header(
    model="meta-llama/Llama-3.1-8B",
    hardware="h100-sxm",
    device="H100",
    dtype="bfloat16",
    tensor_parallel=1,
    engine="vllm",
    engine_version="1",
    kind="measured",
    source="a test",
    licence="none",
)


def whole() -> list[dict[str, object]]:
    """A measurement file's lines as objects."""
    places = {1: (1.0, 8.0, 64.0, 512.0), 2: (1.0, 4.0, 16.0), 3: (1.0, 2.0)}
    samples = []
    for operator in ("dense", "head"):
        samples += [Sample(operator, (at,), 1e5 + 1e3 * at) for at in places[1]]
    samples += [
        Sample("prefill_attention", (b, b * s, b * s * (s + 1) / 2), 1e5 + b * s * s)
        for b in (1, 4)
        for s in (16, 64, 256, 1024)
    ]
    samples += [
        Sample("decode_attention", (rows, rows * context), 1e5 + rows * context)
        for rows in (1, 4, 16, 64)
        for context in (16, 64, 256, 1024)
    ]
    lines: list[dict[str, object]] = []
    for sample in samples:
        axes = dict(zip(AXES[sample.operator], sample.at, strict=True))
        lines.append({"operator": sample.operator, **axes, "ns": sample.ns})
    return lines


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3) | st.just(10**30),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_measurement_file_ends_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("measurements") / "m.jsonl"
    write_measurements(Measurements(HEADER, (Sample("dense", (1.0,), 1.0),)), path)
    lines = [json.loads(path.read_text().splitlines()[0]), *whole()]
    for _ in range(data.draw(st.integers(1, 3))):
        line = lines[0] if data.draw(st.booleans()) else data.draw(st.sampled_from(lines))
        key = data.draw(st.sampled_from(sorted(line)))
        if data.draw(st.booleans()):
            line[key] = data.draw(ANYTHING)
        elif len(lines) > 3:
            del lines[data.draw(st.integers(1, len(lines) - 2)) :]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    try:
        found = read_measurements(path)
        model = load_model(found.header.model)
        fit_profile(found, host_term(found.header.hardware, found.header.tensor_parallel, model.layers))
    except UserError as error:
        refused = error
    else:
        return
    assert "\n" not in str(refused)
