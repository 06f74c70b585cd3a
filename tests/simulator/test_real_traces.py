"""Recorded traffic from start to end: real traces on calibrated GPUs, published figures, real lengths."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulator.metrics import littles_law
from simulator.scenario import Scenario
from simulator.simulation import Simulation, simulate

AZURE = ("data", "traces", "azure-llm-2023", "AzureLLMInferenceTrace_conv.csv")
MOONCAKE = ("data", "traces", "mooncake-fast25", "conversation_trace.jsonl")
SHAREGPT = ("data", "traces", "nanoflow-lengths", "sharegpt.csv")

Shared = Callable[..., Path]


def replay(file: Path, hardware: str, engine: dict[str, object], **arrivals: object) -> Simulation:
    scenario = {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": hardware,
        "engine": engine,
        "workload": {
            "arrivals": {"process": "trace", "file": str(file), **arrivals},
            "lengths": {"trace": True},
        },
    }
    return simulate(Scenario.model_validate(scenario))


@pytest.mark.parametrize("hardware", ["h100-sxm", "a100-80-sxm"])
def test_the_whole_azure_conversation_trace_is_answered(shared: Shared, hardware: str) -> None:
    done = replay(shared(*AZURE), hardware, {"policy": "vllm-v1"})
    assert done.summary["requests"]["offered"] == done.summary["requests"]["completed"] == 19_366
    assert done.summary["profile"]["kind"] == "imported"
    law = littles_law(done.tables)
    assert law.number_in_system == law.rate_times_sojourn


@pytest.mark.parametrize("block_size", [512, 128])
def test_cached_tokens_of_the_mooncake_trace_are_the_ideal_reuse(shared: Shared, block_size: int) -> None:
    """With a cache that forgets nothing and requests far apart, hits are what counting hash ids gives.

    One token of a prompt is always computed, and only whole KV blocks are shared: both are in the count.
    """
    file = shared(*MOONCAKE)
    seen: set[int] = set()
    expected, ideal_blocks, blocks = [], 0, 0
    for line in file.read_text().splitlines():
        row = json.loads(line)
        known = 0
        while known < len(row["hash_ids"]) and row["hash_ids"][known] in seen:
            known += 1
        seen.update(row["hash_ids"])
        ideal_blocks, blocks = ideal_blocks + known, blocks + len(row["hash_ids"])
        computed_last = (row["input_length"] - 1) // block_size * block_size
        expected.append(min(known * 512, computed_last))
    assert (ideal_blocks, blocks) == (105_710, 288_500)  # 36.6 %, spec and FAST'25 trace
    engine = {"policy": "vllm-v1", "block_size": block_size, "kv_blocks": 300_000 * 512 // block_size}
    done = replay(file, "h100-sxm", engine, rate_scale=0.01, spread_ticks=True)
    assert done.tables.requests["cached_tokens"].tolist() == expected
    assert sum(expected) / 512 == pytest.approx(ideal_blocks, rel=0.005)


@pytest.mark.parametrize(
    ("reservation", "lowest", "highest", "published"),
    [("max", 6.9, 7.0, 7.00), ("pow2", 9.0, 11.5, 9.81), ("oracle", 12.5, 16.5, 13.62)],
)
def test_orca_variants_batch_as_many_requests_as_the_vllm_paper_counted(
    shared: Shared, tmp_path: Path, reservation: str, lowest: float, highest: float, published: float
) -> None:
    """vLLM paper, Fig. 13a: OPT-13B on an A100-40 with 15.7K slots, ShareGPT at 2 requests/s."""
    with shared(*SHAREGPT).open() as rows:
        lengths = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(rows)]
    kept = [f"{p},{o}" for p, o in lengths if p >= 4 and o >= 4 and p <= 1024 and p + o <= 2048]
    file = tmp_path / "lengths.csv"
    file.write_text("\n".join(["ContextTokens,GeneratedTokens", *kept]))
    scenario = {
        "model": "facebook/opt-13b",
        "hardware": "a100-40-sxm",
        "dtype": "float16",
        "engine": {"policy": "orca", "reservation": reservation, "kv_blocks": 15_700 // 16},
        "workload": {
            "arrivals": {"process": "poisson", "rate_per_s": 2},
            "lengths": {"empirical": str(file)},
            "requests": 3000,
        },
    }
    iterations = simulate(Scenario.model_validate(scenario)).tables.iterations
    time_ns = iterations["end_ns"] - iterations["start_ns"]
    batched = np.average(iterations["decodes"] + iterations["prefills"], weights=time_ns)
    assert lowest <= batched <= highest, f"{batched:.2f}, published {published}"
