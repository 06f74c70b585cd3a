"""What a result depends on, as one name: the resolved scenario, the files that it reads, the version.

Two runs with the same address give the same figures, so a result that is kept under its address is never
computed again, and one of another version or of a changed trace is never taken for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from simulator.scenario import Scenario
from simulator.scenario_file import PATH_KEYS

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""Files of a model folder whose content is taken as told by name and size: reading it takes minutes."""


class ReadFile(NamedTuple):
    """A file or folder that a scenario reads, as the scenario names it, and what it holds."""

    name: str
    digest: str


def address_of(scenario: Scenario, files: tuple[ReadFile, ...]) -> str:
    """64 hexadecimal digits; the scenario's name plays no part."""
    values = scenario.model_dump(mode="json", exclude={"name"})
    told = json.dumps([version(), values, files], sort_keys=True, allow_nan=False)
    return hashlib.sha256(told.encode()).hexdigest()


@cache
def version() -> str:
    """ServeTwin's version with a digest of its source, shipped profiles and catalogues; and numpy's.

    numpy's generators may draw other numbers from one of its versions to the next (NEP 19).
    """
    digest = hashlib.sha256()
    for folder in (resources.files("simulator"), resources.files("calibration").joinpath("profiles")):
        for name, file in _sources(folder, ""):
            digest.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return f"{_release()}+{digest.hexdigest()[:12]} numpy {metadata.version('numpy')}"


def _release() -> str:
    try:
        return metadata.version("servetwin")
    except metadata.PackageNotFoundError:
        return "source"


def _sources(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _sources(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith((".py", ".json")):
            yield f"{prefix}{entry.name}", entry


def files_read(scenario: Scenario, folder: Path, known: dict[Path, str]) -> tuple[ReadFile, ...]:
    """Every file that the scenario names, in the order of its keys.

    ``known``: digests already taken, which this adds to.
    """
    found = []
    for name in _named(scenario.model_dump(mode="json")):
        path = folder / Path(name).expanduser()
        if path.exists():
            if path not in known:
                known[path] = digest_of(path)
            found.append(ReadFile(name, known[path]))
    return tuple(found)


def _named(values: Mapping[str, Any] | list[Any]) -> Iterator[str]:
    items = values.items() if isinstance(values, Mapping) else enumerate(values)
    for key, value in items:
        if isinstance(value, (Mapping, list)):
            yield from _named(value)
        elif key in PATH_KEYS and isinstance(value, str):
            yield value


def digest_of(path: Path) -> str:
    """Content of a file, or names and content of all in a folder, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    if path.is_dir():
        for file in sorted(entry for entry in path.rglob("*") if entry.is_file()):
            held = str(file.stat().st_size) if file.suffix in WEIGHTS else digest_of(file)
            digest.update(f"{file.relative_to(path).as_posix()}\0{held}\0".encode())
        return digest.hexdigest()
    state = path.stat()
    return _content(path, state.st_size, state.st_mtime_ns)


@cache
def _content(path: Path, _size_bytes: int, _changed_ns: int) -> str:
    """Digest of a file in the state that its size and time of change tell."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
