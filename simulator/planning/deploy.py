"""The command that starts a replica of the answer, and the load test that would prove the answer wrong."""

from __future__ import annotations

from math import ceil
from shlex import quote

from simulator.engine_settings import (
    SglangSettings,
    TensorRtLlmSettings,
    TgiSettings,
    VllmV0Settings,
    VllmV1Settings,
)
from simulator.planning.criteria import Attainment, Criterion
from simulator.scenario import ConstantArrivals, GammaArrivals, LengthSettings, Scenario

GOODPUT = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2el"}
MEASURED = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2el", "itl_ms": "itl"}
REGULAR = 1000.0  # gamma shape that stands for equal gaps


def serve_command(scenario: Scenario) -> str | None:
    """How to start one replica; None for policies that no engine on offer has."""
    engine, tensor = scenario.engine, scenario.parallel.tensor
    if isinstance(engine, (VllmV1Settings, VllmV0Settings)):
        return " ".join(["vllm serve", quote(scenario.model), *_vllm(scenario, engine)])
    if isinstance(engine, SglangSettings):
        return " ".join(
            [
                f"python -m sglang.launch_server --model-path {quote(scenario.model)} --tp-size {tensor}",
                f"--max-running-requests {engine.max_num_seqs}",
                f"--chunked-prefill-size {engine.chunked_prefill_size or -1}",
                f"--schedule-policy {engine.schedule_policy}",
                f"--schedule-conservativeness {engine.schedule_conservativeness:g}",
                *(["--enable-mixed-chunk"] if engine.enable_mixed_chunk else []),
                *([] if engine.prefix_caching else ["--disable-radix-cache"]),
            ]
        )
    if isinstance(engine, TensorRtLlmSettings):
        return (
            f"trtllm-serve {quote(scenario.model)} --tp_size {tensor} "
            f"--max_batch_size {engine.max_num_seqs} --max_num_tokens {engine.max_num_batched_tokens}"
        )
    if isinstance(engine, TgiSettings):
        return (
            f"text-generation-launcher --model-id {quote(scenario.model)} --num-shard {tensor} "
            f"--max-batch-prefill-tokens {engine.max_batch_prefill_tokens} "
            f"--max-batch-size {engine.max_num_seqs}"
        )
    return None


def _vllm(scenario: Scenario, engine: VllmV1Settings | VllmV0Settings) -> list[str]:
    parallel, dtype = scenario.parallel, scenario.dtype
    flags = [f"--tensor-parallel-size {parallel.tensor}"]
    if parallel.pipeline > 1:
        flags.append(f"--pipeline-parallel-size {parallel.pipeline}")
    flags.append(f"--max-num-seqs {engine.max_num_seqs}")
    if engine.max_num_batched_tokens is not None:
        flags.append(f"--max-num-batched-tokens {engine.max_num_batched_tokens}")
    flags.append(f"--gpu-memory-utilization {engine.gpu_memory_utilization:g}")
    flags.append("--quantization fp8" if dtype == "float8" else f"--dtype {dtype}")
    if engine.max_model_len is not None:
        flags.append(f"--max-model-len {engine.max_model_len}")
    if engine.kv_blocks != "auto":
        flags.append(f"--num-gpu-blocks-override {engine.kv_blocks}")
    if not engine.chunked_prefill:
        flags.append("--no-enable-chunked-prefill")
    if isinstance(engine, VllmV1Settings) and not engine.prefix_caching:
        flags.append("--no-enable-prefix-caching")
    return flags


def load_test(
    scenario: Scenario, wanted: tuple[Criterion, ...], rate_per_s: float, replicas: int, requests: int
) -> str:
    """A run of ``vllm bench serve`` against one replica at its share of the load.

    Round-robin makes every replica's gaps n times as regular as the fleet's: its ``--burstiness`` is the
    shape of the gamma distribution, 1 for Poisson arrivals, n times that for one of n replicas.
    """
    parts = replicas if scenario.router == "round-robin" else 1
    flags = [
        f"vllm bench serve --backend vllm --model {quote(scenario.model)}",
        *_data_set(scenario.workload.lengths),
        f"--request-rate {rate_per_s / parts:.4g}",
        f"--burstiness {_burstiness(scenario) * parts:g}",
        f"--num-prompts {requests}",
        "--ignore-eos",
        f"--percentile-metrics {','.join(_measured(wanted))}",
        f"--metric-percentiles {','.join(_percentiles(wanted))}",
    ]
    goodput = [f"{GOODPUT[name]}:{limit:g}" for name, limit in _limits(wanted) if name in GOODPUT]
    return " ".join([*flags, *([f"--goodput {' '.join(goodput)}"] if goodput else [])])


def _burstiness(scenario: Scenario) -> float:
    arrivals = scenario.workload.arrivals
    if isinstance(arrivals, GammaArrivals):
        return float(arrivals.cv**-2)
    return REGULAR if isinstance(arrivals, ConstantArrivals) else 1.0


def _data_set(lengths: LengthSettings) -> list[str]:
    if lengths.fixed is not None:
        return [
            "--dataset-name random",
            f"--random-input-len {lengths.fixed.prompt} --random-output-len {lengths.fixed.output}",
        ]
    if lengths.preset == "sharegpt":
        return ["--dataset-name sharegpt --dataset-path ShareGPT_V3_unfiltered_cleaned_split.json"]
    return ["--dataset-name custom --dataset-path YOUR_PROMPTS.jsonl"]


def _limits(wanted: tuple[Criterion, ...]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for criterion in wanted:
        found += (
            criterion.limits
            if isinstance(criterion, Attainment)
            else [(criterion.metric, criterion.limit_ms)]
        )
    return found


def _measured(wanted: tuple[Criterion, ...]) -> list[str]:
    names = [MEASURED[name] for name, _ in _limits(wanted) if name in MEASURED]
    return list(dict.fromkeys([*names, "ttft"]))


def _percentiles(wanted: tuple[Criterion, ...]) -> list[str]:
    found = [f"{one.percentile:g}" for one in wanted if not isinstance(one, Attainment)]
    return list(dict.fromkeys(["50", *found, "99"]))


def prompts_to_send(requests_per_s: float, service_s: float, warmup: int, least: int) -> int:
    """Prompts enough that the start, which the tool counts, is at most a twentieth, rounded up."""
    wanted = max(20 * warmup, 5 * least, ceil(40 * requests_per_s * service_s))
    return -(-wanted // 1000) * 1000
