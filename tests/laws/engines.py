"""Every policy with random knobs: what the laws quantify over. A new policy adds one entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from simulator.engine.buddy import BuddyAllocator
from simulator.engine.kv_cache import KVCache
from simulator.engine.orca import Orca
from simulator.engine.scheduler import Scheduler
from simulator.engine.single import Single
from simulator.engine.static import Static
from simulator.engine.vllm_v1 import VllmV1

LONGEST = 96  # tokens of the longest request

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


ENGINES: dict[str, Engine] = {
    "single": Engine(st.just({}), single),
    "static": Engine(static_knobs(), static),
    "orca": Engine(orca_knobs(), orca),
    "vllm-v1": Engine(vllm_v1_knobs(), vllm_v1),
}
