"""Real decoders, loaded and ready to run over paged KV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from backend import general, llama
from backend.batch import Forward
from backend.linear import arithmetic
from backend.paged_kv import DTYPES, KVShape
from backend.weights import Source, build_module, find_source
from simulator.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

ATTENTION_LAYERS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class LiveModel:
    """A model in memory.

    ``path``: ``fast``, our own forward, or ``general``, the stock one. ``stops``: the ids that end an
    answer by the model's own settings.
    """

    name: str
    forward: Forward
    path: str
    kv_shape: KVShape
    heads: int
    vocabulary: int
    max_positions: int
    stops: frozenset[int]
    dtype: torch.dtype
    device: torch.device
    weights_bytes: int
    notices: tuple[str, ...] = ()


def load_live_model(
    name_or_path: str, dtype: str, device: str = "cpu", *, seed: int = 0, path: str = "auto"
) -> LiveModel:
    """Load a model by what a scenario calls it. ``path``: auto (fast where there is one), fast, general."""
    source = find_source(name_or_path)
    if dtype not in DTYPES:
        raise ModelError(f"dtype: live runs compute in {', '.join(DTYPES)}, not {dtype}")
    place = find_device(device)
    general.register()
    module = build_module(source, DTYPES[dtype], place, seed, general.NAME)
    return live_model(source, module, path)


def find_device(device: str) -> torch.device:
    """A device of this machine by name: cpu, cuda or cuda:N."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError("device: cuda was asked for, but torch finds no GPU here; use cpu")
    try:
        return torch.device(device)
    except RuntimeError:
        raise ModelError(f"device: must be cpu, cuda or cuda:N, not {device!r}") from None


def live_model(source: Source, module: PreTrainedModel, path: str = "auto") -> LiveModel:
    """A built module with one of the two forwards around it."""
    config = module.config.get_text_config()
    fast = llama.supports(config)
    if path == "fast" and not fast:
        raise ModelError(f"{source.name}: there is no fast path for {config.model_type}; use general")
    _refuse_unpaged(source, config, module)
    weight = next(module.parameters())
    chosen_fast = fast and path != "general"
    return LiveModel(
        name=source.name,
        forward=llama.LlamaForward(module) if chosen_fast else general.general_forward(module),
        path="fast" if chosen_fast else "general",
        kv_shape=_kv_shape(config),
        heads=config.num_attention_heads,
        vocabulary=config.vocab_size,
        max_positions=config.max_position_embeddings,
        stops=_stops(module),
        dtype=weight.dtype,
        device=weight.device,
        weights_bytes=sum(p.numel() * p.element_size() for p in module.parameters()),
        notices=tuple(_notices(source, weight, chosen_fast)),
    )


def _notices(source: Source, weight: torch.Tensor, fast: bool) -> Iterator[str]:
    if source.folder is None:
        yield f"{source.name}: random weights, so the answers mean nothing"
    if arithmetic(weight.dtype, weight.device) != weight.dtype:
        name = str(weight.dtype).removeprefix("torch.")
        cure = "the fast path computes in float32 instead" if fast else "the general path will be slow"
        yield f"this CPU only emulates {name} products: {cure}"


def _refuse_unpaged(source: Source, config: PreTrainedConfig, module: PreTrainedModel) -> None:
    """Families whose attention cannot be replaced, or whose layers keep something else than KV."""
    if not module._supports_attention_backend:
        raise ModelError(
            f"{source.name}: {config.model_type} does not use transformers' attention interface"
        )
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - set(ATTENTION_LAYERS))
    if unknown:
        raise ModelError(
            f"{source.name}: layers of type {', '.join(unknown)} keep no paged keys and values"
        )


def _kv_shape(config: PreTrainedConfig) -> KVShape:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return KVShape(config.num_hidden_layers, kv_heads, head_dim)


def _stops(module: PreTrainedModel) -> frozenset[int]:
    settings = module.generation_config
    end = settings.eos_token_id if settings is not None else module.config.eos_token_id
    return frozenset(() if end is None else [end] if isinstance(end, int) else end)
