"""Per-layer profiles of LLMServingSim (CSV, microseconds per kernel and layer) as operator measurements.

A folder holds meta.yaml and one folder per degree of tensor parallelism with dense.csv (layers by tokens),
per_sequence.csv (LM head and sampler by sequences), attention.csv and, for mixtures of experts, moe.csv.
One forward pass is each layer of `PER_LAYER` once per model layer and the rest once
(github.com/casys-kaist/LLMServingSim, profiler/). attention.csv times one attention call over a prompt
chunk, decoding rows, or both together; what the rows of a mixed call add to its chunk hardly depends on
the chunk but is several times what they cost alone, since only calls without prompt chunks let the heads
of a group share their keys.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from calibration.curves import error_summary
from calibration.measurements import Header, Measurements, Sample
from calibration.uneven_rows import LEAST_CHUNK, LONGEST_PREFIX, Spread, read_penalties
from simulator.errors import ProfileError
from simulator.hardware import Hardware
from simulator.models import Model
from simulator.scenario_messages import shown

SOURCE = "LLMServingSim, profiler/perf (github.com/casys-kaist/LLMServingSim)"
MOST = 1e15  # above every number that means anything
LICENCE = "MIT"
PER_LAYER: Mapping[str, int] = {
    "layernorm": 2,
    "qkv_proj": 1,
    "qk_norm": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
ONCE = ("embedding", "final_layernorm")
PER_SEQUENCE = ("lm_head", "sampler")
LEAST_NS = 100.0  # what rows can add that a long chunk hides completely
LIMITS = (
    "each layer was timed alone and eagerly: no launch gaps, no fusion across layers, no cache writes",
)
HIDDEN_HOST = {
    "iteration_ns": 0,
    "row_ns": 0,
    "derivation": "vLLM 0.19 plans the next iteration while the GPU computes this one (async_scheduling)",
}
ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")


class Call(NamedTuple):
    """One attention call: a chunk of so many tokens behind so many, and rows that read so many keys."""

    chunk: int
    prefix: int
    rows: int
    keys: int


def import_layers(
    source: Path,
    model: Model,
    hardware: Hardware,
    tensor_parallel: int = 1,
    *,
    spread: Spread | None = None,
    expert_ranks: int = 1,
) -> Measurements:
    """Operator measurements of one model from the folder that holds ``meta.yaml``.

    ``spread``: how unequal the contexts of decoding rows are (None: equal), see `calibration.uneven_rows`.
    ``expert_ranks``: GPUs with equal load that share the routed experts out among themselves.
    """
    meta = _meta(source)
    folder = source / f"tp{tensor_parallel}"
    if not folder.is_dir():
        found = ", ".join(sorted(path.name for path in source.glob("tp*"))) or "none"
        raise ProfileError(f"{source}: holds no tp{tensor_parallel} (it has {found})")
    calls = {Call(*(int(row[name]) for name in ATTENTION)): _us(row) for row in _rows(folder, "attention")}
    layers = model.layers
    decode, mixed = _decode(calls, layers), _mixed(calls, layers)
    if spread is not None:
        penalties = read_penalties(folder / "skew_fit.csv", spread)
        decode, mixed = penalties.applied(decode, mixed=False), penalties.applied(mixed, mixed=True)
    samples = [*_dense(folder, model), *_head(folder), *_prefill(calls, layers), *decode, *mixed]
    if model.experts:
        samples += _experts(folder, model, expert_ranks)
    header = Header(
        model=model.name,
        hardware=hardware.name,
        device=str(meta["gpu"]),
        dtype="bfloat16",
        tensor_parallel=tensor_parallel,
        engine="vllm",
        engine_version=str(meta["vllm_version"]),
        kind="imported",
        source=f"{SOURCE}, {meta['model']}",
        licence=LICENCE,
        checks={"mixed_attention": _additivity(calls)},
        limits=(*LIMITS, _evenness(spread)),
        host=HIDDEN_HOST,
    )
    return Measurements(header, tuple(samples))


def _evenness(spread: Spread | None) -> str:
    if spread is None:
        return "decoding rows of one call read equally many keys each"
    return (
        f"decoding rows are priced as if the longest reads {spread.longest_over_mean:.2f} times as many "
        "keys as the mean row, by the profile's own measurements of uneven batches"
    )


def _meta(source: Path) -> Mapping[str, Any]:
    import yaml

    path = source / "meta.yaml"
    if not path.is_file():
        raise ProfileError(
            f"{source}: holds no meta.yaml; expected a folder of LLMServingSim's profiler, such as "
            "RTX4090/meta-llama/Llama-3.1-8B/bf16"
        )
    try:
        meta = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ProfileError(f"{path}: is not YAML") from None
    if not isinstance(meta, dict) or not {"gpu", "vllm_version", "model", "variant"} <= set(meta):
        raise ProfileError(f"{path}: must give gpu, vllm_version, model and variant")
    if meta["variant"] != "bf16":
        raise ProfileError(f"{path}: variant must be bf16, not {shown(meta['variant'])}")
    return meta


def _rows(folder: Path, table: str) -> Iterator[dict[str, str]]:
    """Rows of a table; a `ProfileError` where it is missing or has other columns."""
    path = folder / f"{table}.csv"
    if not path.is_file():
        raise ProfileError(f"{path}: not found; a profile needs it")
    with path.open(encoding="utf-8", newline="") as text:
        reader = csv.DictReader(text)
        wanted = COLUMNS[table]
        if set(reader.fieldnames or ()) != set(wanted):
            given = ",".join(reader.fieldnames or ("nothing",))
            raise ProfileError(f"{path}:1: columns must be {','.join(wanted)}, not {given}")
        for row in reader:
            _check_numbers(row, f"{path}:{reader.line_num}")
            yield row


def _check_numbers(row: Mapping[str, str | None], where: str) -> None:
    """Every column but the layer's name counts something or, the time, measures it."""
    for column, text in row.items():
        if column == "layer":
            continue
        read, kind = (float, "a number") if column == "time_us" else (int, "a whole number")
        try:
            right = 0 <= read(text or "") < MOST
        except ValueError:
            right = False
        if not right:
            raise ProfileError(f"{where}: {column} must be {kind} >= 0, not {shown(text)}")


COLUMNS: Mapping[str, tuple[str, ...]] = {
    "attention": (*ATTENTION, "time_us"),
    "dense": ("layer", "tokens", "time_us"),
    "per_sequence": ("layer", "sequences", "time_us"),
    "moe": ("tokens", "activated_experts", "time_us"),
}


def _us(row: Mapping[str, str]) -> float:
    return float(row["time_us"])


def _dense(folder: Path, model: Model) -> list[Sample]:
    curves = _by_layer(folder, "dense", "tokens")
    unknown = sorted(set(curves) - {*PER_LAYER, *ONCE})
    if unknown:
        raise ProfileError(f"{folder / 'dense.csv'}: layer {unknown[0]!r} is not known")
    counts = {name: PER_LAYER.get(name, 0) * model.layers or 1 for name in curves}
    return _summed("dense", curves, counts)


def _head(folder: Path) -> list[Sample]:
    curves = _by_layer(folder, "per_sequence", "sequences")
    missing = sorted(set(PER_SEQUENCE) - set(curves))
    if missing:
        raise ProfileError(f"{folder / 'per_sequence.csv'}: holds no layer {missing[0]!r}")
    return _summed("head", curves, dict.fromkeys(PER_SEQUENCE, 1))


def _by_layer(folder: Path, table: str, axis: str) -> dict[str, dict[int, float]]:
    curves: dict[str, dict[int, float]] = {}
    for row in _rows(folder, table):
        curves.setdefault(row["layer"], {})[int(row[axis])] = _us(row)
    return curves


def _summed(
    operator: str, curves: Mapping[str, Mapping[int, float]], counts: Mapping[str, int]
) -> list[Sample]:
    """Layers of one pass together, at every place where all of them were timed."""
    places = set.intersection(*(set(curves[name]) for name in counts))
    return [
        Sample(operator, (at,), 1e3 * sum(curves[name][at] * count for name, count in counts.items()))
        for at in sorted(places)
    ]


def _prefill(calls: Mapping[Call, float], layers: int) -> list[Sample]:
    return [
        Sample(
            "prefill_attention",
            (1, call.chunk, call.chunk * call.prefix + call.chunk * (call.chunk + 1) / 2),
            us * 1e3 * layers,
        )
        for call, us in sorted(calls.items())
        if call.chunk and not call.rows
    ]


def _decode(calls: Mapping[Call, float], layers: int) -> list[Sample]:
    return [
        Sample("decode_attention", (call.rows, call.rows * call.keys), us * 1e3 * layers)
        for call, us in sorted(calls.items())
        if call.rows and not call.chunk
    ]


def _mixed(calls: Mapping[Call, float], layers: int) -> list[Sample]:
    added: dict[tuple[int, int], list[float]] = {}
    for call, us in _mixed_calls(calls):
        added.setdefault((call.rows, call.keys), []).append(us - calls[call._replace(rows=0, keys=0)])
    return [
        Sample(
            "mixed_decode_attention",
            (rows, rows * keys),
            max(median(differences) * 1e3 * layers, LEAST_NS),
        )
        for (rows, keys), differences in sorted(added.items())
    ]


def _mixed_calls(calls: Mapping[Call, float]) -> Iterator[tuple[Call, float]]:
    """Calls over a chunk worth filling the GPU with, and decoding rows, whose chunk was timed alone too."""
    for call, us in calls.items():
        alone = call._replace(rows=0, keys=0)
        if call.rows and call.chunk >= LEAST_CHUNK and call.prefix <= LONGEST_PREFIX and alone in calls:
            yield call, us


def _additivity(calls: Mapping[Call, float]) -> Mapping[str, Any]:
    """How well "chunk alone plus a cost of the rows beside it" describes the mixed calls."""
    added = {(int(s.at[0]), int(s.at[1] / s.at[0])): s.ns / 1e3 for s in _mixed(calls, 1)}
    errors = [
        (calls[call._replace(rows=0, keys=0)] + added[call.rows, call.keys]) / us - 1
        for call, us in _mixed_calls(calls)
    ]
    return error_summary(errors, "nothing: every mixed call against its chunk alone plus its rows")


def _experts(folder: Path, model: Model, ranks: int) -> list[Sample]:
    """Routed experts by tokens of one rank: as many touched as uniform choices touch on average."""
    grid: dict[int, dict[int, float]] = {}
    for row in _rows(folder, "moe"):
        grid.setdefault(int(row["tokens"]), {})[int(row["activated_experts"])] = _us(row)
    return [
        Sample(
            "experts",
            (tokens,),
            1e3 * model.moe_layers * _at(line, touched_experts(model, tokens * ranks) / ranks),
        )
        for tokens, line in sorted(grid.items())
    ]


def touched_experts(model: Model, tokens: int) -> float:
    """Experts that at least one of ``tokens`` independent tokens chooses, on average."""
    return model.experts * (1 - (1 - model.experts_per_token / model.experts) ** tokens)


def _at(line: Mapping[int, float], touched: float) -> float:
    """Time between the measured numbers of touched experts; beyond the last, in proportion."""
    known = sorted(line)
    if touched >= known[-1]:
        return line[known[-1]] * (touched / known[-1])
    if touched <= known[0]:
        return line[known[0]]
    high = next(count for count in known if count >= touched)
    low = max(count for count in known if count < high)
    share = (touched - low) / (high - low)
    return line[low] * (1 - share) + line[high] * share
