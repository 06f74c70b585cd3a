"""Vidur's profiling CSVs (github.com/microsoft/vidur, data/profiling) as operator measurements.

Each row times the kernels of one layer, in ms, at one number of tokens or, for attention, at one batch. A
file covers one part of a pass: mlp.csv all but attention, attention.csv attention, all_reduce.csv the
collective. Several files together, with what none of them holds (the LM head) from another source, make a
profile.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import median

from calibration.measurements import Header, Measurements, Sample
from simulator.errors import ProfileError
from simulator.hardware import Hardware
from simulator.models import Model
from simulator.scenario_messages import shown

SOURCE = "Vidur, data/profiling (github.com/microsoft/vidur)"
LICENCE = "MIT"
LAYER_OPERATORS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
ADDS_PER_LAYER = 2  # residuals, where norms do not add them themselves
ATTENTION_OPERATORS = ("attn_input_reshape", "attn_kv_cache_save", "attn_output_reshape")
SHAPE: Mapping[str, str] = {
    "n_head": "heads",
    "n_kv_head": "kv_heads",
    "n_embd": "hidden",
    "n_expanded_embd": "intermediate",
}
ATTENTION_SHAPE: Mapping[str, str] = {"n_q_head": "heads", "n_kv_head": "kv_heads", "n_embd": "hidden"}
BYTES = 2  # 16-bit activations
NS_PER_MS = 1e6
HINT = "expected an mlp.csv, attention.csv or all_reduce.csv of Vidur's data/profiling"
LIMITS = ("times of single kernels without the gaps between their launches",)

MOST = 1e15  # above every number that means anything


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; ``where`` names it in errors."""

    where: str
    cells: Mapping[str, str | None]

    def whole(self, column: str, least: int = 0) -> int:
        """A number of tokens, sequences or GPUs."""
        value = self._number(column, least)
        if not value.is_integer():
            raise ProfileError(f"{self.where}: {column} must be a whole number, not {value:g}")
        return int(value)

    def ms(self, operator: str) -> float:
        """A kernel's median time; an empty cell is a kernel that this model has not."""
        column = f"time_stats.{operator}.median"
        return self._number(column) if self.cells.get(column) else 0.0

    def _number(self, column: str, least: float = 0) -> float:
        text = self.cells.get(column)
        if text is None:
            raise ProfileError(f"{self.where}: has no {column}; {HINT}")
        try:
            value = float(text)
        except ValueError:
            value = nan
        if not least <= value < MOST:
            raise ProfileError(f"{self.where}: {column} must be a number >= {least:g}, not {shown(text)}")
        return value


Rows = list[Row]


def import_csv(source: Path, model: Model, hardware: Hardware, tensor_parallel: int) -> Measurements:
    """Operator measurements from one file, which its columns tell apart."""
    rows = list(_rows(source))
    columns = set(rows[0].cells) if rows else set()
    if "time_stats.mlp_up_proj.median" in columns:
        samples = _dense(source, rows, model, tensor_parallel)
    elif "time_stats.attn_decode.median" in columns:
        samples = _attention(source, rows, model, tensor_parallel)
    elif {"collective", "size", "num_workers", "time_stats.all_reduce.median"} <= columns:
        samples = _all_reduce(source, rows, model, tensor_parallel)
    else:
        raise ProfileError(f"{source}: is no table of Vidur's; {HINT}")
    header = Header(
        model=model.name,
        hardware=hardware.name,
        device=hardware.description,
        dtype="float16",
        tensor_parallel=tensor_parallel,
        engine="vidur",
        engine_version="data of 2024-11-19",
        kind="imported",
        source=f"{SOURCE}: {source.name}",
        licence=LICENCE,
        limits=LIMITS,
    )
    return Measurements(header, tuple(samples))


def _rows(source: Path) -> Iterator[Row]:
    if not source.is_file():
        raise ProfileError(f"{source}: is not a file; {HINT}")
    try:
        with source.open(encoding="utf-8", newline="") as text:
            lines = csv.DictReader(text)
            for cells in lines:
                yield Row(f"{source}:{lines.line_num}", cells)
    except (UnicodeDecodeError, csv.Error):
        raise ProfileError(f"{source}: is not a table in text; {HINT}") from None


def _dense(source: Path, rows: Rows, model: Model, ways: int) -> list[Sample]:
    _check_shape(source, rows[0], SHAPE, model)
    times: dict[int, list[float]] = {}
    for row in _on(source, rows, "num_tensor_parallel_workers", ways):
        per_layer = sum(map(row.ms, LAYER_OPERATORS)) + (ADDS_PER_LAYER - 1) * row.ms("add")
        times.setdefault(row.whole("num_tokens", 1), []).append(per_layer * model.layers + row.ms("emb"))
    return [Sample("dense", (tokens,), median(ms) * NS_PER_MS) for tokens, ms in sorted(times.items())]


def _check_shape(source: Path, row: Row, shape: Mapping[str, str], model: Model) -> None:
    for column, field in shape.items():
        was, wanted = row.whole(column), getattr(model, field)
        if was != wanted:
            raise ProfileError(f"{source}: its {column} is {was}, {model.name} has {wanted}")


def _on(source: Path, rows: Rows, column: str, ways: int) -> Rows:
    found = [row for row in rows if row.whole(column) == ways]
    if not found:
        known = sorted({row.whole(column) for row in rows})
        raise ProfileError(f"{source}: holds no rows for {ways} GPUs (it has {', '.join(map(str, known))})")
    return found


def _attention(source: Path, rows: Rows, model: Model, ways: int) -> list[Sample]:
    """Prompt chunks one at a time behind a cached prefix, and batches of equal decoding rows."""
    _check_shape(source, rows[0], ATTENTION_SHAPE, model)
    samples: list[Sample] = []
    for row in _on(source, rows, "num_tensor_parallel_workers", ways):
        batch, keys = row.whole("batch_size", 1), row.whole("kv_cache_size")
        around = sum(map(row.ms, ATTENTION_OPERATORS))
        if row.cells.get("is_prefill") == "True":
            tokens = row.whole("prefill_chunk_size", 1)
            pairs = tokens * keys + tokens * (tokens + 1) / 2
            at, kernel = (float(batch), float(batch * tokens), batch * pairs), row.ms("attn_prefill")
            samples.append(Sample("prefill_attention", at, (around + kernel) * NS_PER_MS * model.layers))
        elif keys:
            ns = (around + row.ms("attn_decode")) * NS_PER_MS * model.layers
            samples.append(Sample("decode_attention", (batch, batch * keys), ns))
    return [sample for sample in samples if sample.ns > 0]


def _all_reduce(source: Path, rows: Rows, model: Model, ways: int) -> list[Sample]:
    """Two per layer and one after the embedding, on as few nodes as were measured; sizes are in bytes."""
    reduced = [row for row in rows if row.cells["collective"] == "all_reduce"]
    found = _on(source, reduced, "num_workers", ways)
    most = max(row.whole("devices_per_node") for row in found)
    times: dict[float, list[float]] = {}
    for row in found:
        if row.whole("devices_per_node") == most:
            tokens = row.whole("size") / (model.hidden * BYTES)
            times.setdefault(tokens, []).append(row.ms("all_reduce"))
    per_pass = (2 * model.layers + 1) * NS_PER_MS
    return [
        Sample("all_reduce", (tokens,), median(ms) * per_pass)
        for tokens, ms in sorted(times.items())
        if tokens >= 1
    ]
