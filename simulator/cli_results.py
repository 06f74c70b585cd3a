"""What a run leaves behind when asked to: results, a report and a timeline."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simulator.cli_output import check_file, check_output, talk

if TYPE_CHECKING:
    from backend.live import LiveRun
    from simulator.limits import Phase
    from simulator.scenario import Scenario
    from simulator.simulation import Simulation


class Wanted(NamedTuple):
    """Where to; None: not wanted."""

    output: Path | None
    report: Path | None
    timeline: Path | None

    def check(self) -> None:
        """Refuse, before any work, what could not be written afterwards."""
        check_output(self.output)
        check_file("--report", self.report, self.output)
        check_file("--timeline", self.timeline, self.output, (".json",))

    def write(self, scenario: Scenario, done: Simulation | LiveRun, command: str, folder: Path) -> None:
        """The results first, so that a report that fails costs nothing. ``folder``: of the scenario."""
        from simulator.scenario_file import to_yaml

        resolved = to_yaml(scenario)
        if self.output is not None:
            from simulator.results import write_results

            write_results(self.output, resolved, done.summary, done.tables)
        if self.timeline is not None:
            from simulator.timeline import write_timeline

            write_timeline(self.timeline, done.tables)
        if self.report is not None:
            from simulator.report import write_report

            write_report(
                self.report,
                resolved,
                done.summary,
                done.tables,
                done.notes,
                replicas=scenario.engines,
                found=_phases(scenario, done, folder),
                command=command,
            )

    def tell(self) -> None:
        """Where everything is."""
        for what, path in zip(("results", "report", "timeline"), self, strict=True):
            if path is not None:
                talk(f"{what}: {path}")


def _phases(scenario: Scenario, done: Simulation | LiveRun, folder: Path) -> Sequence[Phase]:
    """What limited the run, where all its engines are alike."""
    from simulator.limits import phases
    from simulator.models import load_model
    from simulator.scenario_file import model_path

    if any(True for _ in scenario.groups()):
        return ()
    return phases(done.tables, scenario, load_model(model_path(scenario.model, folder)))


def command_line(verb: str, scenario: Path, overrides: Sequence[str], seed: int | None) -> str:
    """The command that gives the same figures again."""
    words = ["servetwin", verb, str(scenario)]
    for override in overrides:
        words += ["--set", override]
    return shlex.join([*words, *(["--seed", str(seed)] if seed is not None else [])])
