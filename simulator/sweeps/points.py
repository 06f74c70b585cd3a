"""The points of a sweep: each combination of values with the scenario it gives, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.errors import ScenarioError, UserError
from simulator.scenario import Scenario
from simulator.scenario_file import Draft, read_draft
from simulator.scenario_lines import Source, parse
from simulator.sweeps.address import ReadFile, address_of, files_read, version
from simulator.sweeps.work import Task


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of varied values, as written; ``address`` is empty where they give no scenario."""

    values: Mapping[str, str]
    scenario: Scenario | None
    files: tuple[ReadFile, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A scenario as it stands, with what is laid over all of its points."""

    draft: Draft
    overrides: tuple[str, ...] = ()
    seed: int | None = None

    def points(self, combinations: Iterable[Mapping[str, str]]) -> list[Point]:
        """Every combination, in order."""
        known: dict[Path, str] = {}
        return [self._point(values, known) for values in combinations]

    def _point(self, values: Mapping[str, str], known: dict[Path, str]) -> Point:
        varied = [f"{key}={value}" for key, value in values.items()]
        try:
            scenario, notes = read_draft(self.draft, self.overrides, self.seed, varied)
        except UserError as error:
            return Point(values, None, reason=str(error))
        files = files_read(scenario, self.draft.folder, known)
        return Point(values, scenario, files, notes, address=address_of(scenario, files))

    def tasks(self, points: Sequence[Point], *, check_files: bool) -> dict[str, Task]:
        """What workers need, by address. ``check_files``: they may see other files than this machine."""
        folder = str(self.draft.folder.absolute())
        return {
            point.address: Task(point.scenario, folder, point.files if check_files else (), version())
            for point in points
            if point.scenario is not None
        }

    def values(self) -> object:
        """The plain values of the scenario as it stands, before anything is laid over it."""
        source = Source(self.draft.label, numbered=self.draft.numbered)
        parse(source, self.draft.text)
        return source.values


def refuse_hopeless(points: Sequence[Point]) -> None:
    """Raise what is wrong, each line once, where none of some points gives a scenario."""
    if points and not any(point.scenario for point in points):
        lines = dict.fromkeys(line for point in points for line in point.reason.splitlines())
        raise ScenarioError("\n".join(lines))
