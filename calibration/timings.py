"""The log of a measuring session: raw timings in the order of their making, with references in between.

JSON lines that are only ever appended to, so that a session that is killed keeps all but its last line.
Times are as the clock told them; `calibration.drift` takes a machine's drift out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any, NamedTuple

from calibration.grid import POINT_AXES, Point
from simulator.errors import ProfileError
from simulator.scenario_messages import shown

FORMAT = "servetwin-timings/1"
LARGEST = 1e18  # above every time in ns that means anything
REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Environment:
    """What was measured on what. Files continue where all of it but the clocks is equal."""

    model: str
    hardware: str
    dtype: str
    device: str
    driver: str
    clocks: str
    threads: int
    kernels: str
    path: str
    block_size: int
    versions: Mapping[str, str]


class Timing(NamedTuple):
    """One timing. ``waited_ns``: how long its threads wanted a processor and had none. ``at_s``: measuring
    time since the file was begun."""

    piece: str
    at: tuple[int, ...]
    ns: int
    waited_ns: int
    at_s: float

    @property
    def point(self) -> Point:
        return Point(self.piece, self.at)


class TimingLog:
    """An open file of timings, which knows what it holds already."""

    def __init__(self, path: Path, environment: Environment) -> None:
        self.timings: list[Timing] = []
        if path.exists() and path.stat().st_size:
            found, self.timings = read_timings(path, unfinished=True)
            _check_same(path, found, environment)
        self.spent_s = self.timings[-1].at_s if self.timings else 0.0
        self._file: IO[str] = _reopened(path)
        if not path.stat().st_size:
            self._append({"format": FORMAT, **asdict(environment)})

    def write(self, timing: Timing) -> None:
        self.timings.append(timing)
        axes = dict(zip(POINT_AXES.get(timing.piece, ()), timing.at, strict=True))
        entry = {"piece": timing.piece, **axes, "ns": timing.ns}
        if timing.waited_ns:
            entry["waited_ns"] = timing.waited_ns
        self._append({**entry, "at_s": round(timing.at_s, 3)})

    def _append(self, entry: Mapping[str, object]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _reopened(path: Path) -> IO[str]:
    """The file, ready to be appended to; a last line that was cut short is cut off."""
    if path.exists():
        whole = path.read_bytes()
        kept = whole[: whole.rfind(b"\n") + 1]
        if kept != whole:
            with path.open("r+b") as file:
                file.truncate(len(kept))
    return path.open("a", encoding="utf-8")


def _check_same(path: Path, found: Environment, wanted: Environment) -> None:
    for item in fields(Environment):
        was, now = getattr(found, item.name), getattr(wanted, item.name)
        if item.name != "clocks" and was != now:
            raise ProfileError(
                f"{path}: its {item.name} is {_told(was)}, here it is {_told(now)}: "
                "give another --output, or remove the file"
            )


def _told(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return str(value)


def is_timings(path: Path) -> bool:
    """Whether a file says that it holds timings."""
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(file.readline(1 << 20))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.get("format") == FORMAT


def read_timings(path: Path, *, unfinished: bool = False) -> tuple[Environment, list[Timing]]:
    """A file's header and timings. ``unfinished``: a last line without its end is left out."""
    from calibration.measurements import decoded, read_lines

    lines = read_lines(path, whole_lines=unfinished)
    if not lines:
        raise ProfileError(f"{path}: is empty; expected a header line and timings")
    environment = _environment(decoded(lines[0], f"{path}:1"), f"{path}:1")
    timings = [
        _timing(decoded(line, f"{path}:{number}"), f"{path}:{number}")
        for number, line in enumerate(lines[1:], start=2)
        if line.strip()
    ]
    return environment, timings


def _environment(values: dict[str, Any], where: str) -> Environment:
    if values.pop("format", None) != FORMAT:
        raise ProfileError(f'{where}: not a file of timings; "format" must be "{FORMAT}"')
    for item in fields(Environment):
        kind = {"threads": int, "block_size": int, "versions": dict}.get(item.name, str)
        value = values.get(item.name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ProfileError(
                f"{where}: header field {item.name!r} must be {_kind(kind)}, not {shown(value)}"
            )
    return Environment(**{item.name: values[item.name] for item in fields(Environment)})


def _kind(kind: type) -> str:
    return {int: "a whole number", dict: "an object"}.get(kind, "text")


def _timing(values: dict[str, Any], where: str) -> Timing:
    piece = str(values.get("piece"))
    if piece != REFERENCE and piece not in POINT_AXES:
        raise ProfileError(f"{where}: piece must be one of {', '.join(POINT_AXES)}, not {shown(piece)}")
    axes = POINT_AXES.get(piece, ())
    at = tuple(_number(values, name, where, least=0, whole=True) for name in axes)
    return Timing(
        piece,
        tuple(int(value) for value in at),
        int(_number(values, "ns", where, least=1, whole=True)),
        int(_number({"waited_ns": 0, **values}, "waited_ns", where, least=0, whole=True)),
        float(_number(values, "at_s", where, least=0)),
    )


def _number(values: Mapping[str, Any], name: str, where: str, *, least: int, whole: bool = False) -> float:
    value = values.get(name)
    kinds = int if whole else int | float
    if not isinstance(value, kinds) or isinstance(value, bool) or not least <= value < LARGEST:
        raise ProfileError(
            f"{where}: {name} must be a {'whole ' if whole else ''}number >= {least}, not {shown(value)}"
        )
    found: float = value
    return found
