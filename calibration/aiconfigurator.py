"""Kernel tables of NVIDIA's AIConfigurator (Parquet, ms per kernel and layer) as operator measurements.

The composition of a layer is that of aiconfigurator-core 0.12.0: four GEMMs, two norms with residual, an
activation, attention, two all-reduces; GEMM shapes that the tables lack are interpolated between those
they have. See `Roofline.elementwise_ns` for the kernels that are computed rather than measured.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration.curves import error_summary
from calibration.measurements import Header, Measurements, Sample
from simulator.errors import ProfileError
from simulator.hardware import Hardware
from simulator.models import Model
from simulator.roofline import Roofline

SOURCE = "aiconfigurator-core 0.12.0 (PyPI), aiconfigurator_core/systems/data"
LICENCE = "Apache-2.0, (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES"
SYSTEMS = {"h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm", "a100-80-sxm": "a100_sxm", "l40s": "l40s"}
DTYPES = {"bfloat16": "bfloat16", "float8": "fp8"}
EXPERT_LOAD = "power_law_1.2"  # how unevenly tokens choose experts; the tables also hold 1.01 and balanced
LIMITS = (
    "norms, activations, rotary embedding and cache writes are computed: 0.8 of bandwidth, 3 us a kernel",
    "prompt attention was measured without a prefix; chunks behind one are priced by their query-key pairs",
    "each kernel was timed again and again, so a KV cache below some 50 MB was read from L2",
)
LARGEST = 1e15  # no shape and no time in ms is as large
SITE_CHECK = (1024, 16384)  # GEMM widths among which left-out shapes are predicted


def import_tables(
    source: Path,
    model: Model,
    hardware: Hardware,
    dtype: str,
    tensor_parallel: int,
    *,
    engine: str = "vllm",
) -> Measurements:
    """Operator measurements of one model from the tables under ``source`` (the folder holding ``data``)."""
    if model.latent_attention or model.sliding_layers:
        raise ProfileError(
            f"{model.name}: tables for latent or sliding-window attention cannot be imported yet"
        )
    tables = _Tables(source, hardware, dtype, engine)
    layer = _Layers(tables, model, Roofline(model, hardware, dtype, tensor_parallel))
    samples = [*layer.dense(), *layer.head(), *layer.prefill_attention(), *layer.decode_attention()]
    if model.experts:
        samples += layer.experts()
    if tensor_parallel > 1:
        samples += layer.all_reduce()
    header = Header(
        model=model.name,
        hardware=hardware.name,
        device=tables.device,
        dtype=dtype,
        tensor_parallel=tensor_parallel,
        engine=engine,
        engine_version=tables.versions["gemm_perf"],
        kind="imported",
        source=SOURCE,
        licence=LICENCE,
        tables=dict(tables.versions),
        checks={"gemm_shapes": tables.gemms.left_out_shapes()},
        limits=LIMITS,
    )
    return Measurements(header, tuple(samples))


class _Tables:
    """Finds and reads the tables of one system and engine, newest version of each."""

    def __init__(self, source: Path, hardware: Hardware, dtype: str, engine: str) -> None:
        system = SYSTEMS.get(hardware.name)
        if system is None or dtype not in DTYPES:
            raise ProfileError(
                f"the tables cover {', '.join(SYSTEMS)} in {' and '.join(DTYPES)}, "
                f"not {hardware.name} in {dtype}"
            )
        self.folder = source / "data" / system
        if not self.folder.is_dir():
            raise ProfileError(
                f"{source}: holds no data/{system}; expected the systems folder of aiconfigurator-core"
            )
        self.engine = engine
        self.dtype = DTYPES[dtype]
        self.versions: dict[str, str] = {}
        devices = self.rows("gemm", "gemm_perf", "device", "true limit 1")
        if not devices:
            raise ProfileError(f"{self.folder}: the gemm_perf table is empty")
        self.device = str(devices[0][0])
        sites = self.rows("gemm", "gemm_perf", "n, k, m, latency", f"gemm_dtype = '{self.dtype}'")
        self.gemms = GemmTable(sites, hardware, 1 if dtype == "float8" else 2)

    def rows(self, family: str, table: str, columns: str, where: str) -> list[tuple[Any, ...]]:
        """Rows of a table as tuples of ``columns``."""
        import duckdb

        files = sorted(self.folder.glob(f"{family}/{self.engine}/*/{table}.parquet"), key=_version)
        if not files:
            raise ProfileError(f"{self.folder}: holds no {family}/{self.engine}/*/{table}.parquet")
        self.versions[table] = files[-1].parent.name
        try:
            with duckdb.connect() as connection:
                return _selected(connection, str(files[-1]), columns, where)
        except duckdb.Error as error:
            raise ProfileError(f"{files[-1]}: not such a table: {str(error).splitlines()[0]}") from None


def _selected(connection: Any, file: str, columns: str, where: str) -> list[tuple[Any, ...]]:
    """Rows of one Parquet file, none of them with a gap."""
    names = connection.execute("select * from read_parquet(?) limit 0", [file]).description or []
    if "window_size" in {column[0] for column in names}:
        where += " and window_size = 0"
    query = f"select {columns} from read_parquet(?) where {where}"
    rows: list[tuple[Any, ...]] = connection.execute(query, [file]).fetchall()
    for row in rows:
        if not all(_is_usable(value) for value in row) and columns != "device":
            raise ProfileError(f"{file}: a row of {columns} is {row}; every number must be finite and > 0")
    return rows


def _is_usable(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < LARGEST


def _version(path: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", path.parent.name)]


class GemmTable:
    """Latency in ms of (m, n, k) matrix products, measured on a grid of shapes (n, k) and rows m."""

    def __init__(self, rows: Sequence[tuple[Any, ...]], hardware: Hardware, weight_bytes: int) -> None:
        self.sites: dict[tuple[int, int], dict[int, float]] = {}
        for n, k, m, latency in rows:
            self.sites.setdefault((n, k), {})[m] = latency
        self.axis = sorted({n for n, _ in self.sites} & {k for _, k in self.sites})
        self.flops = hardware.flops_per_s["bfloat16"]
        self.bandwidth = hardware.bandwidth_bytes_per_s
        self.weight_bytes = weight_bytes

    def curve(self, n: int, k: int, axis: Sequence[int] | None = None) -> dict[int, float]:
        """Latency by m: measured, or bilinear between the surrounding shapes; beyond the widest ones
        their utilisation of the roofline is held."""
        if axis is None and (n, k) in self.sites:
            return self.sites[n, k]
        widths = self.axis if axis is None else axis
        if len(widths) < 2:
            raise ProfileError("the GEMM table has too few shapes: fewer than two widths are both n and k")
        corners = [(a, b, sa * sb) for a, sa in _around(n, widths) for b, sb in _around(k, widths)]
        rows = set.intersection(*(set(self.sites.get((a, b), ())) for a, b, _ in corners))
        if not rows:
            raise ProfileError(f"the GEMM table has no shapes around n={n}, k={k}")
        return {
            m: sum(share * self._stretched(m, a, b, n, k) for a, b, share in corners) for m in sorted(rows)
        }

    def _stretched(self, m: int, near_n: int, near_k: int, n: int, k: int) -> float:
        """A measured latency, scaled by the roofline along the axes on which (n, k) is off the grid."""
        far_n, far_k = (n if n > self.axis[-1] else near_n), (k if k > self.axis[-1] else near_k)
        return self.sites[near_n, near_k][m] * (self.bound(m, far_n, far_k) / self.bound(m, near_n, near_k))

    def bound(self, m: int, n: int, k: int) -> float:
        moved = self.weight_bytes * n * k + 2 * m * (n + k)
        return max(2 * m * n * k / self.flops, moved / self.bandwidth)

    def left_out_shapes(self) -> dict[str, object]:
        """Error of predicting a measured shape without any shape that shares its n or its k."""
        low, high = SITE_CHECK
        errors: list[float] = []
        for (n, k), measured in sorted(self.sites.items()):
            if low <= n < high and low <= k < high:
                axis = [width for width in self.axis if width not in (n, k)]
                predicted = self.curve(n, k, axis)
                errors += [predicted[m] / measured[m] - 1 for m in predicted if m in measured]
        return error_summary(errors, "every measured GEMM shape, with all shapes of equal n or equal k")


def _around(width: int, axis: Sequence[int]) -> list[tuple[int, float]]:
    """Neighbours on the axis with their linear weights; beyond the end the last two count alike, since
    single shapes scatter by several percent with the kernel that the library happens to choose."""
    index = bisect_left(axis, width)
    if index == len(axis):
        return [(axis[-2], 0.5), (axis[-1], 0.5)]
    if index == 0 or axis[index] == width:
        return [(axis[index], 1.0)]
    low, high = axis[index - 1], axis[index]
    share = (width - low) / (high - low)
    return [(low, 1 - share), (high, share)]


@dataclass(frozen=True, slots=True)
class _Layers:
    """One model's operators, all layers together, out of single kernels."""

    tables: _Tables
    model: Model
    bounds: Roofline

    def dense(self) -> list[Sample]:
        gemms = [(self.tables.gemms.curve(n, k), count) for n, k, count in self.gemm_shapes()]
        rows = set.intersection(*(set(curve) for curve, _ in gemms))
        return [
            Sample(
                "dense",
                (m,),
                sum(curve[m] * count for curve, count in gemms) * 1e6 + self.bounds.elementwise_ns(m),
            )
            for m in sorted(rows)
        ]

    def gemm_shapes(self) -> list[tuple[int, int, int]]:
        """(n, k, how many times) of the matrix products of all layers, on one GPU."""
        model, ways = self.model, self.bounds.tensor_parallel
        queries = model.heads // ways * model.head_dim
        keys = max(1, model.kv_heads // ways) * model.head_dim
        shapes = [
            (queries + 2 * keys, model.hidden, model.layers),
            (model.hidden, queries, model.layers),
            *self._feed_forward(model.intermediate // ways, model.dense_layers),
            *self._feed_forward(model.shared_intermediate // ways, model.moe_layers),
            (model.experts, model.hidden, model.moe_layers),
        ]
        return [(n, k, count) for n, k, count in shapes if n and k and count]

    def _feed_forward(self, inner: int, layers: int) -> list[tuple[int, int, int]]:
        hidden = self.model.hidden
        return [((2 if self.model.gated_mlp else 1) * inner, hidden, layers), (hidden, inner, layers)]

    def head(self) -> list[Sample]:
        curve = self.tables.gemms.curve(
            -(-self.model.vocabulary // self.bounds.tensor_parallel), self.model.hidden
        )
        return [Sample("head", (m,), latency * 1e6) for m, latency in sorted(curve.items())]

    def prefill_attention(self) -> list[Sample]:
        rows = self._attention("context_attention_perf", "batch_size, isl, latency", "isl > 1 and step = 0")
        return [
            Sample("prefill_attention", (b, b * isl, b * isl * (isl + 1) / 2), self._all_layers(latency))
            for b, isl, latency in rows
        ]

    def decode_attention(self) -> list[Sample]:
        rows = self._attention("generation_attention_perf", "batch_size, step + 1, latency", "isl = 1")
        return [
            Sample("decode_attention", (b, b * keys), self._all_layers(latency))
            for b, keys, latency in rows
        ]

    def _attention(self, table: str, columns: str, where: str) -> list[tuple[Any, ...]]:
        model, ways = self.model, self.bounds.tensor_parallel
        heads, kv_heads = model.heads // ways, max(1, model.kv_heads // ways)
        shape = (
            f"num_heads = {heads} and num_key_value_heads = {kv_heads} and head_dim = {model.head_dim} "
            f"and kv_cache_dtype = 'bfloat16' and attn_dtype = 'bfloat16'"
        )
        rows = self.tables.rows("attention", table, columns, f"{where} and {shape}")
        if not rows:
            raise ProfileError(
                f"{table} has no rows for {heads} heads, {kv_heads} KV heads of {model.head_dim} on one GPU"
            )
        return sorted(rows)

    def experts(self) -> list[Sample]:
        model = self.model
        shape: Mapping[str, object] = {
            "hidden_size": model.hidden,
            "inter_size": model.expert_intermediate,
            "topk": model.experts_per_token,
            "num_experts": model.experts,
            "moe_tp_size": self.bounds.tensor_parallel,
            "moe_ep_size": 1,
        }
        where = " and ".join(f"{name} = {value}" for name, value in shape.items())
        where += f" and distribution = '{EXPERT_LOAD}' and moe_dtype = '{self.tables.dtype}'"
        rows = self.tables.rows("moe", "moe_perf", "num_tokens, latency", where)
        if not rows:
            raise ProfileError(f"moe_perf has no rows where {where}")
        return [
            Sample("experts", (tokens,), latency * 1e6 * model.moe_layers)
            for tokens, latency in sorted(rows)
        ]

    def all_reduce(self) -> list[Sample]:
        """Two per layer and one after the embedding, under CUDA graphs; message sizes are in elements."""
        where = f"num_gpus = {self.bounds.tensor_parallel} and backend = '{self.tables.engine}_graph'"
        rows = self.tables.rows("comm", "custom_allreduce_perf", "message_size, latency", where)
        if not rows:
            raise ProfileError(f"custom_allreduce_perf has no rows where {where}")
        per_pass = (2 * self.model.layers + 1) * 1e6
        return [
            Sample("all_reduce", (size / self.model.hidden,), latency * per_pass)
            for size, latency in sorted(rows)
            if size >= self.model.hidden / 2
        ]

    def _all_layers(self, latency_ms: float) -> float:
        return latency_ms * 1e6 * self.model.layers
