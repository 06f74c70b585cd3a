"""How the families of decoder-only models differ from Llama, by ``model_type`` of their config.json.

Facts of the reference implementations in Hugging Face Transformers; tests compare the resulting
parameter counts with published ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Family:
    """Where a bias may be a string, it names the config key that decides (absent: no bias)."""

    gated_mlp: bool = True
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool = False
    norm_rows: int = 1
    norms_per_layer: int = 2
    other_norms: int = 1
    qk_norm: str = ""  # "head": one norm of head_dim for queries and one for keys; "wide": over all heads
    qk_norm_key: str = ""  # the config key that switches these norms on, where there is one
    tied_embeddings: bool = False
    position_rows: int = -1  # learned positions: rows beyond max_positions; -1: rotary or ALiBi
    default_positions: int = 0
    intermediate_factor: int = 0  # of hidden, where the config may leave the feed-forward width out
    window_pattern: int = 0  # 0: never slides, 1: every layer slides, n: all but every n-th
    mixture: bool = False
    latent: bool = False
    router_bias: bool = False
    sinks: bool = False
    multi_query: bool | None = None  # the default of the key multi_query, where a family has it
    fixed: Mapping[str, bool] = field(default_factory=dict)  # switches known in this position only
    absent: Mapping[str, object] = field(default_factory=dict)  # what a key means that is left out
    defaults: Mapping[str, int] = field(default_factory=dict)  # further keys that nested configs leave out


LLAMA = Family(
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    default_positions=2048,
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    },
)
MISTRAL = Family(
    window_pattern=1,
    default_positions=131072,
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
)
QWEN3 = Family(
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    window_pattern=1,
    default_positions=32768,
    absent={"head_dim": 128},
)
QWEN3_MOE = Family(
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    default_positions=32768,
    mixture=True,
    fixed={"use_sliding_window": False},
)
GEMMA3 = Family(
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    norms_per_layer=4,
    qk_norm="head",
    tied_embeddings=True,
    window_pattern=6,
    default_positions=131072,
    defaults={
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "sliding_window": 4096,
    },
    absent={"head_dim": 256},
)
DEEPSEEK = Family(
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    latent=True,
    mixture=True,
    default_positions=4096,
)
GPT = Family(
    gated_mlp=False,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    norm_rows=2,
    tied_embeddings=True,
    position_rows=0,
    intermediate_factor=4,
    default_positions=1024,
)
COHERE = Family(
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    norms_per_layer=1,
    qk_norm="wide",
    qk_norm_key="use_qk_norm",
    tied_embeddings=True,
    default_positions=8192,
)

FAMILIES: Mapping[str, Family] = {
    "llama": LLAMA,
    "smollm3": replace(LLAMA, tied_embeddings=True),
    "granite": LLAMA,
    "mistral": MISTRAL,
    "mixtral": Family(mixture=True, window_pattern=1, default_positions=131072),
    "qwen2": Family(qkv_bias=True, window_pattern=1, default_positions=32768),
    "qwen2_moe": Family(
        qkv_bias=True, mixture=True, default_positions=32768, fixed={"use_sliding_window": False}
    ),
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "gemma": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        tied_embeddings=True,
        default_positions=8192,
        absent={"head_dim": 256},
    ),
    "gemma2": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        norms_per_layer=4,
        tied_embeddings=True,
        window_pattern=2,
        default_positions=8192,
        absent={"head_dim": 256},
    ),
    "gemma3_text": GEMMA3,
    "phi": Family(
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_bias=True,
        norm_rows=2,
        norms_per_layer=1,
        default_positions=2048,
        fixed={"qk_layernorm": False},
    ),
    "phi3": Family(window_pattern=1, default_positions=4096),
    "falcon": Family(
        gated_mlp=False,
        qkv_bias="bias",
        output_bias="bias",
        mlp_bias="bias",
        norm_rows=2,
        tied_embeddings=True,
        intermediate_factor=4,
        default_positions=2048,
        multi_query=True,
    ),
    "gpt2": GPT,
    "gpt_bigcode": Family(
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_rows=2,
        tied_embeddings=True,
        position_rows=0,
        intermediate_factor=4,
        default_positions=1024,
        multi_query=True,
    ),
    "gpt_neox": Family(
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_rows=2,
        intermediate_factor=4,
        default_positions=2048,
        fixed={"attention_bias": True},
    ),
    "gptj": Family(
        gated_mlp=False,
        mlp_bias=True,
        head_bias=True,
        norm_rows=2,
        norms_per_layer=1,
        intermediate_factor=4,
        default_positions=2048,
    ),
    "opt": Family(
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_rows=2,
        tied_embeddings=True,
        position_rows=2,
        default_positions=2048,
        fixed={"enable_bias": True, "layer_norm_elementwise_affine": True},
    ),
    "bloom": Family(
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_rows=2,
        other_norms=2,
        tied_embeddings=True,
        intermediate_factor=4,
        default_positions=2048,
    ),
    "mpt": Family(
        gated_mlp=False,
        tied_embeddings=True,
        intermediate_factor=4,
        default_positions=2048,
        fixed={"no_bias": True},
    ),
    "starcoder2": Family(
        gated_mlp=False,
        qkv_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        norm_rows=2,
        tied_embeddings=True,
        window_pattern=1,
        default_positions=4096,
        absent={"use_bias": True},
    ),
    "stablelm": Family(
        qkv_bias="use_qkv_bias",
        norm_rows=2,
        qk_norm="wide",
        qk_norm_key="qk_layernorm",
        default_positions=4096,
    ),
    "nemotron": Family(
        gated_mlp=False,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        norm_rows=2,
        default_positions=4096,
    ),
    "olmo": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", norm_rows=0, default_positions=2048
    ),
    "olmo2": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="wide", default_positions=2048
    ),
    "olmoe": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm="wide",
        mixture=True,
        default_positions=4096,
    ),
    "cohere": COHERE,
    "cohere2": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        norms_per_layer=1,
        tied_embeddings=True,
        window_pattern=4,
        default_positions=8192,
    ),
    "glm": Family(
        qkv_bias="attention_bias",
        default_positions=131072,
        absent={"attention_bias": True, "head_dim": 128},
    ),
    "glm4": Family(
        qkv_bias="attention_bias",
        norms_per_layer=4,
        default_positions=131072,
        absent={"attention_bias": True, "head_dim": 128},
    ),
    "glm4_moe": Family(
        qkv_bias="attention_bias",
        qk_norm="head",
        qk_norm_key="use_qk_norm",
        mixture=True,
        default_positions=131072,
    ),
    "internlm2": Family(qkv_bias="bias", output_bias="bias", default_positions=2048),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "gpt_oss": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias=True,
        window_pattern=2,
        mixture=True,
        router_bias=True,
        sinks=True,
        default_positions=131072,
        absent={"attention_bias": True, "head_dim": 64},
    ),
}

# Model types that are refused, and why; the reason completes "is ...".
_RECURRENT = (
    "a state-space or linear-attention model, wholly or in part: its layers hold no per-token KV cache"
)
_ENCODER_DECODER = "an encoder-decoder"
_ENCODER = "an encoder: it generates nothing"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "bamba",
            "falcon_h1",
            "falcon_mamba",
            "granitemoehybrid",
            "jamba",
            "kimi_linear",
            "lfm2",
            "lfm2_moe",
            "mamba",
            "mamba2",
            "minimax",
            "nemotron_h",
            "olmo_hybrid",
            "plamo2",
            "qwen3_5",
            "qwen3_next",
            "recurrent_gemma",
            "rwkv",
            "rwkv5",
            "rwkv6",
            "rwkv7",
            "xlstm",
            "zamba",
            "zamba2",
        ),
        _RECURRENT,
    ),
    **dict.fromkeys(
        (
            "bart",
            "bigbird_pegasus",
            "blenderbot",
            "led",
            "longt5",
            "m2m_100",
            "marian",
            "mbart",
            "mt5",
            "pegasus",
            "plbart",
            "prophetnet",
            "seamless_m4t",
            "speech_to_text",
            "switch_transformers",
            "t5",
            "t5gemma",
            "umt5",
            "whisper",
        ),
        _ENCODER_DECODER,
    ),
    **dict.fromkeys(
        (
            "albert",
            "bert",
            "camembert",
            "clip",
            "deberta",
            "deberta-v2",
            "distilbert",
            "electra",
            "modernbert",
            "mpnet",
            "roberta",
            "siglip",
            "vit",
            "xlm-roberta",
        ),
        _ENCODER,
    ),
}
