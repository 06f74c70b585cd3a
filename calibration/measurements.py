"""Operator measurements, on their way from measuring or importing to fitting: JSON lines with a header."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from simulator.errors import ProfileError

FORMAT = "servetwin-measurements/1"

AXES: Mapping[str, tuple[str, ...]] = {
    "dense": ("tokens",),
    "experts": ("tokens",),
    "all_reduce": ("tokens",),
    "head": ("rows",),
    "prefill_attention": ("chunks", "tokens", "pairs"),
    "decode_attention": ("rows", "context_tokens"),
}
"""What each operator's time depends on. ``pairs`` are query-key pairs, ``rows`` sequences, all summed."""


class Sample(NamedTuple):
    """One timing of one operator, all layers of the model together, on one GPU."""

    operator: str
    at: tuple[float, ...]  # along AXES[operator]
    ns: float


@dataclass(frozen=True, slots=True)
class Header:
    """What was measured, with what, by whom; ``checks`` carries errors found while importing."""

    model: str
    hardware: str
    device: str
    dtype: str
    tensor_parallel: int
    engine: str
    engine_version: str
    kind: str  # measured | imported
    source: str
    licence: str
    tables: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: Sequence[str] = ()  # what a user of the profile must know; shown with every result
    limits: Sequence[str] = ()  # what its maker did not measure


@dataclass(frozen=True, slots=True)
class Measurements:
    header: Header
    samples: tuple[Sample, ...]

    def of(self, operator: str) -> list[Sample]:
        return [sample for sample in self.samples if sample.operator == operator]


def write_measurements(measurements: Measurements, path: Path) -> None:
    """One header line, then one line per sample; written aside and renamed."""
    lines = [json.dumps({"format": FORMAT, **asdict(measurements.header)})]
    for operator, at, ns in measurements.samples:
        axes = dict(zip(AXES[operator], map(_short, at), strict=True))
        lines.append(json.dumps({"operator": operator, **axes, "ns": round(ns, 1)}))
    aside = path.with_name(f"{path.name}.part")
    aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    aside.replace(path)


def read_measurements(path: Path) -> Measurements:
    """The file's contents; a `ProfileError` with file and line if one is not what it should be."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from None
    if not lines:
        raise ProfileError(f"{path}: is empty; expected a header line and measurements")
    header = _header(_decoded(lines[0], f"{path}:1"), f"{path}:1")
    samples = tuple(
        _sample(_decoded(line, f"{path}:{number}"), f"{path}:{number}")
        for number, line in enumerate(lines[1:], start=2)
        if line.strip()
    )
    if not samples:
        raise ProfileError(f"{path}: has a header but no measurements")
    return Measurements(header, samples)


def merge(parts: Sequence[Measurements]) -> Measurements:
    """Several files of the same model, hardware, dtype and parallelism as one."""
    first = parts[0].header
    for part in parts[1:]:
        for name in ("model", "hardware", "dtype", "tensor_parallel"):
            if getattr(part.header, name) != getattr(first, name):
                raise ProfileError(
                    f"measurements do not belong together: {name} is {getattr(first, name)} in one file, "
                    f"{getattr(part.header, name)} in another"
                )
    return Measurements(first, tuple(sample for part in parts for sample in part.samples))


def _short(value: float) -> float | int:
    return int(value) if float(value).is_integer() else round(value, 3)


def _decoded(line: str, where: str) -> dict[str, Any]:
    def constant(word: str) -> NoReturn:
        raise ProfileError(f"{where}: holds {word}; every number must be finite")

    try:
        value = json.loads(line, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise ProfileError(f"{where}: not valid JSON: {error.msg}") from None
    if not isinstance(value, dict):
        raise ProfileError(f"{where}: must be a JSON object")
    return value


def _header(values: dict[str, Any], where: str) -> Header:
    if values.pop("format", None) != FORMAT:
        raise ProfileError(f'{where}: not a measurement file; "format" must be "{FORMAT}"')
    known = {item.name for item in fields(Header)}
    required = known - {"tables", "checks", "notes", "limits"}
    wrong = sorted(required - set(values)) or sorted(set(values) - known)
    if wrong:
        raise ProfileError(
            f"{where}: header field {wrong[0]!r} is {'missing' if wrong[0] in known else 'unknown'}"
        )
    return Header(**values)


def _sample(values: dict[str, Any], where: str) -> Sample:
    operator = str(values.get("operator"))
    if operator not in AXES:
        raise ProfileError(f"{where}: operator must be one of {', '.join(AXES)}, not {operator!r}")
    numbers = [values.get(name) for name in (*AXES[operator], "ns")]
    for name, number in zip((*AXES[operator], "ns"), numbers, strict=True):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < 1e18:
            raise ProfileError(f"{where}: {name} must be a number > 0, not {number!r}")
    *at, ns = (float(number) for number in numbers if number is not None)
    return Sample(operator, tuple(at), ns)
