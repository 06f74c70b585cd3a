"""How large the weights in a model folder are, from the headers of its safetensors files alone.

Format (github.com/huggingface/safetensors, README): eight bytes of little-endian header length, a JSON
header naming each tensor's dtype, shape and ``data_offsets``, then the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.errors import ModelError
from simulator.models import StoredWeights

HEADER_LIMIT_BYTES = 100_000_000  # the limit of the reference reader
FLOAT_BYTES: Mapping[str, int] = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
INDEX = "model.safetensors.index.json"


def read_stored_weights(folder: Path) -> tuple[StoredWeights | None, tuple[str, ...]]:
    """The sum over the folder's weight files, and what is odd about them; None where there are none."""
    paths = weight_files(folder)
    if not paths:
        return None, ()
    floats = others = 0
    notes = []
    for path in paths:
        end = 0
        for dtype, start, end in _tensors(path):
            floats += (end - start) // FLOAT_BYTES[dtype] if dtype in FLOAT_BYTES else 0
            others += 0 if dtype in FLOAT_BYTES else end - start
        notes += _shortfall(path, end)
    return StoredWeights(floats, others), tuple(notes)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files an engine would load: those of the index, or all but a second copy and adapters."""
    if (folder / INDEX).is_file():
        return _indexed(folder / INDEX)
    paths = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    kept = [path for path in paths if not path.name.startswith(("consolidated", "adapter_"))]
    return tuple(kept or [path for path in paths if path.name.startswith("consolidated")])


def _indexed(index: Path) -> tuple[Path, ...]:
    try:
        names = json.loads(index.read_text("utf-8"))["weight_map"].values()
        paths = tuple(index.parent / name for name in sorted(dict.fromkeys(names)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelError(f"{index}: not an index of weight files (JSON with a 'weight_map')") from None
    for path in paths:
        if not path.is_file():
            raise ModelError(f"{index}: names {path.name}, which is not in the folder")
    return paths


def _tensors(path: Path) -> list[tuple[str, int, int]]:
    """Dtype, start and end of each tensor's data, in order of end."""
    entries = _header(path)
    entries.pop("__metadata__", None)
    tensors = [_tensor(path, name, entry) for name, entry in entries.items()]
    return sorted(tensors, key=lambda tensor: tensor[2])


def _tensor(path: Path, name: str, entry: Any) -> tuple[str, int, int]:
    try:
        start, end = map(int, entry["data_offsets"])
        dtype = str(entry["dtype"])
    except (TypeError, KeyError, ValueError, OverflowError):
        raise ModelError(f"{path}: header entry {name!r} has no dtype and two data_offsets") from None
    if not 0 <= start <= end:
        raise ModelError(f"{path}: header entry {name!r} has data_offsets {start} to {end}")
    return dtype, start, end


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        prefix = file.read(8)
        if prefix == b"version ":
            raise ModelError(
                f"{path}: is a Git LFS pointer, not the weights; fetch them with: git lfs pull"
            )
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or not 2 <= length <= HEADER_LIMIT_BYTES:
            raise ModelError(
                f"{path}: is not a safetensors file (no plausible header length in its first 8 bytes)"
            )
        text = file.read(length)
    if len(text) < length:
        raise ModelError(
            f"{path}: ends inside its header, which should have {length:,} bytes, not {len(text):,}"
        )
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ModelError(f"{path}: the safetensors header is not a JSON object")
    return header


def _shortfall(path: Path, data_end: int) -> list[str]:
    """A half-fetched file still tells its size in the header, so it is noted rather than refused."""
    size = path.stat().st_size
    with path.open("rb") as file:
        expected = 8 + int.from_bytes(file.read(8), "little") + data_end
    return [f"{path.name} is incomplete: {size:,} of {expected:,} bytes"] if size < expected else []
