"""From operator measurements to a profile: fitted shapes, their errors on left-out data, provenance."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from calibration.measurements import Measurements
from calibration.operators import (
    curve_errors,
    decode_errors,
    fit_compact_curve,
    fit_decode,
    fit_prefill,
    prefill_errors,
)
from simulator.errors import ProfileError
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.profile import (
    CHECKSUM,
    FORMAT,
    TOKEN_OPERATORS,
    Curve,
    DecodeAttention,
    PrefillAttention,
    Profile,
    checksum,
    parse_profile,
)
from simulator.roofline import Roofline
from simulator.whole_files import write_whole

LINE_WIDTH = 116
WHOLE = "iteration"
BORROWED = "host time per iteration is borrowed: it was measured on other hardware than this"


def fit_profile(measurements: Measurements, host: Mapping[str, Any], check: bool = True) -> dict[str, Any]:
    """The profile's JSON fields. ``host``: its ``host`` field; ``check``: measure held-out errors too."""
    header = measurements.header
    bounds = Roofline(
        load_model(header.model), load_hardware(header.hardware), header.dtype, header.tensor_parallel
    )
    single = (
        check and WHOLE not in header.checks
    )  # operators made out of whole iterations have no own error
    fields: dict[str, Any] = {
        "format": FORMAT,
        "kind": header.kind,
        "model": header.model,
        "hardware": header.hardware,
        "dtype": header.dtype,
        "tensor_parallel": header.tensor_parallel,
        "source": _source(measurements),
        "notes": [*header.notes, *([BORROWED] if host.get("borrowed") else [])],
        "held_out_error": {**header.checks, **(_held_out(measurements, bounds) if single else {})},
        "host": dict(host),
        **({"server": dict(header.server)} if header.server else {}),
        "operators": _operators(measurements),
    }
    return fields


def _source(measurements: Measurements) -> dict[str, Any]:
    header = measurements.header
    return {
        "name": header.source,
        "licence": header.licence,
        "device": header.device,
        "engine": header.engine,
        "engine_version": header.engine_version,
        "tables": dict(header.tables),
        "samples": len(measurements.samples),
        "limits": list(header.limits),
    }


def _operators(measurements: Measurements) -> dict[str, Any]:
    for required in ("dense", "head", "prefill_attention", "decode_attention"):
        if not measurements.of(required):
            raise ProfileError(f"measurements hold no {required!r}; a profile needs it")
    prefill = fit_prefill(measurements.of("prefill_attention"))
    decode = fit_decode(measurements.of("decode_attention"))
    mixed = measurements.of("mixed_decode_attention")
    return {
        **{
            name: _curve(fit_compact_curve(measurements.of(name)), "tokens")
            for name in TOKEN_OPERATORS
            if measurements.of(name)
        },
        "head": _curve(fit_compact_curve(measurements.of("head")), "rows"),
        "prefill_attention": attention_fields(prefill),
        "decode_attention": table_fields(decode),
        **({"mixed_decode_attention": table_fields(fit_decode(mixed))} if mixed else {}),
    }


def attention_fields(fit: PrefillAttention) -> dict[str, Any]:
    """Attention of prompts as a profile holds it."""
    return {
        "pairs_per_token": fit.pairs_per_token,
        "pairs_per_chunk": fit.pairs_per_chunk,
        "keys_per_token": fit.keys_per_token,
        **_curve(fit.curve, "effective_pairs"),
    }


def table_fields(fit: DecodeAttention) -> dict[str, Any]:
    """Attention of decoding rows as a profile holds it."""
    return {
        "rows": list(fit.rows),
        "contexts": list(fit.contexts),
        "ns": [[round(ns) for ns in line] for line in fit.ns],
    }


def _curve(curve: Curve, axis: str) -> dict[str, Any]:
    return {axis: [_short(knot) for knot in curve.knots], "ns": [round(ns) for ns in curve.ns]}


def _short(value: float) -> float | int:
    return int(value) if float(value).is_integer() else round(value, 3)


def _held_out(measurements: Measurements, bounds: Roofline) -> dict[str, Any]:
    curves = {
        name: curve_errors(measurements.of(name))
        for name in (*TOKEN_OPERATORS, "head")
        if measurements.of(name)
    }
    tables = {
        name: decode_errors(measurements.of(name), bounds)
        for name in ("decode_attention", "mixed_decode_attention")
        if measurements.of(name)
    }
    return {
        **curves,
        "prefill_attention": prefill_errors(measurements.of("prefill_attention")),
        **tables,
    }


def host_term(hardware: str, tensor_parallel: int, layers: int) -> dict[str, Any]:
    """The shipped host term for a model with this many layers; see `calibration.host`."""
    terms = json.loads(resources.files("calibration").joinpath("host.json").read_text(encoding="utf-8"))
    ranks = math.log2(tensor_parallel)
    return {
        "iteration_ns": round(terms["iteration_ns"] + terms["layer_ns"] * layers * ranks),
        "row_ns": round(terms["row_ns"] * ranks),
        "borrowed": hardware not in terms["hardware"],
        "measured_on": terms["hardware"],
        "derivation": terms["derivation"],
        "test_error": terms["test_error"],
    }


def as_profile(fields: Mapping[str, Any], name: str) -> Profile:
    """The fields as the simulator reads them, with all its checks."""
    return parse_profile(json.dumps(fields), name, name)


def write_profile(fields: Mapping[str, Any], path: Path) -> None:
    """Write a profile aside, check that it reads back, and rename it."""
    text = compact_json({**fields, CHECKSUM: checksum(fields)})
    parse_profile(text, path.stem, str(path))
    write_whole(path, text)


def compact_json(fields: Mapping[str, Any]) -> str:
    """Indented JSON with lists of numbers run together, so that a profile fits on a few screens."""
    text = json.dumps(fields, indent=1, ensure_ascii=False)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: _wrapped(found.group()), text) + "\n"


def _wrapped(numbers: str) -> str:
    items: Sequence[str] = numbers.strip("[]").replace(",", " ").split()
    lines, line = [], ""
    for item in items:
        if len(line) + len(item) + 2 > LINE_WIDTH:
            lines.append(line)
            line = ""
        line += f" {item}," if line else f"{item},"
    return "[" + "\n    ".join([*lines, line]).removesuffix(",") + "]"
