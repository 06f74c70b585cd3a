"""Calibration from whole iterations of a running engine, for those who cannot time its kernels.

An iteration takes a rising function of the tokens computed, which holds the weights' traffic, the host and
everything else that cannot be told apart from outside, plus a cost per sequence (head and sampling), per
query-key pair of prompts and per key read by decoding rows; all non-negative, by least absolute relative
error, so that a share of disturbed iterations moves nothing. The parts are handed on as the operators that
`calibration.fit` expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibration.curves import Floats, error_summary, hats
from calibration.measurements import Header, Measurements, Sample
from simulator.engine.plan import IterationShape
from simulator.errors import ProfileError

LEAST_ITERATIONS = 30
MOST_KNOTS = 8
ROUNDS = 30
SMALLEST_RESIDUAL = 1e-3
SMALLEST_SHARE = 0.02  # of the usual iteration, below which an expectation is no scale
FOLDS = 5  # contiguous stretches of the log, each predicted by a fit of the others
LIMITS = (
    "fitted to whole iterations: time spent by the host is part of dense, not a term of its own",
    "what the engine did outside its iterations is not seen",
)


class Iteration(NamedTuple):
    """One timed iteration of an engine; ``context_tokens`` as in `IterationShape`."""

    shape: IterationShape
    ns: float


@dataclass(frozen=True, slots=True)
class IterationFit:
    """ns of an iteration: the curve at its tokens, and a price per sequence, pair and key."""

    knots: tuple[float, ...]
    ns: tuple[float, ...]
    row_ns: float
    pair_ns: float
    key_ns: float

    def predict(self, shapes: Sequence[IterationShape]) -> Floats:
        tokens, rows, pairs, keys = _axes(shapes)
        curve = np.interp(tokens, self.knots, self.ns)
        return np.asarray(curve + self.row_ns * rows + self.pair_ns * pairs + self.key_ns * keys)


def _axes(shapes: Sequence[IterationShape]) -> tuple[Floats, Floats, Floats, Floats]:
    """Tokens computed, sequences, query-key pairs of prompts, keys read by decodes."""
    table = np.asarray(shapes, dtype=float)
    chunks, prompt, pairs, decodes, keys = table[:, :5].T
    return prompt + decodes, chunks + decodes, pairs, keys


def fit_iterations(iterations: Sequence[Iteration]) -> IterationFit:
    """The fit with the least absolute error relative to what it expects.

    Relative to what was measured, an iteration cut short by mistake would weigh more than all others.
    """
    from scipy.optimize import nnls

    tokens, rows, pairs, keys = _axes([iteration.shape for iteration in iterations])
    ns = np.asarray([iteration.ns for iteration in iterations])
    knots = token_knots(tokens)
    design = np.column_stack([hats(tokens, knots) @ np.tri(len(knots)), rows, pairs, keys])
    usual = float(np.median(ns))
    weights, solution = np.full(len(ns), 1 / usual), np.zeros(design.shape[1])
    for _ in range(ROUNDS):
        scaled = design * weights[:, None]
        scale = np.maximum(np.linalg.norm(scaled, axis=0), 1e-30)
        solution = nnls(scaled / scale, ns * weights)[0] / scale
        expected = np.maximum(design @ solution, SMALLEST_SHARE * usual)
        residuals = np.abs(design @ solution - ns) / expected
        weights = 1 / (expected * np.sqrt(np.maximum(residuals, SMALLEST_RESIDUAL)))
    *rises, row_ns, pair_ns, key_ns = solution.tolist()
    return IterationFit(tuple(knots.tolist()), tuple(np.cumsum(rises).tolist()), row_ns, pair_ns, key_ns)


def token_knots(tokens: Floats) -> Floats:
    """Numbers of tokens that the log holds, at most a few, evenly spread on a logarithmic scale."""
    places = np.unique(tokens)
    wanted = np.geomspace(places[0], places[-1], MOST_KNOTS)
    nearest = {int(np.abs(np.log(places / at)).argmin()) for at in wanted}
    return np.asarray([places[index] for index in sorted(nearest)])


def left_out_errors(iterations: Sequence[Iteration]) -> dict[str, object]:
    """Errors of whole iterations in stretches of the log that the fit was not shown."""
    errors: list[float] = []
    for stretch in np.array_split(np.arange(len(iterations)), FOLDS):
        low, high = int(stretch[0]), int(stretch[-1]) + 1
        fit = fit_iterations([*iterations[:low], *iterations[high:]])
        left_out = iterations[low:high]
        predicted = fit.predict([iteration.shape for iteration in left_out])
        errors += [guess / iteration.ns - 1 for guess, iteration in zip(predicted, left_out, strict=True)]
    return error_summary(errors, "each fifth of the log in turn, whole iterations")


def as_measurements(iterations: Sequence[Iteration], header: Header) -> Measurements:
    """The fit, as operator samples over the range that the log covers; ``header`` gets its error."""
    refuse_thin_log(iterations)
    shapes = [iteration.shape for iteration in iterations]
    fit = fit_iterations(iterations)
    samples = [
        *(Sample("dense", (at,), max(ns, 1.0)) for at, ns in zip(fit.knots, fit.ns, strict=True)),
        *_head(fit, shapes),
        *_prefill(fit, shapes),
        *_decode(fit, shapes),
    ]
    return Measurements(header, tuple(samples))


def refuse_thin_log(iterations: Sequence[Iteration]) -> None:
    """A `ProfileError` where a log is too short, or lacks prompts or decodes."""
    with_prompts = sum(iteration.shape.prefills > 0 for iteration in iterations)
    with_decodes = sum(iteration.shape.decodes > 0 for iteration in iterations)
    if len(iterations) < LEAST_ITERATIONS or not with_prompts or not with_decodes:
        raise ProfileError(
            f"a profile needs at least {LEAST_ITERATIONS} timed iterations, some with prompts and some "
            f"with decodes; there are {len(iterations)}, {with_prompts} and {with_decodes}"
        )


def _head(fit: IterationFit, shapes: Sequence[IterationShape]) -> list[Sample]:
    most = max(shape.prefills + shape.decodes for shape in shapes)
    return [Sample("head", (rows,), max(fit.row_ns * rows, 1.0)) for rows in sorted({1, most})]


def _prefill(fit: IterationFit, shapes: Sequence[IterationShape]) -> list[Sample]:
    seen = [shape for shape in shapes if shape.prefills]
    ends = {min(seen, key=_pairs), max(seen, key=_pairs)}
    return [
        Sample(
            "prefill_attention",
            (shape.prefills, shape.prefill_tokens, shape.prefill_pairs),
            max(fit.pair_ns * shape.prefill_pairs, 1.0),
        )
        for shape in sorted(ends)
    ]


def _pairs(shape: IterationShape) -> int:
    return shape.prefill_pairs


def _decode(fit: IterationFit, shapes: Sequence[IterationShape]) -> list[Sample]:
    decodes = [shape for shape in shapes if shape.decodes]
    most = max(shape.decodes for shape in decodes)
    longest = max(2, round(max(shape.context_tokens / shape.decodes for shape in decodes)))
    return [
        Sample("decode_attention", (rows, rows * context), max(fit.key_ns * rows * context, 1.0))
        for rows in sorted({1, most})
        for context in (1, longest)
    ]
