"""Prompts that share a prefix share its blocks on the side that computed them, until both are fetched."""

from __future__ import annotations

from simulator.engine.disaggregated import PromptSide
from simulator.engine.kv_cache import KVCache
from simulator.engine.request import Content, Request
from simulator.engine.vllm_v1 import VllmV1

BLOCKS = 12


def run(side: PromptSide, request: Request) -> None:
    side.add(request)
    while (plan := side.plan()) is not None:
        side.commit(plan, [chunk.request for chunk in plan.prefills if chunk.completes])


def test_kept_blocks_are_shared_and_freed_with_their_last_holder() -> None:
    kv = KVCache(BLOCKS, 4, prefix_caching=True)
    side = PromptSide(VllmV1(kv, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=40))
    content = Content((1, 2, 3, 4, 5, 6, 7, 8), 4)
    first, second = (Request(i, 0, 32, 1, content) for i in range(2))
    run(side, first)
    run(side, second)
    assert second.cached_tokens == 28, "all of the prompt but its last block was found"
    assert side.used_blocks == 9, "two prompts of 8 blocks would not fit apart"
    kv.check([first, second])
    side.release(first)
    assert side.used_blocks == 8
    kv.check([second])
    side.release(second)
    assert side.used_blocks == 0
    third = Request(2, 0, 32, 1, content)
    run(side, third)
    assert third.cached_tokens == 28, "what was fetched can still be found"
    kv.check([third])
