"""MIG slices against NVIDIA's tables, and what cutting a GPU does to serving."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.errors import ModelError, ScenarioError
from simulator.hardware import load_hardware
from simulator.memory import plan_memory
from simulator.mig import GIGABYTES, slices
from simulator.models import load_model
from simulator.scenario_file import load_scenario
from simulator.simulation import simulate

SCENARIOS = Path(__file__).parents[2] / "scenarios"
# NVIDIA MIG user guide, supported MIG profiles: name, SMs in sevenths, memory in eighths, instances.
H100 = {
    "1g.10gb": (1, 1, 7),
    "1g.20gb": (1, 2, 4),
    "2g.20gb": (2, 2, 3),
    "3g.40gb": (3, 4, 2),
    "4g.40gb": (4, 4, 1),
    "7g.80gb": (7, 8, 1),
}
H200_NAMES = ["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]


def test_slices_are_those_of_nvidias_tables() -> None:
    assert {name: tuple(share) for name, share in slices("h100-sxm").items()} == H100
    assert list(slices("h200-sxm")) == H200_NAMES
    assert next(iter(slices("a100-40-sxm"))) == "1g.5gb"


@pytest.mark.parametrize("name", [f"{gpu}/{part}" for gpu in GIGABYTES for part in slices(gpu)])
def test_the_slices_of_a_gpu_never_hold_more_than_the_gpu(name: str) -> None:
    whole, part = load_hardware(name.partition("/")[0]), load_hardware(name)
    count = part.instances_per_gpu
    assert count * part.memory_bytes <= whole.memory_bytes
    assert count * part.bandwidth_bytes_per_s <= whole.bandwidth_bytes_per_s
    assert count * part.flops_per_s["bfloat16"] <= whole.flops_per_s["bfloat16"] * (1 + 1e-12)
    assert part.interconnect_bytes_per_s == 0


@pytest.mark.parametrize(
    ("name", "reported"), [("1g.10gb", 10.2e9), ("2g.20gb", 20.9e9), ("3g.40gb", 42.4e9)]
)
def test_memory_of_a_slice_is_near_what_cuda_reports(name: str, reported: float) -> None:
    """A100-80 slices, global memory by device query: NJIT ARCS documentation, MIG profile comparison."""
    assert load_hardware(f"a100-80-sxm/{name}").memory_bytes == pytest.approx(reported, rel=0.045)


def test_a_wrong_slice_is_named_with_what_there_is() -> None:
    with pytest.raises(ModelError, match=r"has no MIG slice '1g\.11gb'; it has 1g\.10gb, 1g\.20gb"):
        load_hardware("h100-sxm/1g.11gb")
    with pytest.raises(ModelError, match="l40s cannot be cut into MIG slices"):
        load_hardware("l40s/1g.5gb")


def test_a_model_of_7b_does_not_fit_the_smallest_slice() -> None:
    """Policy notes 1.17: 13.5 GB of weights against 10 GB."""
    with pytest.raises(ScenarioError, match=r"does not fit on h100-sxm/1g\.10gb"):
        plan_memory(load_model("meta-llama/Llama-2-7b-hf"), load_hardware("h100-sxm/1g.10gb"))


def test_a_slice_shares_no_model_with_its_neighbours() -> None:
    with pytest.raises(ScenarioError, match=r"parallel\.tensor must be 1 on h100-sxm/1g\.10gb"):
        load_scenario(SCENARIOS / "mig-seven-slices.yaml", ["parallel.tensor=2"])


def test_one_big_batch_outruns_seven_slices_that_each_read_the_weights() -> None:
    """Direction of policy notes 1.17: less throughput and less KV in all, with the weights seven times."""
    runs = [
        simulate(
            load_scenario(SCENARIOS / f"{name}.yaml", ["workload.requests=800"]), folder=SCENARIOS
        ).summary
        for name in ("mig-one-gpu", "mig-seven-slices")
    ]
    whole, cut = runs
    assert whole["gpus"] == cut["gpus"] == 1
    assert cut["throughput"]["output_tokens_per_s"] < 0.75 * whole["throughput"]["output_tokens_per_s"]
    assert cut["tpot_ms"]["p50"] > 1.5 * whole["tpot_ms"]["p50"]
    weights = load_model(str(SCENARIOS / "models/llama-3.2-1b.json")).weights_bytes("bfloat16")
    lost_blocks = whole["kv"]["blocks"] - 7 * cut["kv"]["blocks"]
    assert lost_blocks * 16 * 32_768 > 6 * weights, "six further copies of the weights at least"
