"""Operator measurements, on their way from measuring or importing to fitting: JSON lines with a header."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from simulator.errors import ProfileError
from simulator.scenario_messages import shown
from simulator.whole_files import write_whole

FORMAT = "servetwin-measurements/1"
MOST_GPUS = 1 << 16

AXES: Mapping[str, tuple[str, ...]] = {
    "dense": ("tokens",),
    "experts": ("tokens",),
    "all_reduce": ("tokens",),
    "head": ("rows",),
    "prefill_attention": ("chunks", "tokens", "pairs"),
    "decode_attention": ("rows", "context_tokens"),
    "mixed_decode_attention": ("rows", "context_tokens"),
}
"""What each operator's time depends on. ``pairs`` are query-key pairs, ``rows`` sequences, all summed.

``mixed_decode_attention``: what decoding rows add to the attention of an iteration that has prompt chunks.
"""


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
    host: Mapping[str, Any] = field(default_factory=dict)  # a profile's host term, where the source tells
    server: Mapping[str, Any] = field(default_factory=dict)  # and its server overhead


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
    write_whole(path, "\n".join(lines) + "\n")


def read_measurements(path: Path) -> Measurements:
    """The file's contents; a `ProfileError` with file and line if one is not what it should be."""
    lines = read_lines(path)
    if not lines:
        raise ProfileError(f"{path}: is empty; expected a header line and measurements")
    header = _header(decoded(lines[0], f"{path}:1"), f"{path}:1")
    samples = tuple(
        _sample(decoded(line, f"{path}:{number}"), f"{path}:{number}")
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


def read_lines(path: Path, *, whole_lines: bool = False) -> list[str]:
    """A text file's lines. ``whole_lines``: without a last one that has no end."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProfileError(f"{path}: is not a text file; expected JSON lines") from None
    lines = text.split("\n")
    return lines[:-1] if whole_lines or not lines[-1] else lines


def decoded(line: str, where: str) -> dict[str, Any]:
    """The JSON object in a line; ``where`` names it in errors."""

    def constant(word: str) -> NoReturn:
        raise ProfileError(f"{where}: holds {word}; every number must be finite")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ProfileError(
                    f"{where}: {shown(key)} stands there twice; every key must be there once"
                )
            found[key] = value
        return found

    try:
        value = json.loads(line, parse_constant=constant, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise ProfileError(
            f"{where}: not valid JSON: {error.msg}; every line must hold one whole JSON object, so take "
            "out a line that was cut short"
        ) from None
    except (ValueError, RecursionError):
        raise ProfileError(f"{where}: not usable JSON: a number too long or brackets too deep") from None
    if not isinstance(value, dict):
        raise ProfileError(f"{where}: must be a JSON object")
    return value


def _header(values: dict[str, Any], where: str) -> Header:
    if values.pop("format", None) != FORMAT:
        raise ProfileError(f'{where}: not a measurement file; "format" must be "{FORMAT}"')
    known = {item.name for item in fields(Header)}
    required = known - {"tables", "checks", "notes", "limits", "host", "server"}
    wrong = sorted(required - set(values)) or sorted(set(values) - known)
    if wrong:
        raise ProfileError(
            f"{where}: header field {wrong[0]!r} is {'missing' if wrong[0] in known else 'unknown'}"
        )
    for name, value in values.items():
        if not _HEADER_CHECKS.get(name, _is_text)(value):
            raise ProfileError(f"{where}: header field {name!r} cannot be {shown(value)}")
    return Header(**values)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_GPUS


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _names_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _names_errors(value: object) -> bool:
    return isinstance(value, dict) and all(_is_error(item) for item in value.values())


def _is_error(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    numbers = [value.get(name) for name in ("points", "median", "p95")]
    return all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)


def _has_time(value: object, name: str) -> bool:
    """An empty object, or one that gives this time in ns."""
    if not isinstance(value, dict):
        return False
    ns = value.get(name)
    return not value or (isinstance(ns, int | float) and not isinstance(ns, bool) and 0 <= ns < 1e18)


_HEADER_CHECKS: Mapping[str, Callable[[object], bool]] = {
    "tensor_parallel": _is_count,
    "kind": lambda value: value in ("measured", "imported"),
    "tables": _names_texts,
    "checks": _names_errors,
    "notes": _are_texts,
    "limits": _are_texts,
    "host": lambda value: _has_time(value, "iteration_ns"),
    "server": lambda value: _has_time(value, "overhead_ns"),
}


def _sample(values: dict[str, Any], where: str) -> Sample:
    operator = str(values.get("operator"))
    if operator not in AXES:
        raise ProfileError(f"{where}: operator must be one of {', '.join(AXES)}, not {shown(operator)}")
    numbers = [values.get(name) for name in (*AXES[operator], "ns")]
    for name, number in zip((*AXES[operator], "ns"), numbers, strict=True):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < 1e18:
            raise ProfileError(f"{where}: {name} must be a number > 0, not {shown(number)}")
    *at, ns = (float(number) for number in numbers if number is not None)
    return Sample(operator, tuple(at), ns)
