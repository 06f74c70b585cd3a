"""From engine settings to schedulers: the one place that knows every policy by name."""

from __future__ import annotations

from collections.abc import Callable

from simulator.engine.buddy import BuddyAllocator
from simulator.engine.kv_cache import KVCache
from simulator.engine.orca import Orca
from simulator.engine.scheduler import Scheduler
from simulator.engine.single import Single
from simulator.engine.static import Static
from simulator.engine.vllm_v1 import VllmV1
from simulator.scenario import Engine, OrcaSettings, SingleSettings, StaticSettings, VllmV1Settings

POLICIES = {
    "single": "one request at a time, from its first to its last token",
    "static": "padded batches that run until their last row has stopped (Hugging Face pipeline)",
    "orca": "iteration-level batching with reserved contiguous KV memory (Orca, OSDI 2022)",
    "vllm-v1": "continuous batching, chunked prefill, paged KV, prefix caching, preemption (vLLM V1)",
}


def make_scheduler(
    engine: Engine, kv_blocks: int, max_model_len: int, global_max_tokens: Callable[[], int]
) -> Scheduler:
    """A scheduler for one replica.

    ``global_max_tokens`` finds the longest prompt and output limit of the whole workload, which only the
    static policy's global-max rule asks for.
    """
    if isinstance(engine, OrcaSettings):
        return Orca(
            BuddyAllocator(kv_blocks, engine.block_size),
            max_num_seqs=engine.max_num_seqs,
            max_model_len=max_model_len,
            reservation=engine.reservation,
        )
    if isinstance(engine, SingleSettings):
        return Single(KVCache(kv_blocks, engine.block_size), max_model_len=max_model_len)
    if isinstance(engine, StaticSettings):
        return Static(
            KVCache(kv_blocks, engine.block_size),
            max_num_seqs=engine.max_num_seqs,
            max_model_len=max_model_len,
            global_max_tokens=global_max_tokens() if engine.stop_rule == "global-max" else None,
            streaming=engine.streaming,
        )
    return _vllm_v1(engine, kv_blocks, max_model_len)


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
