"""Where a sweep keeps its points: one file each, named after its address, whole or not there at all.

Files rather than a database, because a cluster's folder is often on a network file system, where SQLite's
locks cannot be relied on, and because any tool can read them. Equal sweeps leave equal bytes.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulator.errors import UserError
from simulator.sweeps.work import Record, record_of
from simulator.whole_files import write_whole

SWEEP, POINTS = "sweep.json", "points"
FORMAT = "servetwin-sweep/1"

Definition = Mapping[str, Any]


class Store:
    """The points that are known, on the disk or, without a directory, in memory."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._memory: dict[str, Record] = {}

    def get(self, address: str) -> Record | None:
        """The record of a point; None where there is none, or a damaged one that must be computed again."""
        if self.directory is None:
            return self._memory.get(address)
        try:
            return record_of(self._place(address).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def put(self, address: str, record: Record) -> None:
        """Keep a record: written aside, flushed to the disk and renamed."""
        if self.directory is None:
            self._memory[address] = record
            return
        place = self._place(address)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, record.text())

    def count(self) -> int:
        """How many points are kept, of this and of earlier sweeps."""
        if self.directory is None:
            return len(self._memory)
        return sum(1 for _ in (self.directory / POINTS).glob("*/*.json"))

    def clear_parts(self) -> None:
        """Remove what writers that were killed left beside the points; for the one who holds the store."""
        if self.directory is not None:
            for part in self.directory.rglob("*.part"):
                part.unlink(missing_ok=True)

    def _place(self, address: str) -> Path:
        assert self.directory is not None
        return self.directory / POINTS / address[:2] / f"{address}.json"


@contextmanager
def open_store(
    directory: Path | None, definition: Definition, addresses: Collection[str], *, resume: bool
) -> Iterator[tuple[Store, tuple[str, ...]]]:
    """The store of a sweep and what one should know of it; refuses a directory that holds something else.

    ``addresses``: of the points that are known beforehand. With ``resume`` the directory may hold the same
    sweep, or another one that shares points with it. Until the end nobody else may open the directory.
    """
    store = Store(directory)
    if directory is None:
        yield store, ()
        return
    earlier = _earlier(directory)
    notes: tuple[str, ...] = ()
    if earlier is not None:
        notes = _check(store, earlier, definition, addresses, resume=resume)
    directory.mkdir(parents=True, exist_ok=True)
    with _held(directory):
        store.clear_parts()
        if earlier != definition:
            write_whole(directory / SWEEP, json.dumps(definition, indent=2, ensure_ascii=False) + "\n")
        yield store, notes


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Lock a folder for this process; a lock of the system, so that it ends with whoever dies."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = f"--output {directory}: another sweep is at work there; wait for its end"
            raise UserError(told) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def _earlier(directory: Path) -> dict[str, Any] | None:
    """The sweep that a directory holds, if any; a UserError where it holds something else."""
    label = f"--output {directory}"
    if not directory.exists():
        return None
    if not directory.is_dir():
        raise UserError(f"{label}: is a file, not a folder")
    path = directory / SWEEP
    if not path.exists():
        found = sorted(entry.name for entry in directory.iterdir() if entry.suffix != ".part")
        if found:
            raise UserError(f"{label}: holds {found[0]}, which is no sweep; name a new or an empty folder")
        return None
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        earlier = None
    if (
        not isinstance(earlier, dict)
        or earlier.get("format") != FORMAT
        or not isinstance(earlier.get("vary"), dict)
    ):
        raise UserError(f"{label}: {SWEEP} is not that of a sweep; name a new or an empty folder")
    return earlier


def _check(
    store: Store,
    earlier: Definition,
    definition: Definition,
    addresses: Collection[str],
    *,
    resume: bool,
) -> tuple[str, ...]:
    label = f"--output {store.directory}"
    same = _question(earlier) == _question(definition)
    known = sum(store.get(address) is not None for address in addresses)
    if not resume and (same or known):
        told = "this sweep" if same else "another sweep that shares points with this one"
        raise UserError(f"{label}: holds {told}, {store.count()} points of it done; add --resume to go on")
    if not (same or known):
        name, keys = earlier.get("name"), ", ".join(earlier.get("vary", {}))
        raise UserError(f"{label}: holds a different sweep, {name!r} over {keys}; name another folder")
    if not same:
        return (f"{store.directory} held another sweep; its points that this one shares are reused",)
    if earlier.get("version") != definition["version"]:
        return (
            f"{store.directory} was begun with ServeTwin {earlier.get('version')}; "
            "those points are computed afresh",
        )
    return ()


def _question(definition: Definition) -> dict[str, Any]:
    """What a sweep asks, whoever answers it."""
    return {key: value for key, value in definition.items() if key not in ("version", "trials", "name")}
