"""Accelerators: figures that can be checked against each other and the data sheets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from simulator.errors import ModelError
from simulator.hardware import describe_hardware, hardware_names, load_hardware

PROMISED = [
    "a100-40-sxm",
    "a100-80-sxm",
    "h100-sxm",
    "h200-sxm",
    "l40s",
    "a10g",
    "rtx-4090",
    "rtx-pro-6000",
    "cpu",
]
FIGURES = (
    "memory_bytes",
    "bandwidth_bytes_per_s",
    "flops_per_s",
    "interconnect_bytes_per_s",
    "pcie_bytes_per_s",
)
# Capacity printed on the box: 'GB', but powers of two are meant.
BOX_GB = {
    "a100-40-sxm": 40,
    "a100-80-sxm": 80,
    "h100-sxm": 80,
    "h200-sxm": 141,
    "l40s": 48,
    "a10g": 24,
    "rtx-4090": 24,
    "rtx-pro-6000": 96,
}


def test_the_promised_names_are_there() -> None:
    assert hardware_names() == tuple(PROMISED)
    assert [row["name"] for row in describe_hardware()] == PROMISED


@pytest.mark.parametrize("name", PROMISED)
def test_every_figure_has_a_source_and_a_plausible_size(name: str) -> None:
    hardware = load_hardware(name)
    assert sorted(hardware.sources) == sorted(FIGURES)
    assert all(hardware.sources.values())
    rates = hardware.flops_per_s
    assert rates["bfloat16"] > rates["float32"]
    assert rates.get("float8", 2 * rates["bfloat16"]) == pytest.approx(
        2 * rates["bfloat16"], rel=0.02
    )  # dense
    assert hardware.interconnect_bytes_per_s < hardware.bandwidth_bytes_per_s
    assert hardware.pcie_bytes_per_s < hardware.bandwidth_bytes_per_s
    if "no NVLink" in hardware.sources["interconnect_bytes_per_s"]:
        assert hardware.interconnect_bytes_per_s == hardware.pcie_bytes_per_s


@pytest.mark.parametrize(("name", "box_gb"), BOX_GB.items())
def test_an_engine_sees_a_few_per_cent_less_than_the_gibibytes_on_the_box(name: str, box_gb: int) -> None:
    assert 0.91 < load_hardware(name).memory_bytes / (box_gb << 30) < 1


def test_dense_rates_agree_with_another_projects_data_sheet_figures(shared: Callable[..., Path]) -> None:
    """aiconfigurator's system files hold the same rates; capacities there are not what CUDA reports."""
    systems = {"a100-80-sxm": "a100_sxm", "h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm", "l40s": "l40s"}
    for name, file in systems.items():
        hardware = load_hardware(name)
        path = shared("data", "kernels", "aiconfigurator", "systems", f"{file}.yaml")
        other = yaml.safe_load(path.read_text())
        assert hardware.bandwidth_bytes_per_s == other["gpu"]["mem_bw"]
        assert hardware.flops_per_s["bfloat16"] == pytest.approx(
            other["gpu"]["bfloat16_tc_flops"], rel=0.001
        )
        assert hardware.interconnect_bytes_per_s == other["node"]["intra_node_bw"]
        assert 0.92 < hardware.memory_bytes / other["gpu"]["mem_capacity"] < 1


def test_the_rtx_4090_has_the_memory_that_a_real_engine_recorded(shared: Callable[..., Path]) -> None:
    meta = shared("data", "engines", "vllm_0.19_sharegpt", "RTX4090_Llama-3.1-8B", "meta.json")
    recorded = json.loads(meta.read_text())["hardware"]["device_total_memory_bytes"]
    assert load_hardware("rtx-4090").memory_bytes == recorded


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ModelError, match="'h100' is not known; did you mean 'h100-sxm'"):
        load_hardware("h100")
    with pytest.raises(ModelError, match="servetwin list hardware"):
        load_hardware("tpu-v5e")


def test_a_dtype_without_arithmetic_is_refused() -> None:
    assert (
        load_hardware("h100-sxm").peak_flops_per_s("fp8") == load_hardware("h100-sxm").flops_per_s["float8"]
    )
    with pytest.raises(
        ModelError, match="a100-80-sxm has no float8 arithmetic; it has float32, float16, bfloat16"
    ):
        load_hardware("a100-80-sxm").peak_flops_per_s("float8")


def test_the_cpu_says_that_its_figures_were_measured() -> None:
    cpu = load_hardware("cpu")
    assert any("not a peak" in note for note in cpu.notes)
    assert "measured" in cpu.sources["flops_per_s"]
