"""Model descriptions: exact parameter and KV counts, and one line for whatever cannot be described."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from simulator.errors import ModelError
from simulator.huggingface import read_config
from simulator.model_families import FAMILIES, REFUSED
from simulator.models import Model, catalog, describe_models, load_model, model_names

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 320,
    "vocab_size": 1000,
    "max_position_embeddings": 256,
}
LATENT: dict[str, Any] = {
    **LLAMA,
    "num_key_value_heads": 8,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
}
GPT2: dict[str, Any] = {
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "vocab_size": 50257,
    "n_positions": 1024,
}


def describe(values: dict[str, Any]) -> Model:
    return read_config(values, where="config.json", name="test")


def without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def folder_with(path: Path, config: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


def save_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    """Name to (dtype, shape, bytes); the data are zeros."""
    header, end = {}, 0
    for name, (dtype, shape, length) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + length]}
        end += length
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


# Exact counts: "parameters" of the model's safetensors on its Hugging Face page.
PUBLISHED = {
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "facebook/opt-13b": 12_853_473_280,
}
# Zhang et al. 2022 (OPT), table 1, and the rounded sizes in the names.
ROUNDED = {"facebook/opt-66b": 66e9, "facebook/opt-175b": 175e9}
# KV bytes per token at 16 bits: 2 * layers * kv_heads * head_dim * 2, worked out by hand.
KV_BYTES = {
    "meta-llama/Llama-2-7b-hf": 524_288,
    "meta-llama/Llama-2-13b-hf": 819_200,
    "facebook/opt-13b": 819_200,
    "meta-llama/Llama-2-70b-hf": 327_680,
    "meta-llama/Llama-3.1-8B": 131_072,
    "meta-llama/Llama-3.1-70B": 327_680,
    "facebook/opt-66b": 2_359_296,
    "facebook/opt-175b": 4_718_592,
    "Qwen/Qwen3-8B": 147_456,
    "Qwen/Qwen3-30B-A3B": 98_304,
    "mistralai/Mixtral-8x7B-v0.1": 131_072,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_built_in_models_have_the_published_parameter_counts(name: str, parameters: int) -> None:
    model = load_model(name)
    assert model.parameters() == parameters
    assert model.weights_bytes("bfloat16") == 2 * parameters
    assert model.weights_bytes("float32") == 4 * parameters
    assert model.weights_bytes("float8") == parameters


@pytest.mark.parametrize(("name", "parameters"), ROUNDED.items())
def test_the_largest_opt_models_are_within_half_a_per_cent_of_their_names(
    name: str, parameters: float
) -> None:
    assert load_model(name).parameters() == pytest.approx(parameters, rel=0.005)


@pytest.mark.parametrize(("name", "kv_bytes"), KV_BYTES.items())
def test_built_in_models_have_the_known_kv_bytes_per_token(name: str, kv_bytes: int) -> None:
    assert load_model(name).kv_bytes_per_token("float16") == kv_bytes
    assert load_model(name).kv_bytes_per_token("float8") == kv_bytes // 2


def test_active_parameters_leave_out_idle_experts_and_the_embedding() -> None:
    # "A3B", and the 12.9 B that the Mixtral paper (Jiang et al. 2024) counts with the embedding's 0.13 B.
    assert load_model("Qwen/Qwen3-30B-A3B").active_parameters() == pytest.approx(3.04e9, rel=0.002)
    mixtral = load_model("mistralai/Mixtral-8x7B-v0.1")
    assert mixtral.active_parameters() + mixtral.vocabulary * mixtral.hidden == pytest.approx(
        12.88e9, rel=0.001
    )


def test_our_own_random_weight_models_have_the_documented_sizes() -> None:
    assert load_model("servetwin/llama-50m").parameters() == pytest.approx(47.8e6, rel=0.002)
    assert load_model("servetwin/llama-250m").parameters() == pytest.approx(246.7e6, rel=0.001)
    assert load_model("servetwin/llama-tiny").parameters() == pytest.approx(1e6, rel=0.1)


@pytest.mark.parametrize("name", ["Qwen3-30B-A3B", "Qwen3-32B", "Qwen3-8B", "Mixtral-8x7B-v0.1"])
@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_real_config_files_agree_with_the_built_in_descriptions(
    shared: Callable[..., Path], name: str, dtype: str
) -> None:
    owner = "mistralai" if name.startswith("Mixtral") else "Qwen"
    read = load_model(
        str(shared("data", "kernels", "aiconfigurator", "model_configs", f"{owner}--{name}_config.json"))
    )
    built_in = load_model(f"{owner}/{name}")
    assert read.parts() == built_in.parts()
    assert read.kv_bytes_per_token(dtype) == built_in.kv_bytes_per_token(dtype)
    assert (read.max_positions, read.sliding_layers) == (built_in.max_positions, 0)


def test_real_llama_configs_and_a_sliding_mixture_of_experts(shared: Callable[..., Path]) -> None:
    folder = shared("data", "kernels", "aiconfigurator", "model_configs")
    for size in ("8B", "70B"):
        read = load_model(str(folder / f"meta-llama--Meta-Llama-3.1-{size}_config.json"))
        assert read.parts() == load_model(f"meta-llama/Llama-3.1-{size}").parts()
    oss = load_model(str(folder / "openai--gpt-oss-120b_config.json"))
    # 116.8 B by OpenAI's model card (116.83 B with 5.13 B active); half of 36 layers slide over 128 tokens.
    assert oss.parameters() == 116_829_156_672
    assert oss.active_parameters() == pytest.approx(5.13e9, rel=0.01)
    assert (oss.sliding_layers, oss.sliding_window) == (18, 128)
    assert any("mxfp4" in note for note in oss.notes)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # "parameters" of the safetensors on the models' Hugging Face pages.
        ({**GPT2, "model_type": "gpt2"}, 124_439_808),
        (
            {
                "model_type": "mistral",
                "num_hidden_layers": 32,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "vocab_size": 32000,
                "sliding_window": 4096,
                "tie_word_embeddings": False,
            },
            7_241_732_096,
        ),
        (
            {
                "model_type": "qwen2",
                "num_hidden_layers": 28,
                "hidden_size": 3584,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "intermediate_size": 18944,
                "vocab_size": 152064,
                "tie_word_embeddings": False,
            },
            7_615_616_512,
        ),
        (
            {
                "model_type": "gemma2",
                "num_hidden_layers": 42,
                "hidden_size": 3584,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 256,
                "intermediate_size": 14336,
                "vocab_size": 256000,
                "sliding_window": 4096,
            },
            9_241_705_984,
        ),
        (
            {
                "model_type": "gemma",
                "num_hidden_layers": 18,
                "hidden_size": 2048,
                "num_attention_heads": 8,
                "num_key_value_heads": 1,
                "head_dim": 256,
                "intermediate_size": 16384,
                "vocab_size": 256000,
            },
            2_506_172_416,
        ),
        (
            {
                "model_type": "phi",
                "num_hidden_layers": 32,
                "hidden_size": 2560,
                "num_attention_heads": 32,
                "intermediate_size": 10240,
                "vocab_size": 51200,
                "tie_word_embeddings": False,
            },
            2_779_683_840,
        ),
        (
            {
                "model_type": "phi3",
                "num_hidden_layers": 32,
                "hidden_size": 3072,
                "num_attention_heads": 32,
                "num_key_value_heads": 32,
                "intermediate_size": 8192,
                "vocab_size": 32064,
                "tie_word_embeddings": False,
            },
            3_821_079_552,
        ),
        # DeepSeek-V3 technical report: 671 B, 37 B of them active.
        (DEEPSEEK_V3, 671_026_404_352),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_other_families_have_the_published_parameter_counts(
    config: dict[str, Any], parameters: int
) -> None:
    assert describe(config).parameters() == parameters


def test_every_family_and_switch_counts_as_transformers_does() -> None:
    """The counts are those of models that transformers 5.24.0 built from the same small configs."""
    rows = json.loads(Path(__file__).with_name("transformers_counts.json").read_text())
    assert {row["config"]["model_type"] for row in rows} >= set(FAMILIES) - {"internlm2", "kimi_k2"}
    for row in rows:
        assert describe(row["config"]).parameters() == row["parameters"], row["config"]


def test_latent_attention_caches_the_latent_and_the_rotary_key_once_per_layer() -> None:
    model = describe(DEEPSEEK_V3)
    assert model.kv_bytes_per_token("bfloat16") == 61 * (512 + 64) * 2 == 70_272
    assert model.kv_bytes_per_token("bfloat16", tensor_parallel=8) == 70_272  # every GPU needs it whole
    assert model.active_parameters() == pytest.approx(37e9, rel=0.02)
    assert any("num_nextn_predict_layers" in note for note in model.notes)


def test_multi_query_attention_has_one_kv_head() -> None:
    falcon = describe(
        {
            "model_type": "falcon",
            "num_hidden_layers": 32,
            "hidden_size": 4544,
            "num_attention_heads": 71,
            "vocab_size": 65024,
        }
    )
    assert falcon.kv_heads == 1
    assert falcon.parameters() == 6_921_720_704  # falcon-7b without its second copy of the embedding
    assert describe({**GPT2, "model_type": "gpt_bigcode"}).kv_heads == 1
    assert describe({**GPT2, "model_type": "gpt_bigcode", "multi_query": False}).kv_heads == 12


def test_an_absent_head_dim_is_the_share_of_a_head_and_a_given_one_is_believed() -> None:
    assert describe(LLAMA).head_dim == 16
    assert describe({**LLAMA, "head_dim": None}).head_dim == 16
    assert describe({**LLAMA, "head_dim": 32}).kv_bytes_per_token("float16") == 3 * 2 * 2 * 32 * 2


def test_absent_kv_heads_mean_one_for_each_head() -> None:
    assert describe(without(LLAMA, "num_key_value_heads")).kv_heads == 8


@pytest.mark.parametrize(
    ("changes", "sliding_layers"),
    [
        ({"model_type": "mistral", "sliding_window": 64}, 12),
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "llama", "sliding_window": 64}, 0),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, 0),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 64,
                "use_sliding_window": True,
                "max_window_layers": 8,
            },
            4,
        ),
        ({"model_type": "gemma2", "sliding_window": 64}, 6),
        ({"model_type": "gemma3_text", "sliding_window": 64}, 10),
        ({"model_type": "cohere2", "sliding_window": 64, "sliding_window_pattern": 4}, 9),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 64,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention"] * 5 + ["full_attention"] * 7,
            },
            5,
        ),
    ],
)
def test_the_layers_that_slide(changes: dict[str, Any], sliding_layers: int) -> None:
    model = describe({**LLAMA, "num_hidden_layers": 12, "head_dim": 16, **changes})
    assert model.sliding_layers == sliding_layers
    per_layer = 2 * 2 * 16 * 2
    assert model.kv_bytes(100, "float16") == ((12 - sliding_layers) * 100 + sliding_layers * 64) * per_layer
    assert model.kv_bytes(64, "float16") == 64 * model.kv_bytes_per_token("float16")


def test_the_language_part_of_a_multimodal_config_is_read_with_the_familys_defaults() -> None:
    nested = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "num_hidden_layers": 34,
        "intermediate_size": 10240,
    }
    model = describe(
        {"model_type": "gemma3", "text_config": nested, "vision_config": {"hidden_size": 1152}}
    )
    # The text model of google/gemma-3-4b-pt as transformers 5.24.0 builds it from this config.
    assert model.parameters() == 3_880_263_168
    assert (model.heads, model.kv_heads, model.head_dim, model.sliding_layers) == (8, 4, 256, 29)
    assert any("text_config" in note for note in model.notes)


def test_dtype_is_read_under_both_names() -> None:
    assert describe({**LLAMA, "torch_dtype": "float16"}).dtype == "float16"
    assert describe({**LLAMA, "dtype": "float32"}).dtype == "float32"


@pytest.mark.parametrize(
    "asked", ["meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B", "META-llama/llama-3.1-8b"]
)
def test_aliases_resolve_to_the_model_of_the_same_shape(asked: str) -> None:
    assert load_model(asked) == load_model("meta-llama/Llama-3.1-8B")


def test_every_built_in_model_names_its_source_and_is_listed() -> None:
    assert all(entry["source"] for entry in catalog("models").values())
    assert [row["name"] for row in describe_models()] == list(model_names())


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ModelError, match="did you mean 'Qwen/Qwen3-8B'"):
        load_model("Qwen/Qwen3-8b-x")
    with pytest.raises(ModelError, match="servetwin list models"):
        load_model("zzz")
    with pytest.raises(ModelError, match="no file or folder"):
        load_model("./nowhere/config.json")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_size": None, "vocab_size": None}, "hidden_size, vocab_size are missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number from 1 to 10,000, not 0"),
        (
            {"num_attention_heads": -8},
            "num_attention_heads must be a whole number from 1 to 10,000, not -8",
        ),
        ({"hidden_size": "128"}, 'hidden_size must be a whole number from 1 to 1,000,000,000, not "128"'),
        ({"hidden_size": 128.5}, "hidden_size must be a whole number from 1 to 1,000,000,000, not 128.5"),
        (
            {"num_key_value_heads": True},
            "num_key_value_heads must be a whole number from 1 to 1,000,000,000, not true",
        ),
        ({"num_key_value_heads": 3}, "8 attention heads cannot be shared evenly by 3 KV heads"),
        ({"hidden_size": 130}, "head_dim is missing and hidden_size 130 is not a multiple of 8 heads"),
        ({"attention_bias": "yes"}, 'attention_bias must be true or false, not "yes"'),
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": "new_thing"}, "model_type 'new_thing' is not known"),
        ({"model_type": "mamba"}, "hold no per-token KV cache"),
        ({"model_type": "jamba"}, "hold no per-token KV cache"),
        ({"model_type": "qwen3_next"}, "hold no per-token KV cache"),
        ({"model_type": "t5"}, "is an encoder-decoder"),
        ({"is_encoder_decoder": True}, "is an encoder-decoder"),
        ({"model_type": "bert"}, "is an encoder"),
        (
            {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
            "'linear_attention' layers",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types lists 1 layers, the model has 3"),
        ({"num_experts": 4}, "has 4 experts"),
        ({"model_type": "mixtral", "num_local_experts": 4}, "num_experts_per_tok is missing"),
        ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5}, "5 of 4 experts"),
        (
            {"model_type": "deepseek_v3"},
            "kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim are missing",
        ),
        (
            {"model_type": "phi", "qk_layernorm": True},
            "qk_layernorm is known for this model_type only as false",
        ),
    ],
)
def test_what_cannot_be_described_is_refused_in_one_line(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError) as caught:
        describe({**LLAMA, **changes})
    message = str(caught.value)
    assert message.startswith("config.json: ")
    assert complaint in message
    assert "\n" not in message


JSON_VALUES = (
    st.sampled_from(
        [None, True, False, "", "gpt2", 0.5, 1e300, {}, [], [None], {"model_type": "llama"}, ["attention"]]
    )
    | st.integers(-3, 200)
    | st.just(1 << 70)
)


@given(
    changes=st.dictionaries(
        st.sampled_from(
            [
                *LATENT,
                "model_type",
                "layer_types",
                "text_config",
                "head_dim",
                "sliding_window",
                "attn_config",
            ]
        ),
        JSON_VALUES,
        max_size=3,
    ),
    family=st.sampled_from([*FAMILIES, *REFUSED]),
)
def test_any_config_is_described_or_refused(changes: dict[str, Any], family: str) -> None:
    try:
        model = describe({**LATENT, "model_type": family, **changes})
    except ModelError as error:
        event("refused")
        message = str(error)
    else:
        event("described")
        message = ""
        assert model.kv_bytes_per_token("float16") > 0
        assert 0 <= model.sliding_layers <= model.layers
        assert 0 <= model.moe_layers <= model.layers
        assert 0 < model.active_parameters() <= model.parameters() + model.vocabulary * model.hidden
    assert "\n" not in message


@given(tensor_parallel=st.integers(1, 80), name=st.sampled_from(model_names()))
def test_tensor_parallel_shares_heads_evenly_or_is_refused(tensor_parallel: int, name: str) -> None:
    model = load_model(name)
    if tensor_parallel not in model.tensor_parallel_degrees():
        with pytest.raises(ModelError, match=r"parallel\.tensor"):
            model.weights_bytes("bfloat16", tensor_parallel)
        return
    whole = model.weights_bytes("bfloat16")
    share = model.weights_bytes("bfloat16", tensor_parallel)
    assert whole <= share * tensor_parallel
    kv = model.kv_bytes_per_token("bfloat16")
    repeated = max(1, tensor_parallel // model.kv_heads)
    assert model.kv_bytes_per_token("bfloat16", tensor_parallel) * tensor_parallel == kv * repeated


def test_few_kv_heads_are_repeated_with_their_projections() -> None:
    model = load_model("Qwen/Qwen3-30B-A3B")  # 4 KV heads
    assert model.kv_bytes_per_token("bfloat16", 4) == model.kv_bytes_per_token("bfloat16", 8) == 98_304 // 4
    key_values = next(part for part in model.parts() if part.name == "keys and values")
    assert key_values.per_gpu(8) == key_values.per_gpu(4) == key_values.parameters // 4


@given(tokens=st.integers(0, 10_000), more=st.integers(0, 10_000), name=st.sampled_from(model_names()))
def test_kv_bytes_are_linear_in_the_context_without_sliding_layers(
    tokens: int, more: int, name: str
) -> None:
    model = load_model(name)
    assert model.kv_bytes(tokens + more, "float16") == model.kv_bytes(tokens, "float16") + model.kv_bytes(
        more, "float16"
    )
    assert model.kv_bytes(1, "float16") == model.kv_bytes_per_token("float16")


def test_weights_bytes_come_from_the_safetensors_headers(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LLAMA)
    save_safetensors(folder / "model-00001-of-00002.safetensors", {"a": ("BF16", [10, 10], 200)})
    save_safetensors(
        folder / "model-00002-of-00002.safetensors", {"b": ("F32", [5], 20), "c": ("I8", [7], 7)}
    )
    model = load_model(str(folder))
    assert model.weights_bytes("bfloat16") == 105 * 2 + 7
    assert model.weights_bytes("float32") == 105 * 4 + 7
    assert model.name == str(folder)


def test_second_copies_and_adapters_are_not_counted_and_a_difference_is_noted(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LLAMA)
    for name in ("model.safetensors", "consolidated.safetensors", "adapter_model.safetensors"):
        save_safetensors(folder / name, {"a": ("F16", [50], 100)})
    model = load_model(str(folder / "config.json"))
    assert model.weights_bytes("float16") == 100
    assert any("the files are believed" in note for note in model.notes)


def test_an_index_says_which_files_count(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LLAMA)
    save_safetensors(folder / "one.safetensors", {"a": ("F16", [50], 100)})
    save_safetensors(folder / "two.safetensors", {"a": ("F16", [50], 100)})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    assert load_model(str(folder)).weights_bytes("float16") == 100
    index.write_text(json.dumps({"weight_map": {"a": "three.safetensors"}}))
    with pytest.raises(ModelError, match=r"names three\.safetensors, which is not in the folder"):
        load_model(str(folder))
    index.write_text("[]")
    with pytest.raises(ModelError, match="not an index"):
        load_model(str(folder))


def test_half_fetched_data_are_noted(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LLAMA)
    file = folder / "model.safetensors"
    save_safetensors(file, {"a": ("F16", [50], 100)})
    file.write_bytes(file.read_bytes()[:-1])
    model = load_model(str(folder))
    assert model.weights_bytes("float16") == 100
    assert any("incomplete" in note for note in model.notes)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "no plausible header length"),
        (b"\x08\x00\x00", "no plausible header length"),
        (struct.pack("<Q", 1 << 62) + b"{}", "no plausible header length"),
        (struct.pack("<Q", 90) + b'{"a": {}}', "ends inside its header, which should have 90 bytes, not 9"),
        (struct.pack("<Q", 4) + b"{{{{", "is not a JSON object"),
        (struct.pack("<Q", 4) + b"\xff\xfe\xff\xfe", "is not a JSON object"),
        (struct.pack("<Q", 2) + b"[]", "is not a JSON object"),
        (struct.pack("<Q", 7) + b'{"a":1}', "has no dtype and two data_offsets"),
        (
            struct.pack("<Q", 41) + b'{"a":{"dtype":"F16","data_offsets":[9,1]}}'[:41] + b"}",
            "is not a JSON object",
        ),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    ],
)
def test_a_damaged_weight_file_is_one_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    folder = folder_with(tmp_path, LLAMA)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_model(str(folder))
    assert complaint in str(caught.value)
    assert "model.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "config.json: the file is empty"),
        (b"  \n", "config.json: the file is empty"),
        (b"{\n  'a': 1}", "config.json:2: not JSON"),
        (b"\xff\xfe\x00", "config.json: not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "an endless number"),
        (b" " * (17 << 20), "too large for a config.json"),
        (b"[1]", "must hold a JSON object, not a list"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
    ],
)
def test_a_damaged_config_file_is_one_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_model(str(tmp_path))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the folder holds no config\.json"):
        load_model(str(tmp_path))


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(
        ModelError, match="dtype must be one of float32, float16, bfloat16, float8, not 'int3'"
    ):
        load_model("servetwin/llama-tiny").weights_bytes("int3")
