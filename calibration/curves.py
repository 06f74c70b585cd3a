"""Monotone piecewise-linear curves through noisy timings, by relative error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ProfileError
from simulator.profile import Curve

Floats = NDArray[np.float64]
ROUNDS = 6  # of reweighting towards least absolute error, which outliers do not move
SMALLEST_RESIDUAL = 3e-3
KNEE = 1.001  # nearer to an end there is none


def hats(at: Floats, knots: Floats) -> Floats:
    """Interpolation weights, shape (points, knots); points outside hold the nearest knot."""
    index = np.clip(np.searchsorted(knots, at), 1, len(knots) - 1) if len(knots) > 1 else None
    weights = np.zeros((len(at), len(knots)))
    if index is None:
        weights[:, 0] = 1.0
        return weights
    share = np.clip((at - knots[index - 1]) / (knots[index] - knots[index - 1]), 0.0, 1.0)
    points = np.arange(len(at))
    weights[points, index - 1] = 1 - share
    weights[points, index] = share
    return weights


def monotone_fit(at: Sequence[float], ns: Sequence[float], knots: Sequence[float]) -> Curve:
    """The rising, non-negative curve on ``knots`` with the least absolute relative error."""
    from scipy.optimize import nnls

    points, times, axis = (np.asarray(values, dtype=float) for values in (at, ns, knots))
    rises = (
        hats(points, axis) @ np.tri(len(axis)) / times[:, None]
    )  # value at a knot = sum of rises up to it
    weights = np.ones(len(times))
    solution = np.zeros(len(axis))
    for _ in range(ROUNDS):
        scaled = rises * weights[:, None]
        scale = np.maximum(np.linalg.norm(scaled, axis=0), 1e-30)
        solution = nnls(scaled / scale, weights)[0] / scale
        residuals = np.abs(rises @ solution - 1)
        if residuals.max() < SMALLEST_RESIDUAL:
            break
        weights = 1 / np.sqrt(np.maximum(residuals, SMALLEST_RESIDUAL))
    return Curve(tuple(axis.tolist()), tuple(np.cumsum(solution).tolist()))


def two_lines(at: Sequence[float], ns: Sequence[float], within: float) -> Curve | None:
    """The higher of two rising lines, as of memory traffic and arithmetic, where that is the whole story.

    None where some point lies farther off than ``within``, relative. The knee need not be a measured place.
    """
    points, times = np.asarray(at, dtype=float), np.asarray(ns, dtype=float)
    places = np.unique(points)
    splits = [places[0], *((places[1:] + places[:-1]) / 2)]
    pairs = [
        (_line(points, times, points <= split), _line(points, times, points > split)) for split in splits
    ]
    worst = [float(np.abs(_higher(pair, points) / times - 1).max()) for pair in pairs]
    if min(worst) > within:
        return None
    (base, slope), (other_base, other_slope) = pair = pairs[worst.index(min(worst))]
    knots = {float(places[0]), float(places[-1])}
    if other_slope != slope:
        knee = (base - other_base) / (other_slope - slope)
        knots |= {knee} if KNEE * places[0] < knee < places[-1] / KNEE else set()
    axis = np.asarray(sorted(knots))
    return Curve(tuple(axis.tolist()), tuple(_higher(pair, axis).tolist()))


def _higher(pair: Sequence[tuple[float, float]], at: Floats) -> Floats:
    return np.asarray(np.max([base + slope * at for base, slope in pair], axis=0))


def _line(at: Floats, ns: Floats, mask: NDArray[np.bool_]) -> tuple[float, float]:
    """The non-negative base and slope with the least relative error; of no points: nothing at all."""
    from scipy.optimize import nnls

    if not mask.any():
        return 0.0, 0.0
    design = np.stack([1 / ns[mask], at[mask] / ns[mask]], axis=1)
    base, slope = nnls(design, np.ones(int(mask.sum())))[0]
    return float(base), float(slope)


def evaluate(curve: Curve, at: Sequence[float] | Floats) -> Floats:
    """The curve at interior points; held constant outside."""
    return np.asarray(np.interp(np.asarray(at, dtype=float), curve.knots, curve.ns))


def simplified(curve: Curve, tolerance: float) -> Curve:
    """The curve without knots that straight lines between the others meet within a relative tolerance."""
    kept = [0]
    while kept[-1] < len(curve.knots) - 1:
        kept.append(_farthest(curve, kept[-1], tolerance))
    return Curve(tuple(curve.knots[i] for i in kept), tuple(curve.ns[i] for i in kept))


def _farthest(curve: Curve, start: int, tolerance: float) -> int:
    knots, ns = np.asarray(curve.knots), np.asarray(curve.ns)
    best = start + 1
    for end in range(start + 2, len(knots)):
        line = np.interp(knots[start:end], knots[[start, end]], ns[[start, end]])
        if np.all(np.abs(line - ns[start:end]) <= tolerance * ns[start:end]):
            best = end
    return best


def isotonic(values: Floats) -> Floats:
    """The nearest rising sequence to ``values`` (pool adjacent violators, equal weights)."""
    means: list[float] = []
    sizes: list[int] = []
    for value in values:
        means.append(float(value))
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            size = sizes[-2] + sizes[-1]
            mean = (means[-2] * sizes[-2] + means[-1] * sizes[-1]) / size
            means[-2:], sizes[-2:] = [mean], [size]
    return np.repeat(means, sizes)


def error_summary(errors: Sequence[float], left_out: str) -> dict[str, object]:
    """Median and 95th percentile of absolute relative errors, as a profile states them."""
    if not errors:
        raise ProfileError(
            f"too few places were measured to leave any out ({left_out}); three is the least"
        )
    sizes = np.abs(np.asarray(errors, dtype=float))
    return {
        "left_out": left_out,
        "points": len(sizes),
        "median": round(float(np.median(sizes)), 4),
        "p95": round(float(np.quantile(sizes, 0.95)), 4),
    }
