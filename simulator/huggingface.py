"""Reading a Hugging Face config.json: an exact description, or a refusal that says what is in the way."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from simulator.errors import ModelError
from simulator.model_families import FAMILIES, REFUSED, Family
from simulator.models import DTYPE_ALIASES, DTYPE_BYTES, Model
from simulator.safetensors import read_stored_weights

LARGEST_CONFIG_BYTES = 16 << 20
NESTED = ("text_config", "llm_config", "language_config")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
VOCABULARY = ("vocab_size",)
POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
)
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token")
FULL, WINDOWED = ("full_attention", "attention", "global"), ("sliding_attention", "local")


@dataclass(frozen=True, slots=True)
class Config:
    """The keys of one config.json, with errors that say which file and key."""

    where: str
    values: Mapping[str, object]

    def refuse(self, problem: str) -> NoReturn:
        raise ModelError(f"{self.where}: {problem}")

    def given(self, keys: tuple[str, ...]) -> str | None:
        """The first of several spellings that is present and not null."""
        return next((key for key in keys if self.values.get(key) is not None), None)

    def count(self, *keys: str, default: int | None = None, least: int = 1, most: int = 10**9) -> int:
        """A whole number under the first spelling that is present."""
        key = self.given(keys)
        if key is None:
            return default if default is not None else self.refuse(f"{keys[0]} is missing")
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(f"{key} must be a whole number from {least} to {most:,}, not {json.dumps(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(f"{key} must be true or false, not {json.dumps(value)}")
        return value

    def bias(self, rule: bool | str) -> bool:
        """A family's rule: settled, or named by a key that is false when absent."""
        return rule if isinstance(rule, bool) else self.flag(rule, False)


def read_model(path: Path) -> Model:
    """The model of a config.json or of a folder that holds one; weights files beside it give the bytes."""
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise ModelError(f"{path}: the folder holds no config.json")
    model = read_config(_read_json(file), where=str(file), name=str(path))
    if not path.is_dir() and file.name != "config.json":
        return model
    stored, notes = read_stored_weights(file.parent)
    if stored and not stored.other_bytes and stored.float_parameters != model.parameters():
        notes += (
            f"the weight files hold {stored.float_parameters:,} parameters, config.json describes "
            f"{model.parameters():,}; the files are believed",
        )
    return dataclasses.replace(model, stored=stored, notes=model.notes + notes)


def _read_json(file: Path) -> Mapping[str, object]:
    text = _read_text(file)
    if not text.strip():
        raise ModelError(f"{file}: the file is empty; it should be a Hugging Face config.json")
    if text.startswith("version https://git-lfs"):
        raise ModelError(f"{file}: is a Git LFS pointer, not the file itself; fetch it with: git lfs pull")
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ModelError(f"{file}:{error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError):
        raise ModelError(
            f"{file}: not a config.json: nested too deeply or with an endless number"
        ) from None
    if not isinstance(values, dict):
        raise ModelError(f"{file}: must hold a JSON object, not a {type(values).__name__}")
    return values


def _read_text(file: Path) -> str:
    try:
        if file.stat().st_size > LARGEST_CONFIG_BYTES:
            raise ModelError(f"{file}: too large for a config.json; are these the weights?")
        return file.read_text("utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{file}: not JSON (not even UTF-8 text)") from None
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from None


def read_config(values: Mapping[str, object], where: str, name: str) -> Model:
    """A description from the values of a config.json."""
    config, notes = _language_part(Config(where, values))
    kind, family = _family(config)
    config = dataclasses.replace(config, values={**family.absent, **config.values})
    _check_known(config, family)
    shape = _shape(config, family)
    model = Model(
        name=name,
        family=kind,
        dtype=_dtype(config),
        **shape,
        **_biases_and_norms(config, family, shape),
        **_embedding(config, family, shape),
        **_experts(config, family, kind, shape),
        **_latent(config, family),
        **_sliding(config, family, shape["layers"]),
    )
    return dataclasses.replace(model, notes=notes + _notes(config))


def _language_part(config: Config) -> tuple[Config, tuple[str, ...]]:
    """Of a multimodal model the part that generates text; what it leaves out is said in a note."""
    if config.flag("is_encoder_decoder", False):
        config.refuse("is an encoder-decoder; ServeTwin knows decoder-only models")
    key = config.given(NESTED)
    if key is None:
        return config, ()
    nested = config.values[key]
    if not isinstance(nested, dict):
        config.refuse(f"{key} must be an object")
    outer = {
        name: config.values[name]
        for name in ("tie_word_embeddings", "torch_dtype", "dtype")
        if name in config.values
    }
    inner = Config(f"{config.where}: {key}", {**outer, **nested})
    defaults = FAMILIES.get(str(nested.get("model_type")), Family()).defaults
    note = f"only the language part ({key}) is described: image, audio and other towers are not counted"
    return dataclasses.replace(inner, values={**defaults, **inner.values}), (note,)


def _family(config: Config) -> tuple[str, Family]:
    kind = config.values.get("model_type")
    if not isinstance(kind, str):
        config.refuse("model_type is missing; it says how the parameters are laid out")
    if kind in REFUSED:
        config.refuse(f"{kind!r} is {REFUSED[kind]}; ServeTwin knows attention decoders")
    if kind not in FAMILIES:
        config.refuse(f"model_type {kind!r} is not known; known are {', '.join(FAMILIES)}")
    return kind, FAMILIES[kind]


def _check_known(config: Config, family: Family) -> None:
    """All missing keys in one line; then switches that would change the parameters unknowably."""
    needed = [LAYERS, HIDDEN, HEADS, VOCABULARY]
    needed += [] if family.intermediate_factor else [INTERMEDIATE]
    needed += [EXPERTS_PER_TOKEN] if family.mixture and config.given(EXPERTS) else []
    if family.latent:
        needed += [("kv_lora_rank",), ("qk_nope_head_dim",), ("qk_rope_head_dim",), ("v_head_dim",)]
    missing = [keys[0] for keys in needed if config.given(keys) is None]
    if missing:
        config.refuse(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    for key, known in family.fixed.items():
        if config.flag(key, known) is not known:
            config.refuse(f"{key} is known for this model_type only as {json.dumps(known)}")


def _shape(config: Config, family: Family) -> dict[str, Any]:
    hidden, heads = config.count(*HIDDEN), config.count(*HEADS, most=10_000)
    kv_heads = heads if family.latent else _kv_heads(config, family, heads)
    factor = config.count("expansion_ratio", default=family.intermediate_factor or 1)
    if heads % kv_heads:
        config.refuse(f"{heads} attention heads cannot be shared evenly by {kv_heads} KV heads")
    return {
        "layers": config.count(*LAYERS, most=10_000),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": _head_dim(config, family, hidden, heads),
        "intermediate": config.count(*INTERMEDIATE, default=factor * hidden),
        "vocabulary": config.count(*VOCABULARY),
        "max_positions": config.count(*POSITIONS, default=family.default_positions),
    }


def _kv_heads(config: Config, family: Family, heads: int) -> int:
    """Falcon keeps num_kv_heads in its file even where the old architecture ignores it."""
    if family.multi_query is not None and not config.flag("new_decoder_architecture", False):
        return 1 if config.flag("multi_query", family.multi_query) else heads
    attention = config.values.get("attn_config")
    if isinstance(attention, dict) and attention.get("kv_n_heads", heads) != heads:
        config.refuse("attn_config: kv_n_heads other than n_heads is not known for this model_type")
    return config.count(*KV_HEADS, default=heads)


def _head_dim(config: Config, family: Family, hidden: int, heads: int) -> int:
    if family.latent:
        return config.count("qk_nope_head_dim") + config.count("qk_rope_head_dim")
    if config.given(("head_dim",)) is None and hidden % heads:
        config.refuse(f"head_dim is missing and hidden_size {hidden} is not a multiple of {heads} heads")
    return config.count("head_dim", default=max(1, hidden // heads))


def _biases_and_norms(config: Config, family: Family, shape: Mapping[str, int]) -> dict[str, Any]:
    heads, kv_heads, head_dim = shape["heads"], shape["kv_heads"], shape["head_dim"]
    query_key = {"": 0, "head": 2 * head_dim, "wide": (heads + kv_heads) * head_dim}[family.qk_norm]
    if family.qk_norm_key and not config.flag(family.qk_norm_key, False):
        query_key = 0
    return {
        "gated_mlp": family.gated_mlp,
        "qkv_bias": config.bias(family.qkv_bias),
        "output_bias": config.bias(family.output_bias),
        "mlp_bias": config.bias(family.mlp_bias),
        "head_bias": family.head_bias,
        "norm_rows": family.norm_rows,
        "norms_per_layer": _norms_per_layer(config, family),
        "other_norms": family.other_norms if config.flag("do_layer_norm_before", True) else 0,
        "attention_extras": query_key + family.sinks * heads,
    }


def _norms_per_layer(config: Config, family: Family) -> int:
    """Attention and feed-forward in parallel share one norm, except in Falcon's second architecture."""
    if config.flag("new_decoder_architecture", False):
        return config.count("num_ln_in_parallel_attn", default=2)
    if family is FAMILIES["falcon"]:
        return 1 if config.flag("parallel_attn", True) else 2
    if family is FAMILIES["stablelm"]:
        return 1 if config.flag("use_parallel_residual", False) else 2
    return family.norms_per_layer


def _embedding(config: Config, family: Family, shape: Mapping[str, int]) -> dict[str, Any]:
    width = config.count("word_embed_proj_dim", default=shape["hidden"])
    learned = shape["max_positions"] + family.position_rows if family.position_rows >= 0 else 0
    return {
        "tied_embeddings": config.flag("tie_word_embeddings", family.tied_embeddings),
        "learned_positions": learned,
        "embedding_width": 0 if width == shape["hidden"] else width,
    }


def _experts(config: Config, family: Family, kind: str, shape: Mapping[str, int]) -> dict[str, Any]:
    experts = config.count(*EXPERTS, default=0, least=0)
    if not experts:
        return {}
    if not family.mixture:
        config.refuse(f"has {experts} experts, which model_type {kind!r} does not have")
    chosen = config.count(*EXPERTS_PER_TOKEN)
    if chosen > experts:
        config.refuse(f"a token cannot go to {chosen} of {experts} experts")
    width = config.count("moe_intermediate_size", default=shape["intermediate"])
    shared = config.count("n_shared_experts", default=0, least=0) * width
    own_shared = config.count("shared_expert_intermediate_size", default=0, least=0)
    return {
        "experts": experts,
        "experts_per_token": chosen,
        "expert_intermediate": width,
        "moe_layers": _moe_layers(config, shape["layers"]),
        "shared_intermediate": shared or own_shared,
        "shared_gate": own_shared > 0,
        "router_bias": family.router_bias,
    }


def _moe_layers(config: Config, layers: int) -> int:
    """DeepSeek begins with dense layers; Qwen lists them or gives experts to every n-th layer."""
    first = config.count("first_k_dense_replace", default=0, least=0)
    every = config.count("moe_layer_freq", default=1)
    step = config.count("decoder_sparse_step", default=1)
    dense = config.values.get("mlp_only_layers") or ()
    if not isinstance(dense, list | tuple):
        config.refuse("mlp_only_layers must be a list of layer numbers")
    return sum(
        layer >= first and layer % every == 0 and (layer + 1) % step == 0 and layer not in dense
        for layer in range(layers)
    )


def _latent(config: Config, family: Family) -> dict[str, Any]:
    if not family.latent:
        return {}
    return {
        "kv_lora_rank": config.count("kv_lora_rank"),
        "q_lora_rank": config.count("q_lora_rank", default=0),
        "rope_head_dim": config.count("qk_rope_head_dim"),
        "nope_head_dim": config.count("qk_nope_head_dim"),
        "value_head_dim": config.count("v_head_dim"),
    }


def _sliding(config: Config, family: Family, layers: int) -> dict[str, Any]:
    """Window and how many layers have it: by the list of layer types, else by the family's pattern."""
    kinds = config.values.get("layer_types")
    if isinstance(kinds, list):
        _check_layer_types(config, kinds, layers)
    window = config.count("sliding_window", default=0, least=0)
    if not window or not family.window_pattern or not config.flag("use_sliding_window", not _qwen(config)):
        return {}
    if isinstance(kinds, list):
        windowed = sum(kind in WINDOWED for kind in kinds)
    else:
        pattern = config.count("sliding_window_pattern", default=family.window_pattern)
        windowed = layers if pattern == 1 else layers - layers // pattern
        if _qwen(config):
            windowed -= min(windowed, config.count("max_window_layers", default=0, least=0))
    return {"sliding_window": window, "sliding_layers": windowed} if windowed else {}


def _qwen(config: Config) -> bool:
    """Qwen's windows are off unless switched on, and begin above max_window_layers."""
    return str(config.values["model_type"]).startswith("qwen")


def _check_layer_types(config: Config, kinds: list[object], layers: int) -> None:
    for kind in kinds:
        if kind not in FULL and kind not in WINDOWED:
            config.refuse(f"layer_types: {kind!r} layers hold no per-token KV cache; known is attention")
    if len(kinds) != layers:
        config.refuse(f"layer_types lists {len(kinds)} layers, the model has {layers}")


def _dtype(config: Config) -> str:
    value = str(config.values.get("dtype") or config.values.get("torch_dtype") or "bfloat16").removeprefix(
        "torch."
    )
    value = DTYPE_ALIASES.get(value, value)
    return value if value in DTYPE_BYTES else "bfloat16"


def _notes(config: Config) -> tuple[str, ...]:
    notes = []
    quantised = config.values.get("quantization_config")
    if isinstance(quantised, dict):
        notes.append(
            f"the weights are quantised ({quantised.get('quant_method', 'unknown')}); without weight files "
            "they are counted at the dtype asked for"
        )
    if config.count("num_nextn_predict_layers", default=0, least=0):
        notes.append("the layers that predict further tokens (num_nextn_predict_layers) are not counted")
    return tuple(notes)
