"""One point of a sweep, as any process on any machine computes it: the same text everywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import UserError
from simulator.scenario import Scenario
from simulator.sweeps.address import ReadFile, digest_of, version

PRIVATE = ("scenario", "simulation")
"""Parts of a summary that differ between equal runs: what it was called and how long it took."""


class Task(NamedTuple):
    """What a worker needs: where relative paths start, which files it must find, whose code it must run."""

    scenario: Scenario
    folder: str
    files: tuple[ReadFile, ...]
    version: str


class WorkerUnfitError(UserError):
    """A worker runs other code or sees other files, so that nothing it computes would be the answer."""


class Record(NamedTuple):
    """What came of a point: a summary, or the reason why there is none.

    ``lasting``: another run would end the same way, so this need never be computed again.
    """

    summary: dict[str, Any] | None
    notes: tuple[str, ...] = ()
    reason: str = ""
    lasting: bool = True

    def text(self) -> str:
        """As it is kept: one JSON document, with the same bytes for the same record, and its digest."""
        fields = self._asdict() | {"notes": list(self.notes)}
        del fields["lasting"]
        return _json(fields | {"digest": _digest(fields)}) + "\n"


def record_of(text: str) -> Record:
    """Read back what `Record.text` wrote; a ValueError where that is not what it is, to the last digit."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or fields.pop("digest", None) != _digest(fields):
        raise ValueError("not the record of a point, or it was changed")
    return Record(fields["summary"], tuple(fields["notes"]), fields["reason"])


def _digest(fields: Mapping[str, Any]) -> str:
    return sha256(_json(fields).encode()).hexdigest()


def _json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, allow_nan=False, indent=1)


def evaluate(task: Task) -> Record:
    """Simulate a point. What the user could put right, and even a fault of ours, ends this point alone."""
    _check(task)
    from simulator.simulation import simulate

    try:
        simulation = simulate(task.scenario, folder=Path(task.folder))
    except UserError as error:
        return Record(None, reason=str(error))
    except MemoryError:
        return Record(None, reason="there is not enough memory for this", lasting=False)
    except Exception as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        reason = f"a fault of ServeTwin ({told}); simulate this point alone to see where"
        return Record(None, reason=reason, lasting=False)
    summary = {key: value for key, value in simulation.summary.items() if key not in PRIVATE}
    return Record(summary, simulation.notes)


def _check(task: Task) -> None:
    if task.version != version():
        raise WorkerUnfitError(
            f"a worker runs ServeTwin {version()}, this is {task.version}: install the same everywhere, "
            "and leave its source alone while a sweep runs"
        )
    for name, digest in task.files:
        path = Path(task.folder) / Path(name).expanduser()
        if not path.exists() or digest_of(path) != digest:
            state = "holds something else" if path.exists() else "is not there"
            raise WorkerUnfitError(
                f"{path} {state} on a worker: workers need the scenario's files under the same path"
            )
