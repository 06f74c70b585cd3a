"""Where a model's weights come from: a local folder of safetensors, or a shape filled with seeded noise.

Nothing is ever downloaded, no pickle is opened and no code beside a model is run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from simulator.errors import ModelError
from simulator.models import catalog, load_model

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class Source(NamedTuple):
    """A model's shape and, where there are weights, the folder that holds them."""

    name: str
    config: PreTrainedConfig
    folder: Path | None


def find_source(name_or_path: str) -> Source:
    """The source that a scenario's ``model`` names: a built-in shape, a config.json or a model folder."""
    model = load_model(name_or_path)  # one message for unknown names, and a check of the shape
    path = Path(name_or_path).expanduser()
    if not path.exists():
        return Source(model.name, _config(catalog("models")[model.name]["config"], model.name), None)
    file = path / "config.json" if path.is_dir() else path
    config = _config(json.loads(file.read_text("utf-8")), str(file))
    return Source(str(path), config, path if path.is_dir() and holds_weights(path) else None)


def holds_weights(folder: Path) -> bool:
    """Whether a folder has safetensors; `ModelError` where it has pickles only."""
    if any(folder.glob("*.safetensors")):
        return True
    pickled = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if pickled:
        raise ModelError(
            f"{folder}: {pickled[0]} is a pickle, which can run code when it is loaded; "
            "convert the weights to safetensors"
        )
    return False


def _config(values: Mapping[str, Any], where: str) -> PreTrainedConfig:
    from transformers import AutoConfig

    if "auto_map" in values:
        raise ModelError(f"{where}: auto_map asks for code beside the model; only built-in families run")
    known = dict(values)
    kind = known.pop("model_type")
    try:
        config: PreTrainedConfig = AutoConfig.for_model(kind, **known)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{where}: {_first_line(error)}") from None
    return config


def build_module(
    source: Source, dtype: torch.dtype, device: torch.device, seed: int, attention: str
) -> PreTrainedModel:
    """The Hugging Face module, ready for inference; without a folder its weights follow from ``seed``."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        if source.folder is not None:
            module = AutoModelForCausalLM.from_pretrained(
                source.folder,
                dtype=dtype,
                attn_implementation=attention,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
            )
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                module = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                    source.config, dtype=dtype, attn_implementation=attention
                )
    except (ValueError, OSError, KeyError) as error:
        raise ModelError(f"{source.name}: {_first_line(error)}") from None
    placed: PreTrainedModel = nn.Module.to(module, device).train(False)
    return placed


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
