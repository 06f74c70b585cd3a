"""What is loaded, and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from backend.models import load_live_model
from backend.weights import build_module, find_source
from simulator.errors import ModelError
from tests.backend.live.tiny import LLAMA

CPU = torch.device("cpu")


def refused(tmp_path: Path, **options: str) -> str:
    with pytest.raises(ModelError) as caught:
        load_live_model(str(tmp_path), **{"dtype": "float32", **options})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pickled_weights_are_refused_unopened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **LLAMA}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    assert "pytorch_model.bin is a pickle" in refused(tmp_path)


def test_code_beside_a_model_is_not_run(tmp_path: Path) -> None:
    config = {"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "mine.Model"}, **LLAMA}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    assert "auto_map" in refused(tmp_path)


def test_a_damaged_weights_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **LLAMA}))
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 64)
    refused(tmp_path)


def test_a_family_without_the_attention_interface_is_refused(tmp_path: Path) -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "bloom", "n_layer": 1, "n_head": 2, **shape})
    )
    assert "attention" in refused(tmp_path)


def test_unknown_names_dtypes_and_devices_are_one_line_each(tmp_path: Path) -> None:
    assert "did you mean" in refused(Path("servetwin/llama-tny"))
    assert "float8" in refused(Path("servetwin/llama-tiny"), dtype="float8")
    assert "device" in refused(Path("servetwin/llama-tiny"), device="tpu9")
    if not torch.cuda.is_available():
        assert "no GPU" in refused(Path("servetwin/llama-tiny"), device="cuda")


def test_random_weights_follow_from_the_seed_alone() -> None:
    source = find_source("servetwin/llama-tiny")
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = build_module(source, torch.float32, CPU, 3, "eager")
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator was touched"
    again, other = (build_module(source, torch.float32, CPU, seed, "eager") for seed in (3, 4))
    weights = [module.model.layers[1].mlp.up_proj.weight for module in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_loaded_folder_has_no_random_weights_note(folder_of) -> None:
    assert load_live_model(str(folder_of("llama")), "float32").notices == ()
    shape_only = load_live_model(str(folder_of("llama") / "config.json"), "float32")
    assert "random weights" in shape_only.notices[0]
