"""The public kernel tables become the operators they should, and the shipped profiles follow from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibration.aiconfigurator import GemmTable, import_tables
from calibration.cli import app
from calibration.fit import fit_profile, host_term
from simulator.errors import ProfileError
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.profile import read_profile
from simulator.roofline import Roofline

Shared = Callable[..., Path]
LLAMA_8B = "meta-llama/Llama-3.1-8B"
PROFILES = Path(__file__).parents[2] / "calibration" / "profiles"
H100 = load_hardware("h100-sxm")


def table() -> GemmTable:
    """Latencies that are exactly proportional to n x k, except one shape that is slow."""
    rows = [(n, k, m, n * k * 1e-9) for m in (1, 64) for n in (100, 200, 400) for k in (100, 200, 400)]
    return GemmTable([(n, k, m, 7.0 if (n, k) == (400, 100) else ms) for n, k, m, ms in rows], H100, 2)


def test_a_measured_shape_is_taken_as_it_is() -> None:
    assert table().curve(400, 100) == {1: 7.0, 64: 7.0}


def test_a_shape_in_between_is_interpolated() -> None:
    assert table().curve(150, 300)[64] == pytest.approx(150 * 300 * 1e-9)


def test_a_shape_beyond_holds_the_utilisation_of_the_widest() -> None:
    found = table()
    at_200, at_400 = found.sites[200, 200][1], found.sites[400, 200][1]
    expected = sum(
        ms * found.bound(1, 1600, 200) / found.bound(1, n, 200) for n, ms in ((200, at_200), (400, at_400))
    )
    assert found.curve(1600, 200)[1] == pytest.approx(expected / 2)


def test_dense_layers_are_four_gemms_and_their_norms(shared: Shared) -> None:
    source = shared("data", "kernels", "aiconfigurator")
    model = load_model("meta-llama/Llama-3.1-70B")
    found = import_tables(source, model, H100, "bfloat16", 4)
    assert found.header.engine_version == "0.24.0"
    assert found.header.device == "NVIDIA H100 80GB HBM3"
    by_tokens = {sample.at[0]: sample.ns for sample in found.of("dense")}
    # published latencies of (m=1, n=2560, k=8192), (1, 8192, 2048), (1, 8192, 7168) in ms; n=14336 lies
    # between 12288 and 16384 and is interpolated
    single = 0.017850667238235474 + 0.013882666826248169 + 0.04046666622161865
    gemms = (by_tokens[1] - Roofline(model, H100, "bfloat16", 4).elementwise_ns(1)) / 80 / 1e6
    assert 0.06 < gemms - single < 0.12
    assert len(found.of("all_reduce")) > 10
    attention = {sample.at: sample.ns for sample in found.of("decode_attention")}
    assert attention[1, 131072] == pytest.approx(0.0624 * 80 * 1e6, rel=0.01)


def test_what_the_tables_do_not_hold_is_refused(shared: Shared, tmp_path: Path) -> None:
    source = shared("data", "kernels", "aiconfigurator")
    model = load_model(LLAMA_8B)
    for folder, hardware, dtype, message in (
        (source, "rtx-4090", "bfloat16", "the tables cover h100-sxm"),
        (source, "h100-sxm", "float32", "in bfloat16 and float8, not h100-sxm in float32"),
        (tmp_path, "h100-sxm", "bfloat16", "holds no data/h100_sxm"),
    ):
        with pytest.raises(ProfileError, match=message):
            import_tables(folder, model, load_hardware(hardware), dtype, 1)
    with pytest.raises(ProfileError, match="attention_perf has no rows for 40 heads, 40 KV heads"):
        import_tables(
            source, load_model("meta-llama/Llama-2-13b-hf"), load_hardware("a100-80-sxm"), "bfloat16", 1
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(file.stem for file in PROFILES.glob("*.json")))
def test_a_shipped_profile_follows_from_the_tables(shared: Shared, name: str) -> None:
    shipped = json.loads((PROFILES / f"{name}.json").read_text())
    model = load_model(shipped["model"])
    found = import_tables(
        shared("data", "kernels", "aiconfigurator"),
        model,
        load_hardware(shipped["hardware"]),
        shipped["dtype"],
        shipped["tensor_parallel"],
    )
    host = host_term(shipped["hardware"], shipped["tensor_parallel"], model.layers)
    again = json.loads(json.dumps(fit_profile(found, host, check=False)))
    assert again["host"] == shipped["host"]
    assert again["source"] == shipped["source"]
    for operator, fields in shipped["operators"].items():
        for key, value in fields.items():
            expected = again["operators"][operator][key]
            if operator == "decode_attention" and key == "ns":
                assert all(a == pytest.approx(b, rel=1e-3) for a, b in zip(value, expected, strict=True))
            else:
                assert value == pytest.approx(expected, rel=1e-3)


def test_import_and_fit_from_the_command_line(shared: Shared, tmp_path: Path) -> None:
    source = shared("data", "kernels", "aiconfigurator")
    measured, profile = tmp_path / "m.jsonl", tmp_path / "p.json"
    arguments = ["import", "aiconfigurator", str(source), "--model", LLAMA_8B, "--hardware", "h200-sxm"]
    result = CliRunner().invoke(app, [*arguments, "--output", str(measured)])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(app, ["fit", str(measured), "--output", str(profile)])
    assert result.exit_code == 0, result.output
    assert "decode_attention" in result.output
    assert read_profile(profile).hardware == "h200-sxm"
    assert len(profile.read_text().splitlines()) < 200
