"""Fits each operator's shape to its samples, and predicts samples that a fit has not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np

from calibration.curves import (
    Floats,
    error_summary,
    evaluate,
    hats,
    isotonic,
    monotone_fit,
    simplified,
    two_lines,
)
from calibration.measurements import Sample
from simulator.cost_model import DecodeTable
from simulator.errors import ProfileError
from simulator.profile import Curve, DecodeAttention, PrefillAttention
from simulator.roofline import Roofline

TOLERANCE = 0.004  # relative error that leaving out a knot may cost
EXACT = 0.01  # relative error of every sample within which two lines are the whole story
NEIGHBOURS = (
    1.02  # grid columns closer than this ratio are left out together: one would give the other away
)
KNOTS_PER_OCTAVE = 1.25  # of effective pairs
PER_TOKEN = (0.0, 8.0, 16.0, 32.0, 64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0)
PER_CHUNK = (0.0, 1e2, 1e3, 3e3, 1e4, 3e4, 1e5)
SWEEPS = 40  # of averaging neighbours along both axes until decode attention rises along both

Split = tuple[Sequence[Sample], Sequence[Sample]]


def fit_curve(samples: Sequence[Sample]) -> Curve:
    """A rising curve with a knot at every measured place."""
    at = [sample.at[0] for sample in samples]
    return monotone_fit(at, [sample.ns for sample in samples], sorted(set(at)))


def fit_compact_curve(samples: Sequence[Sample]) -> Curve:
    """The same, without the knots that say nothing."""
    lines = two_lines([sample.at[0] for sample in samples], [sample.ns for sample in samples], EXACT)
    return lines or simplified(fit_curve(samples), TOLERANCE)


def curve_errors(samples: Sequence[Sample]) -> dict[str, object]:
    """Errors at grid columns that the fit was not shown; the outermost are not left out."""
    errors: list[float] = []
    for rest, left_out in _columns(samples, axis=0):
        at, ns = [sample.at[0] for sample in left_out], [sample.ns for sample in left_out]
        errors += list(evaluate(fit_curve(rest), at) / np.asarray(ns) - 1)
    return error_summary(errors, "each grid column in turn, with columns within 2 %")


def fit_prefill(samples: Sequence[Sample]) -> PrefillAttention:
    """Weights and curve of effective pairs with the least mean absolute relative error."""
    per_token, per_chunk = min(
        ((token, chunk) for token in PER_TOKEN for chunk in PER_CHUNK),
        key=lambda weights: _scatter(samples, *weights),
    )
    at = _effective(samples, per_token, per_chunk)
    ns = [sample.ns for sample in samples]
    curve = two_lines(at.tolist(), ns, EXACT) or monotone_fit(at.tolist(), ns, _pair_knots(at))
    keys = max(2 * pairs / tokens for _, tokens, pairs in (sample.at for sample in samples))
    return PrefillAttention(per_token, per_chunk, simplified(curve, TOLERANCE), float(round(keys)))


def prefill_errors(samples: Sequence[Sample]) -> dict[str, object]:
    """Errors at prompt lengths that the fit was not shown."""
    errors: list[float] = []
    for rest, left_out in _columns(samples, key=lambda sample: round(sample.at[1] / sample.at[0])):
        fit = fit_prefill(rest)
        at = _effective(left_out, fit.pairs_per_token, fit.pairs_per_chunk)
        errors += list(evaluate(fit.curve, at) / np.asarray([sample.ns for sample in left_out]) - 1)
    return error_summary(errors, "each prompt length in turn, all batch sizes")


def _effective(samples: Sequence[Sample], per_token: float, per_chunk: float) -> Floats:
    chunks, tokens, pairs = np.asarray([sample.at for sample in samples]).T
    return np.asarray(pairs + per_token * tokens + per_chunk * chunks)


def _pair_knots(at: Floats) -> list[float]:
    """Evenly over the octaves, but none in the air: some sample is nearer to it than to its neighbours."""
    octaves = np.log2(at.max() / at.min())
    count = max(2, round(octaves * KNOTS_PER_OCTAVE))
    knots = np.geomspace(at.min(), at.max(), count)
    reach = (np.log(knots[1]) - np.log(knots[0])) / 2 * 1.001
    held = [np.abs(np.log(at / knot)).min() <= reach for knot in knots]
    return [float(round(knot)) for knot, is_held in zip(knots, held, strict=True) if is_held]


def _scatter(samples: Sequence[Sample], per_token: float, per_chunk: float) -> float:
    """Mean absolute error of the best smooth curve in log space, which is quicker than a monotone fit."""
    at = np.log(_effective(samples, per_token, per_chunk))
    times = np.log([sample.ns for sample in samples])
    knots = np.linspace(
        at.min(), at.max(), max(2, round((at.max() - at.min()) / np.log(2) * KNOTS_PER_OCTAVE))
    )
    smooth = 0.02 * np.diff(np.eye(len(knots)), 2, axis=0)
    design = hats(at, knots)
    system = np.vstack([design, smooth])
    solution = np.linalg.lstsq(system, np.concatenate([times, np.zeros(len(smooth))]), rcond=None)[0]
    return float(np.abs(design @ solution - times).mean())


def fit_decode(samples: Sequence[Sample]) -> DecodeAttention:
    """The measured grid, made to rise with the keys read and with the rows."""
    table = {
        (round(rows), round(total / rows)): ns for (rows, total), ns in ((s.at, s.ns) for s in samples)
    }
    rows, contexts = sorted({row for row, _ in table}), sorted({context for _, context in table})
    lines = {row: _measured_line(table, row, contexts) for row in rows}
    _make_rising(lines, contexts)
    return DecodeAttention(
        tuple(rows), tuple(contexts), tuple(tuple(float(ns) for ns in lines[row]) for row in rows)
    )


def _measured_line(table: dict[tuple[int, int], float], row: int, contexts: Sequence[int]) -> Floats:
    """Times of one row count up to its longest context; gaps are filled by straight lines."""
    known = [context for context in contexts if (row, context) in table]
    if known[0] != contexts[0]:
        raise ProfileError(f"decode_attention: {row} rows were not measured at context {contexts[0]}")
    reach = [context for context in contexts if context <= known[-1]]
    return np.interp(reach, known, [table[row, context] for context in known])


def _make_rising(lines: dict[int, Floats], contexts: Sequence[int]) -> None:
    """Average neighbours that are out of order, along contexts and along rows of equal total keys."""
    totals: dict[int, list[tuple[int, int]]] = {}
    for row, line in lines.items():
        for index in range(len(line)):
            totals.setdefault(row * contexts[index], []).append((row, index))
    for _ in range(SWEEPS):
        for row, line in lines.items():
            lines[row] = np.exp(isotonic(np.log(line)))
        for cells in totals.values():
            ordered = np.exp(isotonic(np.log([lines[row][index] for row, index in cells])))
            for (row, index), ns in zip(cells, ordered, strict=True):
                lines[row][index] = ns
    _finish_rising(lines, list(totals.values()))


def _finish_rising(lines: dict[int, Floats], diagonals: Sequence[Sequence[tuple[int, int]]]) -> None:
    """Lift what the averaging left out of order, also along rows of equal context."""
    lower = {cell: before for cells in diagonals for before, cell in pairwise(cells)}
    fewer: Floats = np.zeros(0)
    for row, line in lines.items():
        for index in range(len(line)):
            before = lower.get((row, index))
            floors = [line[index - 1] if index else 0.0, lines[before[0]][before[1]] if before else 0.0]
            floors += [fewer[index]] if index < len(fewer) else []
            line[index] = max(round(float(line[index])), *floors)
        fewer = line


def decode_errors(samples: Sequence[Sample], bounds: Roofline) -> dict[str, object]:
    """Errors at row counts and at context lengths that the fit was not shown."""
    by_rows = _columns(samples, axis=0)
    by_context = _columns(samples, key=lambda sample: round(sample.at[1] / sample.at[0]))
    errors: list[float] = []
    for rest, left_out in (*by_rows, *by_context):
        table = DecodeTable(fit_decode(rest), bounds)
        errors += [table.ns(round(s.at[0]), s.at[1]) / s.ns - 1 for s in left_out if _inside(s, rest)]
    return error_summary(errors, "each row count in turn, then each context length, inside the grid")


def _inside(sample: Sample, rest: Sequence[Sample]) -> bool:
    """Whether the rest reaches this far for some larger and some smaller row count."""
    rows, total = sample.at
    reach = [s.at[0] for s in rest if s.at[1] >= total]
    return any(other >= rows for other in reach) and any(other <= rows for other in reach)


def _columns(
    samples: Sequence[Sample], axis: int = 0, key: Callable[[Sample], float] | None = None
) -> Iterator[Split]:
    """(rest, left out) for each inner group of grid columns, as places along an axis or by a key."""
    place = key or (lambda sample: sample.at[axis])
    ordered = sorted(samples, key=place)
    groups: list[list[Sample]] = []
    for at, column in groupby(ordered, key=place):
        if groups and at > 20 and at <= NEIGHBOURS * place(groups[-1][-1]):
            groups[-1].extend(column)
        else:
            groups.append(list(column))
    for index in range(1, len(groups) - 1):
        rest = [sample for other, group in enumerate(groups) if other != index for sample in group]
        yield rest, groups[index]
