"""What a scenario may hold, apart from how it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from simulator.engine_settings import (
    OrcaSettings,
    SglangSettings,
    SingleSettings,
    StaticSettings,
    TensorRtLlmSettings,
    VllmV1Settings,
)
from simulator.padded_settings import BucketedSettings, DynamicSettings, FasterTransformerSettings
from simulator.scenario import LengthSettings, Scenario, WorkloadSettings

WORKLOAD = {
    "arrivals": {"process": "poisson", "rate_per_s": 8},
    "lengths": {"preset": "sharegpt"},
    "requests": 1000,
}


def scenario(**settings: Any) -> Scenario:
    return Scenario.model_validate({"model": "m", "hardware": "h", "workload": WORKLOAD, **settings})


def test_model_hardware_and_workload_are_a_complete_scenario() -> None:
    complete = scenario()
    assert complete.engine == VllmV1Settings(max_num_seqs=256, max_num_batched_tokens=2048)
    assert (complete.profile, complete.dtype, complete.replicas, complete.router, complete.seed) == (
        "auto",
        "bfloat16",
        1,
        "round-robin",
        0,
    )
    assert (complete.parallel.tensor, complete.parallel.pipeline, complete.slo) == (1, 1, None)


def test_engine_settings_without_a_policy_are_those_of_the_default_one() -> None:
    engine = scenario(engine={"max_num_seqs": 64}).engine
    assert engine == VllmV1Settings(max_num_seqs=64)


@pytest.mark.parametrize(
    ("policy", "kind", "seats"),
    [
        ("single", SingleSettings, 1),
        ("static", StaticSettings, 8),
        ("faster-transformer", FasterTransformerSettings, 8),
        ("bucketed", BucketedSettings, 8),
        ("dynamic", DynamicSettings, 8),
        ("orca", OrcaSettings, 256),
        ("vllm-v1", VllmV1Settings, 256),
        ("tensorrt-llm", TensorRtLlmSettings, 256),
    ],
)
def test_each_policy_has_its_own_settings(policy: str, kind: type, seats: int) -> None:
    engine = scenario(engine={"policy": policy}).engine
    assert type(engine) is kind
    assert engine.policy == policy
    assert engine.max_num_seqs == seats
    assert (engine.block_size, engine.gpu_memory_utilization, engine.kv_blocks) == (16, 0.9, "auto")


def test_sglangs_pages_hold_one_token_by_default() -> None:
    engine = scenario(engine={"policy": "sglang"}).engine
    assert isinstance(engine, SglangSettings)
    assert (engine.block_size, engine.max_num_batched_tokens) == (1, 8192)
    whole = scenario(engine={"policy": "sglang", "chunked_prefill_size": 0}).engine
    assert isinstance(whole, SglangSettings)
    assert whole.max_num_batched_tokens == whole.max_prefill_tokens == 16384


def test_scenarios_are_values() -> None:
    assert scenario(seed=3) == scenario(seed=3)
    with pytest.raises(ValidationError):
        scenario().seed = 4  # type: ignore[misc]


def test_one_length_source_is_named() -> None:
    assert LengthSettings(preset="arxiv").source == "preset"
    assert LengthSettings(trace=True).source == "trace"
    assert LengthSettings(empirical="lengths.csv", output_limit=7).source == "empirical"


def test_cutting_outputs_lowers_the_limit_that_must_be_declared() -> None:
    lengths = {"uniform": {"prompt": [1, 9], "output": [1, 100]}, "output_limit": 50}
    with pytest.raises(ValidationError, match="output_limit must be >= the longest output, 100, not 50"):
        LengthSettings.model_validate(lengths)
    assert LengthSettings.model_validate({**lengths, "max_output_tokens": 50}).output_limit == 50


def test_a_recorded_trace_ends_by_itself_and_may_lend_its_times_to_other_lengths() -> None:
    trace = {"process": "trace", "file": "azure.csv"}
    replayed = WorkloadSettings.model_validate({"arrivals": trace, "lengths": {"trace": True}})
    assert replayed.requests is None
    timed = WorkloadSettings.model_validate({"arrivals": trace, "lengths": {"preset": "arxiv"}})
    assert timed.lengths.preset == "arxiv"


def test_whole_numbers_may_be_written_as_floats_but_not_as_truths_or_text() -> None:
    assert scenario(replicas=2.0).replicas == 2
    for wrong in (True, "2", 2.5, 1e300, float("nan"), float("inf")):
        with pytest.raises(ValidationError):
            scenario(replicas=wrong)


def test_prompts_without_chunks_may_leave_the_longest_sequence_to_the_model() -> None:
    engine = {"chunked_prefill": False, "max_num_batched_tokens": 512}
    assert scenario(engine=engine).engine.max_model_len is None
    with pytest.raises(ValidationError, match=r"must be >= max_model_len \(1024\) while chunked_prefill"):
        scenario(engine={**engine, "max_model_len": 1024})


def schema_properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for owner, node in [("Scenario", schema), *schema["$defs"].items()]:
        for key, value in node["properties"].items():
            yield f"{owner}.{key}", value


def test_every_key_says_what_it_means() -> None:
    silent = [
        name
        for name, node in schema_properties(Scenario.model_json_schema())
        if not node.get("description")
    ]
    assert silent == []


def test_the_schema_asks_for_the_key_that_tells_alternatives_apart() -> None:
    definitions = Scenario.model_json_schema()["$defs"]
    assert definitions["PoissonArrivals"]["required"] == ["process", "rate_per_s"]
    assert definitions["StaticSettings"]["required"] == ["policy"]
    assert "required" not in definitions["VllmV1Settings"]  # the default policy need not be named
    assert all(node["additionalProperties"] is False for node in definitions.values())


def test_the_schema_holds_the_bounds_of_numbers() -> None:
    definitions = Scenario.model_json_schema()["$defs"]
    assert definitions["VllmV1Settings"]["properties"]["max_num_seqs"]["minimum"] == 1
    assert definitions["VllmV1Settings"]["properties"]["kv_blocks"]["anyOf"][1]["minimum"] == 1
    assert definitions["PoissonArrivals"]["properties"]["rate_per_s"]["exclusiveMinimum"] == 0
