"""Every policy with random knobs: what the laws quantify over. A new policy adds one entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from simulator.engine.bucketed import Bucketed
from simulator.engine.buddy import BuddyAllocator
from simulator.engine.dynamic import Dynamic
from simulator.engine.faster_transformer import FasterTransformer
from simulator.engine.kv_cache import KVCache
from simulator.engine.orca import Orca
from simulator.engine.queue_policy import QueuePolicy
from simulator.engine.sarathi import Sarathi
from simulator.engine.scheduler import Scheduler
from simulator.engine.sglang import SCHEDULE_POLICIES, SgLang
from simulator.engine.single import Single
from simulator.engine.static import Static
from simulator.engine.tensorrt_llm import CAPACITY_POLICIES, CHUNKING_RULES, TensorRtLlm
from simulator.engine.tgi import Tgi
from simulator.engine.vllm_0_1 import Vllm01
from simulator.engine.vllm_v0 import VllmV0
from simulator.engine.vllm_v1 import VllmV1

LONGEST = 96  # tokens of the longest request

WATERMARKS = st.sampled_from([0.0, 0.01, 0.1])

Knobs = dict[str, Any]


@dataclass(frozen=True)
class Engine:
    """How to draw a policy's knobs, and how to build a scheduler from blocks, block size and knobs."""

    knobs: st.SearchStrategy[Knobs]
    make: Callable[[int, int, Knobs], Scheduler]


def single(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    return Single(KVCache(blocks, block_size), max_model_len=LONGEST, **knobs)


def static(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    return Static(KVCache(blocks, block_size), max_model_len=LONGEST, **knobs)


@st.composite
def static_knobs(draw: st.DrawFn) -> Knobs:
    return {
        "max_num_seqs": draw(st.integers(1, 6)),
        "global_max_tokens": draw(st.sampled_from([None, LONGEST])),
        "streaming": draw(st.booleans()),
    }


def orca(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    return Orca(BuddyAllocator(blocks, block_size), max_model_len=LONGEST, **knobs)


@st.composite
def orca_knobs(draw: st.DrawFn) -> Knobs:
    return {
        "max_num_seqs": draw(st.integers(1, 6)),
        "reservation": draw(st.sampled_from(["max", "pow2", "oracle"])),
    }


def vllm_v1(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    caching = knobs.pop("prefix_caching")
    return VllmV1(KVCache(blocks, block_size, prefix_caching=caching), max_model_len=LONGEST, **knobs)


@st.composite
def vllm_v1_knobs(draw: st.DrawFn) -> Knobs:
    seats = draw(st.integers(1, 6))
    chunked = draw(st.booleans())
    return {
        "max_num_seqs": seats,
        "max_num_batched_tokens": draw(st.sampled_from([seats, seats + 1, 9, 14, 40]))
        if chunked
        else LONGEST,
        "chunked_prefill": chunked,
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 3, 7])),
        "priorities": draw(st.booleans()),
        "full_isl_gate": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1])),
        "prefix_caching": draw(st.booleans()),
    }


def tensorrt_llm(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    budget = max(knobs.pop("max_num_batched_tokens"), block_size)
    return TensorRtLlm(
        KVCache(blocks, block_size), max_num_batched_tokens=budget, max_model_len=LONGEST, **knobs
    )


@st.composite
def tensorrt_llm_knobs(draw: st.DrawFn) -> Knobs:
    seats = draw(st.integers(1, 6))
    chunking = draw(st.sampled_from(list(CHUNKING_RULES)))
    chunked_budgets = st.sampled_from([seats, seats + 1, 9, 14, 40])
    return {
        "max_num_seqs": seats,
        "max_num_batched_tokens": LONGEST if chunking == "off" else draw(chunked_budgets),
        "capacity_policy": draw(st.sampled_from(CAPACITY_POLICIES)),
        "context_chunking": chunking,
    }


def vllm_0_1(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    return Vllm01(KVCache(blocks, block_size), max_model_len=LONGEST, **knobs)


@st.composite
def vllm_0_1_knobs(draw: st.DrawFn) -> Knobs:
    return {
        "max_num_seqs": draw(st.integers(1, 6)),
        "max_num_batched_tokens": draw(st.sampled_from([60, LONGEST, 3 * LONGEST])),
        "watermark": draw(WATERMARKS),
    }


def vllm_v0(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    return VllmV0(KVCache(blocks, block_size), max_model_len=LONGEST, **knobs)


@st.composite
def vllm_v0_knobs(draw: st.DrawFn) -> Knobs:
    seats = draw(st.integers(1, 6))
    chunked = draw(st.booleans())
    return {
        "max_num_seqs": seats,
        "max_num_batched_tokens": draw(
            st.sampled_from([seats, seats + 1, 9, 14, 40] if chunked else [60, LONGEST, 3 * LONGEST])
        ),
        "chunked_prefill": chunked,
        "watermark": draw(WATERMARKS),
        "swap_blocks": draw(st.sampled_from([None, 0, 7, 40, 300])),
        "padded_budget": draw(st.booleans()),
        "eager": draw(st.booleans()),
    }


def sarathi(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    return Sarathi(KVCache(blocks, block_size), max_model_len=LONGEST, **knobs)


@st.composite
def sarathi_knobs(draw: st.DrawFn) -> Knobs:
    return {
        "max_num_seqs": draw(st.integers(1, 6)),
        "token_budget": draw(st.sampled_from([1, 3, 9, 14, 40])),
        "batching": draw(st.sampled_from(["combined", "combined", "hybrid-only", "chunked-only"])),
        "watermark": draw(WATERMARKS),
    }


def tgi(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    return Tgi(KVCache(blocks, block_size), max_model_len=LONGEST, **knobs)


@st.composite
def tgi_knobs(draw: st.DrawFn) -> Knobs:
    return {
        "max_num_seqs": draw(st.integers(1, 6)),
        "max_batch_prefill_tokens": draw(st.sampled_from([20, 60, 200])),
        "max_batch_total_tokens": draw(st.sampled_from([None, 60, 150])),
        "waiting_served_ratio": draw(st.sampled_from([0.0, 0.3, 1.2])),
        "max_waiting_tokens": draw(st.sampled_from([0, 1, 3, 20])),
    }


def faster_transformer(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    return FasterTransformer(KVCache(blocks, block_size), max_model_len=LONGEST, **knobs)


@st.composite
def faster_transformer_knobs(draw: st.DrawFn) -> Knobs:
    return {
        "max_num_seqs": draw(st.integers(1, 6)),
        "pads_prompts": draw(st.booleans()),
        "shrinks": draw(st.booleans()),
    }


def bucketed(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    return Bucketed(KVCache(blocks, block_size), max_model_len=LONGEST, **knobs)


@st.composite
def bucketed_knobs(draw: st.DrawFn) -> Knobs:
    return {
        "max_num_seqs": draw(st.integers(1, 6)),
        "edges": draw(st.sampled_from([(), (10, 30), (5, 20, 40, 80)])),
        "timeout_ns": draw(st.sampled_from([0, 1, 3001, 60_000])),
        "max_padded_tokens": draw(st.sampled_from([None, 50, 150])),
        "counts_answers": draw(st.booleans()),
        "streaming": draw(st.booleans()),
    }


def dynamic(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    return Dynamic(KVCache(blocks, block_size), max_model_len=LONGEST, **knobs)


@st.composite
def queue_policies(draw: st.DrawFn) -> QueuePolicy:
    return QueuePolicy(
        draw(st.sampled_from([0, 1013, 5000, 40_000])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([0, 0, 2, 5])),
    )


@st.composite
def dynamic_knobs(draw: st.DrawFn) -> Knobs:
    seats, levels = draw(st.integers(1, 6)), draw(st.sampled_from([0, 0, 0, 1, 2]))
    return {
        "max_num_seqs": seats,
        "preferred_batch_sizes": draw(st.sets(st.integers(1, seats), max_size=2).map(sorted)),
        "max_queue_delay_ns": draw(st.sampled_from([0, 1, 2027, 7000, 60_000])),
        "priority_levels": levels,
        "default_priority_level": draw(st.integers(1, max(levels, 1))),
        "queue_policy": draw(st.none() | queue_policies()),
        "queue_policies": draw(st.dictionaries(st.integers(1, 2), queue_policies(), max_size=1)),
        "streaming": draw(st.booleans()),
    }


def sglang(blocks: int, block_size: int, knobs: Knobs) -> Scheduler:
    caching = knobs.pop("prefix_caching")
    chunk = -(-knobs.pop("chunked_prefill_size") // block_size) * block_size
    return SgLang(
        KVCache(blocks, block_size, prefix_caching=caching),
        max_model_len=LONGEST,
        chunked_prefill_size=chunk,
        **knobs,
    )


@st.composite
def sglang_knobs(draw: st.DrawFn) -> Knobs:
    seats = draw(st.integers(1, 6))
    return {
        "max_num_seqs": seats,
        "schedule_policy": draw(st.sampled_from(SCHEDULE_POLICIES)),
        "schedule_conservativeness": draw(st.sampled_from([0.3, 1.0, 1.5])),
        "chunked_prefill_size": draw(st.sampled_from([0, seats + 1, 9, 14, 40])),
        "max_prefill_tokens": draw(st.sampled_from([seats + 1, 20, 200])),
        "enable_mixed_chunk": draw(st.booleans()),
        "prefix_caching": draw(st.booleans()),
    }


ENGINES: dict[str, Engine] = {
    "single": Engine(st.just({}), single),
    "static": Engine(static_knobs(), static),
    "faster-transformer": Engine(faster_transformer_knobs(), faster_transformer),
    "bucketed": Engine(bucketed_knobs(), bucketed),
    "dynamic": Engine(dynamic_knobs(), dynamic),
    "orca": Engine(orca_knobs(), orca),
    "vllm-0.1": Engine(vllm_0_1_knobs(), vllm_0_1),
    "vllm-v0": Engine(vllm_v0_knobs(), vllm_v0),
    "sarathi": Engine(sarathi_knobs(), sarathi),
    "tgi": Engine(tgi_knobs(), tgi),
    "vllm-v1": Engine(vllm_v1_knobs(), vllm_v1),
    "tensorrt-llm": Engine(tensorrt_llm_knobs(), tensorrt_llm),
    "sglang": Engine(sglang_knobs(), sglang),
}
