"""Whether the error lies in what an iteration costs: the cost model against a live run's own iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np
from numpy import float64, int64
from numpy.typing import NDArray

from simulator.cost_model import CostModel, DecodeLine
from simulator.engine.plan import IterationShape
from simulator.run_tables import RunTables
from simulator.validation_composition import unrolled

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = ("prompts only", "decodes only", "both")


class ScaledCost:
    """A cost model on a machine that takes ``factor`` times as long for everything."""

    __slots__ = ("cost", "factor")

    def __init__(self, cost: CostModel, factor: float) -> None:
        self.cost = cost
        self.factor = factor

    def iteration_ns(self, shape: IterationShape) -> int:
        """Duration in ns, at least 1."""
        if not shape.prefills:
            base, slope, _ = self.decode_line(shape.decodes, shape.context_tokens)
            return int(base + slope * shape.context_tokens) or 1
        return int(self.factor * self.cost.iteration_ns(shape)) or 1

    def decode_line(self, decodes: int, context_tokens: int) -> DecodeLine:
        """The scaled line."""
        base, slope, until = self.cost.decode_line(decodes, context_tokens)
        return DecodeLine(self.factor * base, self.factor * slope, until)

    def extrapolated(self, columns: Mapping[str, NDArray[int64]]) -> NDArray[np.bool_]:
        """As in the model that is scaled."""
        return self.cost.extrapolated(columns)


@dataclass(frozen=True, slots=True)
class KindCost:
    """Iterations of one kind: how many, and how long they took and should have taken together."""

    kind: str
    iterations: int
    measured_ns: float
    predicted_ns: float


@dataclass(frozen=True, slots=True)
class IterationCost:
    """A live run's iterations priced by the cost model. Times in ns, of all iterations together.

    ``between_ns``: from the end of one to the start of the next while answers were under way; the twin's
    next iteration starts at once, so its cost has to cover this too. ``typical_error``, ``p95_error``: of a
    single iteration, absolute and relative to what it took.
    """

    kinds: tuple[KindCost, ...]
    between_ns: float
    typical_error: float
    p95_error: float

    @property
    def measured_ns(self) -> float:
        """All that the cost model has to account for."""
        return sum(kind.measured_ns for kind in self.kinds) + self.between_ns

    @property
    def predicted_ns(self) -> float:
        """All that it does account for."""
        return sum(kind.predicted_ns for kind in self.kinds)

    @property
    def ratio(self) -> float:
        """Measured over predicted: how much slower the live iterations were than the cost model says."""
        measured, predicted = self.measured_ns, self.predicted_ns
        return measured / predicted if measured and predicted else 1.0


def iteration_cost(live: RunTables, cost: CostModel) -> IterationCost:
    """Price every iteration of a live run."""
    steps = unrolled(live)
    columns = [steps[name].tolist() for name in IterationShape._fields]
    shapes = map(IterationShape._make, zip(*columns, strict=True))
    predicted = np.array([cost.iteration_ns(shape) for shape in shapes], float64)
    measured = _durations_ns(live)
    error = np.abs(predicted / np.maximum(measured, 1) - 1) if measured.size else np.zeros(1)
    prompts, decodes = steps["prefills"] > 0, steps["decodes"] > 0
    masks = (prompts & ~decodes, ~prompts, prompts & decodes)
    return IterationCost(
        tuple(
            KindCost(kind, int(mask.sum()), float(measured[mask].sum()), float(predicted[mask].sum()))
            for kind, mask in zip(KINDS, masks, strict=True)
            if mask.any()
        ),
        _between_ns(live),
        float(np.median(error)),
        float(np.quantile(error, 0.95)),
    )


def _durations_ns(tables: RunTables) -> NDArray[float64]:
    table, repeats = tables.iterations, tables.iterations["repeats"]
    return np.repeat((table["end_ns"] - table["start_ns"]) / np.maximum(repeats, 1), repeats)


def _between_ns(tables: RunTables) -> float:
    """Time between an iteration and the next one while some request was under way."""
    ends, starts = tables.iterations["end_ns"][:-1], tables.iterations["start_ns"][1:]
    begun, finished = (
        np.sort(column[column >= 0])
        for column in (tables.requests["scheduled_ns"], tables.requests["finished_ns"])
    )
    under_way = np.searchsorted(begun, ends, "right") - np.searchsorted(finished, ends, "right")
    return float((starts - ends)[under_way > 0].sum())


def drifts(rounds: Sequence[Sequence[float]], base: Sequence[float]) -> list[float]:
    """How much slower the machine was around each run than when ``base`` was measured.

    ``rounds``: times of the reference points before the first run, and after each. A round's factor is the
    geometric mean over the points; a run's is the middle one of the factors before it, after it, and of the
    whole session, so that a hiccup during one round is not taken for the machine's speed during two runs.
    """
    factors = [
        exp(fmean(log(time / then) for time, then in zip(times, base, strict=True))) for times in rounds
    ]
    usual = median(factors)
    return [median((before, after, usual)) for before, after in pairwise(factors)]
