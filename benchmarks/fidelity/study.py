"""What every comparison with a public measurement set is made of, and how its errors are summed up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, NamedTuple

Split = Literal["fit", "test"]


class Row(NamedTuple):
    """One measured figure beside ours. ``split``: whether its configuration was used to fit anything.

    ``extrapolated``: share of the twin's time that its profile's source did not measure. ``other``: what
    another simulator publishes for the same figure, relative error.
    """

    configuration: str
    metric: str
    measured: float
    predicted: float
    split: Split = "test"
    extrapolated: float = 0.0
    other: float | None = None

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


class Target(NamedTuple):
    """What was promised: the largest error, or the largest median of absolute errors, of a metric."""

    metric: str
    most: float
    of: Literal["each", "median"]


class Study(NamedTuple):
    """One measurement set: where it is from, what had to be assumed, all rows, what was promised.

    ``each_row``: whether the page shows every row or only a line per configuration and metric.
    """

    title: str
    source: str
    setting: str
    rows: Sequence[Row]
    targets: Sequence[Target] = ()
    others: str = ""
    each_row: bool = False
    findings: str = ""


class Verdict(NamedTuple):
    """A target, what was reached on test rows, whether it is met."""

    target: Target
    reached: float
    rows: int

    @property
    def met(self) -> bool:
        return self.reached <= self.target.most


def tested(rows: Iterable[Row], metric: str) -> list[Row]:
    """Rows of a metric whose configurations were not used to fit anything."""
    return [row for row in rows if row.metric == metric and row.split == "test"]


def verdict(study: Study, target: Target) -> Verdict:
    """What a study reached of a target, on its test rows alone."""
    sizes = [abs(row.error) for row in tested(study.rows, target.metric)]
    return Verdict(target, max(sizes) if target.of == "each" else median(sizes), len(sizes))


def grouped(rows: Sequence[Row]) -> dict[tuple[str, str, Split], list[Row]]:
    """Rows by configuration, metric and split, in order of appearance."""
    groups: dict[tuple[str, str, Split], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.configuration, row.metric, row.split), []).append(row)
    return groups
