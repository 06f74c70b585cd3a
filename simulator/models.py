"""Language models as far as the cost of serving them depends on them."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import ModelError

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
DTYPE_ALIASES: Mapping[str, str] = {
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
    "float8_e4m3fn": "float8",
}


def dtype_name(dtype: str) -> str:
    """The one spelling of a number format that the rest of ServeTwin uses, such as ``bfloat16``."""
    name = DTYPE_ALIASES.get(dtype, dtype)
    if name not in DTYPE_BYTES:
        raise ModelError(f"dtype must be one of {', '.join(DTYPE_BYTES)}, not {dtype!r}")
    return name


OUTSIDE_LAYERS = frozenset({"embedding", "positions", "head"})  # parts that no layer holds


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number."""
    return DTYPE_BYTES[dtype_name(dtype)]


class Part(NamedTuple):
    """Parameters that tensor parallelism splits into at most ``ways`` pieces (1: every GPU has all)."""

    name: str
    parameters: int
    ways: int

    def per_gpu(self, tensor_parallel: int) -> int:
        return -(-self.parameters // min(tensor_parallel, self.ways))


class StoredWeights(NamedTuple):
    """What weight files hold: floats load in the dtype asked for, other (quantised) numbers as they are."""

    float_parameters: int
    other_bytes: int


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer.

    Biases, norms and the like are here because parameter counts are exact. ``kv_lora_rank`` > 0 means
    multi-head latent attention, whose cache holds one latent and one rotary key per token and layer.
    ``attention_extras`` are small per-layer weights beside the projections (query and key norms, sinks).
    """

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    max_positions: int
    dtype: str = "bfloat16"
    tied_embeddings: bool = False
    gated_mlp: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    norm_rows: int = 1  # vectors in a norm: 1 scale, 2 scale and shift, 0 neither
    norms_per_layer: int = 2
    other_norms: int = 1  # after the last layer, and in some families after the embedding
    attention_extras: int = 0
    learned_positions: int = 0
    embedding_width: int = 0  # 0: as wide as the layers; otherwise projected in and out
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    moe_layers: int = 0
    shared_intermediate: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    rope_head_dim: int = 0
    nope_head_dim: int = 0
    value_head_dim: int = 0
    sliding_window: int = 0
    sliding_layers: int = 0
    stored: StoredWeights | None = None
    notes: tuple[str, ...] = ()

    @property
    def latent_attention(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def dense_layers(self) -> int:
        """Layers whose feed-forward block has no experts."""
        return self.layers - self.moe_layers

    def parts(self) -> tuple[Part, ...]:
        """Every parameter of the model, grouped by how tensor parallelism shares it out."""
        return tuple(part for part in self._all_parts() if part.parameters)

    def _all_parts(self) -> Iterator[Part]:
        width = self.embedding_width or self.hidden
        projections = 0 if width == self.hidden else 2 * width * self.hidden
        yield Part("embedding", self.vocabulary * width, self.vocabulary)
        yield Part("positions", self.learned_positions * self.hidden + projections, 1)
        yield from self._latent_parts() if self.latent_attention else self._attention_parts()
        yield from self._mlp_parts()
        norms = self.layers * self.norms_per_layer + self.other_norms
        yield Part("norms", norms * self.norm_rows * self.hidden + self.layers * self.attention_extras, 1)
        head = 0 if self.tied_embeddings else self.vocabulary * width
        yield Part("head", head + self.vocabulary * self.head_bias, self.vocabulary)

    def _attention_parts(self) -> Iterator[Part]:
        query_width = self.heads * self.head_dim
        key_width = self.kv_heads * self.head_dim
        rows = self.hidden + self.qkv_bias
        yield Part("attention", self.layers * query_width * (rows + self.hidden), self.heads)
        yield Part("keys and values", self.layers * 2 * key_width * rows, self.kv_heads)
        yield Part("attention biases", self.layers * self.output_bias * self.hidden, 1)

    def _latent_parts(self) -> Iterator[Part]:
        rank, query_dim = self.kv_lora_rank, self.nope_head_dim + self.rope_head_dim
        query_rows = self.q_lora_rank or self.hidden
        down = (self.hidden + self.qkv_bias) * (rank + self.rope_head_dim + self.q_lora_rank)
        up = query_rows * query_dim + rank * (self.nope_head_dim + self.value_head_dim)
        output = self.value_head_dim * self.hidden
        yield Part("latent projections", self.layers * (down + rank + self.q_lora_rank), 1)
        yield Part("attention", self.layers * self.heads * (up + output), self.heads)
        yield Part("attention biases", self.layers * self.output_bias * self.hidden, 1)

    @property
    def _mlp_rows(self) -> int:
        """Weights of a feed-forward block per unit of its width: gate and up (with biases), and down."""
        matrices = 3 if self.gated_mlp else 2
        return matrices * self.hidden + self.mlp_bias * (matrices - 1)

    def _mlp_parts(self) -> Iterator[Part]:
        yield Part(
            "feed-forward", self.dense_layers * self._mlp_rows * self.intermediate, self.intermediate
        )
        experts = self.moe_layers * self.experts
        yield Part("experts", experts * self._mlp_rows * self.expert_intermediate, self.expert_intermediate)
        shared = self.moe_layers * self._mlp_rows * self.shared_intermediate
        yield Part("shared expert", shared, self.shared_intermediate)
        routers = self.moe_layers * (
            self.experts * (self.hidden + self.router_bias) + self.shared_gate * self.hidden
        )
        yield Part("routers", routers, 1)
        yield Part("feed-forward biases", self.mlp_bias * self.hidden * (self.dense_layers + experts), 1)

    def parameters(self) -> int:
        """Parameters by the description, tied embeddings counted once."""
        return sum(part.parameters for part in self.parts())

    def active_parameters(self) -> int:
        """Parameters that one token multiplies with, the head included: two FLOP each."""
        apart = (
            "embedding",
            "positions",
            "norms",
            "attention biases",
            "feed-forward biases",
            "experts",
            "head",
        )
        layers = sum(part.parameters for part in self.parts() if part.name not in apart)
        experts = self.moe_layers * self.experts_per_token * self._mlp_rows * self.expert_intermediate
        return layers + experts + self.vocabulary * (self.embedding_width or self.hidden)

    def weights_bytes(self, dtype: str, tensor_parallel: int = 1) -> int:
        """Bytes of weights on each GPU; taken from the weight files' headers where there are any."""
        self.check_tensor_parallel(tensor_parallel)
        bytes_each = dtype_bytes(dtype)
        per_gpu = sum(part.per_gpu(tensor_parallel) for part in self.parts())
        if self.stored is None:
            return per_gpu * bytes_each
        whole = self.stored.float_parameters * bytes_each + self.stored.other_bytes
        return -(-whole * per_gpu // self.parameters())

    def stage_weights_bytes(self, dtype: str, tensor_parallel: int, stages: Sequence[int]) -> list[int]:
        """Bytes of weights on each GPU of each pipeline stage, of so many layers each.

        The embedding is on the first stage, the head on the last: a copy of it where they are tied.
        """
        self.check_tensor_parallel(tensor_parallel)
        bytes_each, parts = dtype_bytes(dtype), self.parts()
        sizes = {part.name: part.per_gpu(tensor_parallel) for part in parts}
        ends = {name: size for name, size in sizes.items() if name in OUTSIDE_LAYERS}
        within = sum(sizes.values()) - sum(ends.values())
        shares = [within * layers / self.layers for layers in stages]
        shares[0] += ends["embedding"] + ends.get("positions", 0)
        if len(stages) > 1 and self.tied_embeddings:
            shares[-1] += ends["embedding"]
        shares[-1] += ends.get("head", 0)
        if self.stored is not None:
            whole = self.stored.float_parameters * bytes_each + self.stored.other_bytes
            return [ceil(whole * share / self.parameters()) for share in shares]
        return [ceil(share * bytes_each) for share in shares]

    def kv_bytes_per_token(self, dtype: str, tensor_parallel: int = 1) -> int:
        """Bytes a token adds to each GPU's cache, all layers together (sliding ones not yet full)."""
        return self.layers * self._layer_kv_bytes(dtype, tensor_parallel)

    def kv_bytes(self, context_tokens: int, dtype: str, tensor_parallel: int = 1) -> int:
        """Bytes on each GPU that a context needs if sliding layers keep no more than their window."""
        windowed = min(context_tokens, self.sliding_window) if self.sliding_layers else 0
        whole = (self.layers - self.sliding_layers) * context_tokens
        return (whole + self.sliding_layers * windowed) * self._layer_kv_bytes(dtype, tensor_parallel)

    def _layer_kv_bytes(self, dtype: str, tensor_parallel: int) -> int:
        """A latent is needed whole by every GPU; too few KV heads are repeated so that each GPU has one."""
        self.check_tensor_parallel(tensor_parallel)
        if self.latent_attention:
            return (self.kv_lora_rank + self.rope_head_dim) * dtype_bytes(dtype)
        heads = max(1, self.kv_heads // tensor_parallel)
        return 2 * heads * self.head_dim * dtype_bytes(dtype)

    def check_tensor_parallel(self, tensor_parallel: int) -> None:
        """Refuse a degree of tensor parallelism that engines cannot shard this model by."""
        if tensor_parallel < 1:
            raise ModelError(f"parallel.tensor must be a whole number >= 1, not {tensor_parallel}")
        for heads, kind in ((self.heads, "attention heads"), (self.kv_heads, "KV heads")):
            few, many = sorted((heads, tensor_parallel))
            if many % few or (kind == "attention heads" and heads < tensor_parallel):
                possible = ", ".join(map(str, self.tensor_parallel_degrees()))
                raise ModelError(
                    f"parallel.tensor: the {heads} {kind} of {self.name} cannot be shared by "
                    f"{tensor_parallel} GPUs; possible are {possible}"
                )

    def tensor_parallel_degrees(self) -> tuple[int, ...]:
        """Degrees that share heads and KV heads evenly, KV heads repeated where they are too few."""
        return tuple(
            degree
            for degree in range(1, self.heads + 1)
            if self.heads % degree == 0 and (self.kv_heads % degree == 0 or degree % self.kv_heads == 0)
        )


def catalog(name: str) -> Mapping[str, dict[str, Any]]:
    """The descriptions that come with ServeTwin: ``models`` or ``hardware``."""
    text = files("simulator").joinpath(f"catalog/{name}.json").read_text("utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


def model_names() -> tuple[str, ...]:
    """Names of the built-in descriptions."""
    return tuple(catalog("models"))


def load_model(name_or_path: str) -> Model:
    """A built-in description (or an alias of one), or that of a config.json or a model folder."""
    from simulator.huggingface import read_config, read_model

    entries = catalog("models")
    names = {alias.lower(): name for name, entry in entries.items() for alias in (name, *entry["aliases"])}
    name = names.get(name_or_path.lower())
    if name is not None:
        return read_config(entries[name]["config"], where=name, name=name)
    path = os.path.expanduser(name_or_path)
    if os.path.exists(path):
        return read_model(Path(path))
    raise ModelError(_unknown(name_or_path, [*entries, *names]))


def _unknown(asked: str, known: list[str]) -> str:
    if asked.endswith(".json") or asked.startswith((".", "/", "~")):
        return f"model: there is no file or folder {asked!r}"
    return f"model: {asked!r} is neither built in nor a path{did_you_mean(asked, known, 'models')}"


def did_you_mean(asked: str, known: list[str], kind: str) -> str:
    """The tail of an error about an unknown name: the nearest known one, or where they are listed."""
    lowered = {name.lower(): name for name in reversed(known)}
    near = difflib.get_close_matches(asked.lower(), list(lowered), n=1, cutoff=0.5)
    return f"; did you mean {lowered[near[0]]!r}?" if near else f"; see: servetwin list {kind}"


def describe_models() -> tuple[dict[str, object], ...]:
    """A row per built-in model, for ``servetwin list models``; KV bytes are those of bfloat16."""
    return tuple(_describe(load_model(name)) for name in model_names())


def _describe(model: Model) -> dict[str, object]:
    return {
        "name": model.name,
        "parameters": model.parameters(),
        "active_parameters": model.active_parameters(),
        "layers": model.layers,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "experts": model.experts,
        "max_positions": model.max_positions,
        "kv_bytes_per_token": model.kv_bytes_per_token("bfloat16"),
    }
