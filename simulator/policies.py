"""From engine settings to schedulers: the one place that knows every policy by name."""

from __future__ import annotations

from collections.abc import Callable

from simulator.engine.bucketed import Bucketed
from simulator.engine.buddy import BuddyAllocator
from simulator.engine.dynamic import Dynamic
from simulator.engine.faster_transformer import FasterTransformer
from simulator.engine.kv_cache import KVCache
from simulator.engine.orca import Orca
from simulator.engine.queue_policy import NS_PER_MS, QueuePolicy
from simulator.engine.sarathi import Sarathi
from simulator.engine.scheduler import Scheduler
from simulator.engine.sglang import SgLang
from simulator.engine.single import Single
from simulator.engine.static import Static
from simulator.engine.tensorrt_llm import TensorRtLlm
from simulator.engine.tgi import Tgi
from simulator.engine.vllm_0_1 import Vllm01
from simulator.engine.vllm_v0 import VllmV0
from simulator.engine.vllm_v1 import VllmV1
from simulator.engine_settings import (
    Engine,
    OrcaSettings,
    SarathiSettings,
    SglangSettings,
    SingleSettings,
    StaticSettings,
    TensorRtLlmSettings,
    TgiSettings,
    Vllm01Settings,
    VllmV0Settings,
    VllmV1Settings,
)
from simulator.padded_settings import (
    BucketedSettings,
    DynamicSettings,
    FasterTransformerSettings,
    QueuePolicySettings,
)

BYTES_PER_GIB = 2**30

POLICIES = {
    "single": "one request at a time, from its first to its last token",
    "static": "padded batches that run until their last row has stopped (Hugging Face pipeline)",
    "faster-transformer": "batches of whatever waits, memory for the longest sequence (FasterTransformer)",
    "bucketed": "padded batches of requests of similar length, sent when full or after a timeout",
    "dynamic": "padded batches of preferred sizes, formed within a queue delay (Triton's dynamic batcher)",
    "orca": "iteration-level batching with reserved contiguous KV memory (Orca, OSDI 2022)",
    "tgi": "token quota reserved at admission, prompts interrupt the decodes (text-generation-inference)",
    "vllm-0.1": "whole prompts beside decodes, paged KV, preemption (vLLM paper and release 0.1.0)",
    "vllm-v0": "prompts before decodes, or chunked beside them; recompute or swap (vLLM 0.2 to 0.6)",
    "sarathi": "prompt chunks in what decodes leave of a token budget (Sarathi-Serve, OSDI 2024)",
    "vllm-v1": "continuous batching, chunked prefill, paged KV, prefix caching, preemption (vLLM V1)",
    "tensorrt-llm": "in-flight batching: a capacity policy, then a token budget (TensorRT-LLM)",
    "sglang": "prefill first, admission by expected output, retraction, prefix order (SGLang)",
}


def pads_prompts(engine: Engine) -> bool:
    """Whether a policy runs batches whose prompts are padded to one length."""
    if isinstance(engine, FasterTransformerSettings):
        return engine.prompt_rule == "pad-to-max"
    return isinstance(engine, StaticSettings | BucketedSettings | DynamicSettings)


def make_scheduler(
    engine: Engine,
    kv_blocks: int,
    max_model_len: int,
    global_max_tokens: Callable[[], int],
    kv_block_bytes: int,
) -> Scheduler:
    """A scheduler for one replica.

    ``global_max_tokens`` finds the longest prompt and output limit of the whole workload, which only the
    static policy's global-max rule asks for. ``kv_block_bytes``: one KV block on one GPU.
    """
    if isinstance(engine, StaticSettings):
        return _static(engine, kv_blocks, max_model_len, global_max_tokens)
    if isinstance(engine, VllmV0Settings):
        return _vllm_v0(engine, kv_blocks, max_model_len, kv_block_bytes)
    return MAKERS[type(engine)](engine, kv_blocks, max_model_len)


def _single(engine: SingleSettings, kv_blocks: int, max_model_len: int) -> Single:
    return Single(KVCache(kv_blocks, engine.block_size), max_model_len=max_model_len)


def _static(
    engine: StaticSettings, kv_blocks: int, max_model_len: int, global_max_tokens: Callable[[], int]
) -> Static:
    return Static(
        KVCache(kv_blocks, engine.block_size),
        max_num_seqs=engine.max_num_seqs,
        max_model_len=max_model_len,
        global_max_tokens=global_max_tokens() if engine.stop_rule == "global-max" else None,
        streaming=engine.streaming,
    )


def _faster_transformer(
    engine: FasterTransformerSettings, kv_blocks: int, max_model_len: int
) -> FasterTransformer:
    return FasterTransformer(
        KVCache(kv_blocks, engine.block_size),
        max_num_seqs=engine.max_num_seqs,
        max_model_len=max_model_len,
        pads_prompts=engine.prompt_rule == "pad-to-max",
        shrinks=engine.batch_shrinks,
    )


def _bucketed(engine: BucketedSettings, kv_blocks: int, max_model_len: int) -> Bucketed:
    return Bucketed(
        KVCache(kv_blocks, engine.block_size),
        max_num_seqs=engine.max_num_seqs,
        max_model_len=max_model_len,
        edges=engine.bucket_edges,
        timeout_ns=round(engine.timeout_ms * NS_PER_MS),
        max_padded_tokens=engine.max_padded_tokens,
        counts_answers=engine.bucket_by == "prompt+limit",
        streaming=engine.streaming,
    )


def _dynamic(engine: DynamicSettings, kv_blocks: int, max_model_len: int) -> Dynamic:
    return Dynamic(
        KVCache(kv_blocks, engine.block_size),
        max_num_seqs=engine.max_num_seqs,
        max_model_len=max_model_len,
        preferred_batch_sizes=engine.preferred_batch_sizes,
        max_queue_delay_ns=round(engine.max_queue_delay_ms * NS_PER_MS),
        priority_levels=engine.priority_levels,
        default_priority_level=engine.default_priority_level,
        queue_policy=_queue_policy(engine.default_queue_policy),
        queue_policies={
            int(level): _queue_policy(limits) for level, limits in engine.priority_queue_policy.items()
        },
        streaming=engine.streaming,
    )


def _queue_policy(limits: QueuePolicySettings) -> QueuePolicy:
    return QueuePolicy(
        timeout_ns=round(limits.default_timeout_ms * NS_PER_MS),
        delays=limits.timeout_action == "delay",
        allow_timeout_override=limits.allow_timeout_override,
        max_queue_size=limits.max_queue_size,
    )


def _orca(engine: OrcaSettings, kv_blocks: int, max_model_len: int) -> Orca:
    return Orca(
        BuddyAllocator(kv_blocks, engine.block_size),
        max_num_seqs=engine.max_num_seqs,
        max_model_len=max_model_len,
        reservation=engine.reservation,
    )


def _vllm_v1(engine: VllmV1Settings, kv_blocks: int, max_model_len: int) -> VllmV1:
    return VllmV1(
        KVCache(kv_blocks, engine.block_size, prefix_caching=engine.prefix_caching),
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=max_model_len,
        chunked_prefill=engine.chunked_prefill,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        priorities=engine.scheduling == "priority",
        full_isl_gate=engine.full_isl_gate,
        watermark=engine.watermark,
    )


def _vllm_0_1(engine: Vllm01Settings, kv_blocks: int, max_model_len: int) -> Vllm01:
    return Vllm01(
        KVCache(kv_blocks, engine.block_size),
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=max_model_len,
        watermark=engine.watermark,
    )


def _vllm_v0(engine: VllmV0Settings, kv_blocks: int, max_model_len: int, kv_block_bytes: int) -> VllmV0:
    swap_blocks = int(engine.swap_space_gib * BYTES_PER_GIB) // kv_block_bytes
    return VllmV0(
        KVCache(kv_blocks, engine.block_size),
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.batched_tokens(max_model_len),
        max_model_len=max_model_len,
        chunked_prefill=engine.chunked_prefill,
        watermark=engine.watermark,
        swap_blocks=swap_blocks if engine.preemption_mode == "swap" else None,
        padded_budget=engine.padded_budget,
        eager=engine.block_manager == "v1",
    )


def _sarathi(engine: SarathiSettings, kv_blocks: int, max_model_len: int) -> Sarathi:
    return Sarathi(
        KVCache(kv_blocks, engine.block_size),
        max_num_seqs=engine.max_num_seqs,
        token_budget=engine.token_budget,
        max_model_len=max_model_len,
        batching=engine.batching,
        watermark=engine.watermark,
    )


def _tgi(engine: TgiSettings, kv_blocks: int, max_model_len: int) -> Tgi:
    return Tgi(
        KVCache(kv_blocks, engine.block_size),
        max_num_seqs=engine.max_num_seqs,
        max_model_len=max_model_len,
        max_batch_prefill_tokens=engine.max_batch_prefill_tokens,
        max_batch_total_tokens=engine.max_batch_total_tokens,
        waiting_served_ratio=engine.waiting_served_ratio,
        max_waiting_tokens=engine.max_waiting_tokens,
    )


def _tensorrt_llm(engine: TensorRtLlmSettings, kv_blocks: int, max_model_len: int) -> TensorRtLlm:
    return TensorRtLlm(
        KVCache(kv_blocks, engine.block_size),
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=max_model_len,
        capacity_policy=engine.capacity_policy,
        context_chunking=engine.context_chunking,
    )


def _sglang(engine: SglangSettings, kv_blocks: int, max_model_len: int) -> SgLang:
    return SgLang(
        KVCache(kv_blocks, engine.block_size, prefix_caching=engine.prefix_caching),
        max_num_seqs=engine.max_num_seqs,
        max_model_len=max_model_len,
        schedule_policy=engine.schedule_policy,
        schedule_conservativeness=engine.schedule_conservativeness,
        chunked_prefill_size=engine.chunked_prefill_size,
        max_prefill_tokens=engine.max_prefill_tokens,
        enable_mixed_chunk=engine.enable_mixed_chunk,
    )


MAKERS: dict[type, Callable[..., Scheduler]] = {
    SingleSettings: _single,
    FasterTransformerSettings: _faster_transformer,
    BucketedSettings: _bucketed,
    DynamicSettings: _dynamic,
    OrcaSettings: _orca,
    Vllm01Settings: _vllm_0_1,
    SarathiSettings: _sarathi,
    TgiSettings: _tgi,
    VllmV1Settings: _vllm_v1,
    TensorRtLlmSettings: _tensorrt_llm,
    SglangSettings: _sglang,
}
