"""Tiny real decoders of every family, and the plainest way to serve them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from backend.attention import Kernels, choose
from backend.executor import TorchExecutor
from backend.models import LiveModel
from backend.paged_kv import PagedKV
from backend.prompts import Prompt
from backend.serve.seam import content_of_ids
from simulator.engine.request import ONE_SEQUENCE, Decoding, Request
from simulator.engine.scheduler import Patient, Scheduler
from simulator.errors import RequestRefused

VOCABULARY = 256
POSITIONS = 256
SHAPE = {"vocab_size": VOCABULARY, "initializer_range": 0.2}
LLAMA = {
    **SHAPE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen2": {key: value for key, value in LLAMA.items() if key != "head_dim"},
    "qwen3": LLAMA,
    "mistral": {**LLAMA, "sliding_window": 20},
    "gemma3_text": {
        **LLAMA,
        "sliding_window": 12,
        "query_pre_attn_scalar": 16,
        "sliding_window_pattern": 2,
    },
    "gpt2": {**SHAPE, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS},
    "opt": {
        "vocab_size": VOCABULARY,
        "init_std": 0.2,
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 96,
        "max_position_embeddings": POSITIONS,
    },
    "qwen3_moe": {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
}
FAST = ("llama", "qwen2", "qwen3", "mistral")


def save_model(family: str, folder: Path) -> Path:
    """A folder with config.json and safetensors of a seeded random model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        module = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **FAMILIES[family]))
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.add_(torch.linspace(-0.3, 0.3, weight.numel()).view_as(weight))
    module.save_pretrained(folder)
    return folder


class Oracle:
    """The same model in transformers' own hands, one request at a time."""

    def __init__(self, folder: Path, attention: str = "eager") -> None:
        from transformers import AutoModelForCausalLM

        self.module = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention
        ).eval()
        self._answers: dict[tuple[int, ...], list[int]] = {}

    def answer(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """Greedy continuation; known ones are not generated again."""
        known = self._answers.get(tuple(prompt), [])
        if len(known) < tokens:
            found = self.module.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            self._answers[tuple(prompt)] = known = found[0, len(prompt) :].tolist()
        return known[:tokens]


@dataclass
class Served:
    """What a run left behind."""

    answers: dict[int, list[int]] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)
    preemptions: int = 0
    cached_tokens: int = 0
    iterations: int = 0
    executor: TorchExecutor | None = None


def kernels_of(model: LiveModel) -> Kernels:
    return choose(model.device, model.dtype, model.kv_shape.head_dim)[0]


def serve(
    model: LiveModel,
    scheduler: Scheduler,
    blocks: int,
    block_size: int,
    prompts: Sequence[Prompt],
    *,
    outputs: int = 24,
    after: Callable[[int, Scheduler, TorchExecutor, list[Request]], None] | None = None,
    arrive: int = 1 << 30,
    decoding: Decoding = ONE_SEQUENCE,
) -> Served:
    """Offer prompts, `arrive` of them per iteration, and run to the last answer."""
    served = Served()
    kv = PagedKV(model.kv_shape, blocks, block_size, model.dtype, model.device)
    executor = TorchExecutor(
        model, kv, kernels_of(model), on_answer=lambda r, tokens: served.answers.__setitem__(r.id, tokens)
    )
    served.executor = executor
    requests: list[Request] = []
    waiting = list(enumerate(prompts))
    now_ns = 0
    while waiting or scheduler.busy:
        for i, prompt in waiting[:arrive]:
            limit = prompt.output_tokens or outputs
            content = content_of_ids(prompt.tokens, block_size)
            request = Request(i, 0, len(prompt.tokens), limit, content, decoding=decoding)
            try:
                scheduler.add(request)
            except RequestRefused:
                served.refused.append(i)
                continue
            executor.admit(request, prompt)
            requests.append(request)
        del waiting[:arrive]
        now_ns += 1_000_000_000
        if isinstance(scheduler, Patient):
            scheduler.tell(now_ns)
        plan = scheduler.plan()
        if isinstance(scheduler, Patient):
            for request, _ in scheduler.take_expired():
                served.refused.append(request.id)
                executor.forget(request)
        if plan is None:
            continue
        executor.begin(plan)
        scheduler.commit(plan, executor.finish(plan))
        served.iterations += 1
        if after is not None:
            after(served.iterations, scheduler, executor, requests)
        assert served.iterations < 20_000, "no end in sight"
    served.preemptions = sum(request.preemptions for request in requests)
    served.cached_tokens = sum(request.cached_tokens for request in requests)
    return served
