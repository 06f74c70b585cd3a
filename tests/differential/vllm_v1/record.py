"""Runs the real vLLM V1 scheduler on given workloads and writes down what it decides, step by step.

Needs vLLM and nothing of ours: it runs inside the environment that ``make_vllm_env.sh`` creates.

    FOLDER/bin/python record.py WORKLOADS.json DECISIONS.json

No weights are loaded and no model runs: a stand-in yields tokens that nobody else has, and the stop token
when an answer is complete. One step is one iteration of the model: calls of ``schedule`` that schedule
nothing (everybody was preempted for a request that then preempted itself) are counted to the next one.

A step is written as ``[step, rows, preempted, free_blocks, finished]`` where a row is
``[request, computed tokens before the step, tokens in this step]``, in the scheduler's own order.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")

import torch
from vllm import __version__
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

STOP = 1
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
}


def load_model_config(max_model_len: int) -> ModelConfig:
    """A tiny model's description, all that the scheduler's configuration asks for."""
    folder = tempfile.mkdtemp()
    Path(folder, "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    return ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=max_model_len)


class HonestScheduler(Scheduler):
    """The real scheduler, except that a preempted request leaves no cache entry for KV it never computed.

    Under priorities a victim may have been given its tokens earlier in the same step; vLLM 0.32 keeps the
    content hashes of the blocks that those tokens would have filled, so a later lookup can "hit" them.
    Used only for workloads that ask for it by ``forget_uncomputed``.
    """

    def _preempt_request(self, request, *args, **kwargs):
        manager = self.kv_cache_manager.coordinator.single_type_managers[0]
        pool = self.kv_cache_manager.block_pool
        computed_blocks = request.num_computed_tokens // manager.block_size
        for block in manager.req_to_blocks.get(request.request_id, [])[computed_blocks:]:
            pool._maybe_evict_cached_block(block)
        super()._preempt_request(request, *args, **kwargs)


def build_scheduler(workload: dict, model: ModelConfig) -> Scheduler:
    engine, block_size = workload["engine"], workload["block_size"]
    scheduler_class = HonestScheduler if workload["forget_uncomputed"] else Scheduler
    settings = SchedulerConfig.default_factory(
        max_num_seqs=engine["max_num_seqs"],
        max_num_batched_tokens=engine["max_num_batched_tokens"],
        max_model_len=engine["max_model_len"],
        enable_chunked_prefill=engine["chunked_prefill"],
        long_prefill_token_threshold=engine["long_prefill_token_threshold"],
        policy="priority" if engine["priorities"] else "fcfs",
        scheduler_reserve_full_isl=engine["full_isl_gate"],
        watermark=engine["watermark"],
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=block_size, enable_prefix_caching=engine["prefix_caching"])
    config = VllmConfig(model_config=model, scheduler_config=settings, cache_config=cache)
    blocks = workload["blocks"] + 1  # the null block is never given away
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
    )


def prompt_tokens(number: int, request: dict) -> list[int]:
    """An opening shared with the requests that name the same one, then tokens of its own."""
    shared = request["shared"]
    opening = [1_000_000 * (1 + request["opening"]) + i for i in range(shared)]
    return opening + [100_000_000 + 10_000 * number + i for i in range(shared, request["prompt"])]


def make_request(number: int, request: dict, hasher: object) -> Request:
    limits = SamplingParams(max_tokens=request["limit"], stop_token_ids=[STOP])
    return Request(
        f"{number:04d}",
        prompt_tokens(number, request),
        limits,
        None,
        arrival_time=request["step"] + number * 1e-6,  # in reality no two are equal
        priority=request["priority"],
        block_hasher=hasher,
    )


class Run:
    """One workload from the first arrival to the last answer."""

    def __init__(self, workload: dict, scheduler: Scheduler) -> None:
        self.workload = workload
        self.scheduler = scheduler
        hasher = get_request_block_hasher(workload["block_size"], sha256)
        self.hasher = hasher if workload["engine"]["prefix_caching"] else None
        self.waiting = list(enumerate(workload["requests"]))
        self.aborts = {}
        for number, request in self.waiting:
            if request["abort_step"] is not None:
                self.aborts.setdefault(request["abort_step"], []).append(f"{number:04d}")

    def record(self) -> list[list]:
        steps, step = [], 0
        while self.waiting or self.scheduler.has_unfinished_requests():
            if not self.scheduler.has_unfinished_requests():
                step = max(step, self.waiting[0][1]["step"])
            while self.waiting and self.waiting[0][1]["step"] <= step:
                self.scheduler.add_request(make_request(*self.waiting.pop(0), self.hasher))
            for name in self.aborts.get(step, []):
                self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            if self.scheduler.has_unfinished_requests():
                steps.append([step, *self.iterate()])
            step += 1
        return steps

    def iterate(self) -> tuple[list[list[int]], list[int], int, list[int]]:
        """One iteration of the model, with the calls before it that scheduled nothing."""
        preempted = []
        while True:
            running = list(self.scheduler.running)
            output = self.scheduler.schedule()
            evicted = set(output.preempted_req_ids or ())
            preempted += self.in_order_of_eviction(running, evicted)
            free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
            scheduled = output.num_scheduled_tokens
            rows = [[int(name), self.start(name, tokens), tokens] for name, tokens in scheduled.items()]
            finished = self.run_model(output)
            if rows:
                return rows, preempted, free, finished
            if not evicted:
                raise RuntimeError(f"workload {self.workload['name']}: nothing scheduled, nobody preempted")

    def in_order_of_eviction(self, running: list[Request], evicted: set[str]) -> list[int]:
        """First-come-first-served evicts the newest first, priorities the least urgent first."""
        victims = [request for request in running if request.request_id in evicted]
        if self.workload["engine"]["priorities"]:
            victims.sort(key=lambda request: (request.priority, request.arrival_time))
        return [int(request.request_id) for request in reversed(victims)]

    def start(self, name: str, tokens: int) -> int:
        return self.scheduler.requests[name].num_computed_tokens - tokens

    def run_model(self, output: object) -> list[int]:
        """Sample for every request whose known tokens are all computed; who has finished by that."""
        names = list(output.num_scheduled_tokens)
        sampled = [self.sample(self.scheduler.requests[name]) for name in names]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        answers = self.scheduler.update_from_output(output, result)
        return [
            int(answer.request_id)
            for batch in answers.values()
            for answer in batch.outputs
            if answer.finish_reason is not None
        ]

    def sample(self, request: Request) -> list[int]:
        if request.num_computed_tokens < request.num_tokens:
            return []
        number, generated = int(request.request_id), request.num_output_tokens + 1
        expected = self.workload["requests"][number]
        stops_early = generated == expected["output"] < expected["limit"]
        return [STOP if stops_early else 500_000_000 + 10_000 * number + generated]


def main(source: str, target: str) -> None:
    init_none_hash(sha256)
    asked = json.loads(Path(source).read_text(encoding="utf-8"))
    model = load_model_config(asked["max_model_len"])
    decisions = [
        Run(workload, build_scheduler(workload, model)).record() for workload in asked["workloads"]
    ]
    text = json.dumps({"vllm": __version__, "decisions": decisions}, separators=(",", ":"))
    Path(target).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
