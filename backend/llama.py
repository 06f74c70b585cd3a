"""A lean forward for the Llama family: few, large operations, weights fused and packed once.

The same numbers as the stock model up to rounding. What it leaves out is the stock model's Python: module
calls, cache objects and masks, which cost more than the arithmetic of a small model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from backend.batch import Attend, Batch
from backend.dense import Dense, choose_dense
from backend.linear import Linear, arithmetic

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
STEADY_ROPE = ("default", "linear", "llama3", "yarn")  # one table of angles serves every length


def supports(config: PreTrainedConfig) -> bool:
    """Whether this module's layers are the ones written down here."""
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.model_type in FAMILIES
        and getattr(config, "hidden_act", "") == "silu"
        and rope.get("rope_type", "default") in STEADY_ROPE
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer; ``query_norm`` and ``key_norm`` where the family normalises heads (Qwen3)."""

    input_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    window: int


class LlamaForward:
    """``forward(batch, attend)`` of one model; the module it was made from can be dropped afterwards."""

    def __init__(self, module: PreTrainedModel) -> None:
        config, stack = module.config, module.model
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps: float = config.rms_norm_eps
        self.scale = self.head_dim**-0.5
        self.embedding: Tensor = stack.embed_tokens.weight.detach()
        self.stored = self.embedding.dtype
        self.computed = arithmetic(self.stored, self.embedding.device)
        self.cosines, self.sines = (
            table.to(self.computed) for table in _angles(stack.rotary_emb, config.max_position_embeddings)
        )
        self.norm = _norm(stack.norm, self.computed)
        self.dense = choose_dense(self.stored, self.embedding.device)
        self.head = self.dense.linear(module.lm_head.weight.detach())
        self.layers = [
            _layer(layer, config, index, self.computed, self.dense)
            for index, layer in enumerate(stack.layers)
        ]

    def __call__(self, batch: Batch, attend: Attend) -> Tensor:
        hidden = functional.embedding(batch.tokens, self.embedding).to(self.computed)
        angles = self.cosines[batch.positions], self.sines[batch.positions]
        dense, addend = self.dense, torch.zeros_like(hidden)
        for index, layer in enumerate(self.layers):
            normed = dense.add_norm(hidden, addend, layer.input_norm, self.eps)
            addend = self._attention(index, layer, normed, angles, attend)
            normed = dense.add_norm(hidden, addend, layer.mlp_norm, self.eps)
            addend = layer.down(dense.gate(layer.gate_up(normed)))
        if batch.logit_rows is not None:
            hidden, addend = hidden[batch.logit_rows], addend[batch.logit_rows]
        return self.head(dense.add_norm(hidden, addend, self.norm, self.eps))

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self.eps)

    def _attention(
        self, index: int, layer: Layer, hidden: Tensor, angles: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        packed = layer.qkv(hidden).view(len(hidden), self.heads + 2 * self.kv_heads, self.head_dim)
        rotated, value = torch.split(packed, [self.heads + self.kv_heads, self.kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = torch.split(rotated, [self.heads, self.kv_heads], dim=1)
            rotated = torch.cat(
                (self._normed(query, layer.query_norm), self._normed(key, layer.key_norm)), dim=1
            )
        query, key = torch.split(self.dense.rotate(rotated, *angles), [self.heads, self.kv_heads], dim=1)
        query, key, value = (part.to(self.stored) for part in (query, key, value))
        found = attend(index, query, key, value, scale=self.scale, window=layer.window)
        return layer.output(found.reshape(len(hidden), -1).to(self.computed))


def _layer(layer: Any, config: PreTrainedConfig, index: int, dtype: torch.dtype, dense: Dense) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    kinds = getattr(config, "layer_types", None)
    sliding = kinds[index] == "sliding_attention" if kinds else config.model_type == "mistral"
    heads_normed = hasattr(attention, "q_norm")
    return Layer(
        input_norm=_norm(layer.input_layernorm, dtype),
        qkv=_fused(dense, attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=_norm(attention.q_norm, dtype) if heads_normed else None,
        key_norm=_norm(attention.k_norm, dtype) if heads_normed else None,
        output=_fused(dense, attention.o_proj),
        mlp_norm=_norm(layer.post_attention_layernorm, dtype),
        gate_up=_fused(dense, mlp.gate_proj, mlp.up_proj),
        down=_fused(dense, mlp.down_proj),
        window=(getattr(config, "sliding_window", None) or 0) if sliding else 0,
    )


def _norm(norm: Any, dtype: torch.dtype) -> Tensor:
    weight: Tensor = norm.weight.detach().to(dtype)
    return weight


def _fused(dense: Dense, *projections: torch.nn.Linear) -> Linear:
    """Several projections of the same input as one."""
    weight = torch.cat([projection.weight.detach() for projection in projections])
    biases = [projection.bias for projection in projections]
    return dense.linear(weight, torch.cat([b.detach() for b in biases]) if biases[0] is not None else None)


def _angles(rotary: Any, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position, [positions, 1, head_dim / 2], scaled as the family does it."""
    frequencies = rotary.inv_freq.to(torch.float32)
    places = torch.arange(positions, device=frequencies.device, dtype=torch.float32)
    angles = places[:, None, None] * frequencies
    return angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling
