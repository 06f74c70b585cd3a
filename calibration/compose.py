"""From timings of pieces and whole iterations to a profile: operators, what they cost in place, the host.

Each operator is fitted to its own pieces. In place it costs a little more or less than alone, since what
runs around it moves its data out of the caches; so the whole iterations decide one factor per operator,
held near 1, and the host's share: so much per iteration, per sequence, per iteration with prompts, and
per iteration of a padded batch, which needs a mask (a profile has it in what such attention costs).
Iterations, not single timings, are left out in turn to tell the error of the composition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibration.curves import Floats, error_summary
from calibration.drift import Findings, find_values
from calibration.fit import as_profile, attention_fields, fit_profile, table_fields
from calibration.grid import WHOLE, Point, row_contexts
from calibration.measurements import Header, Measurements, Sample
from calibration.operators import fit_decode, fit_prefill
from calibration.rounds import SURE
from calibration.timings import Environment, Timing, read_timings
from simulator.cost_model import DecodeTable, PiecewiseLinear
from simulator.engine.plan import IterationShape
from simulator.errors import ProfileError
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.profile import Profile
from simulator.roofline import Roofline

OPERATORS = ("dense", "head", "prefill_attention", "decode_attention")
FACTORS = (
    "layers",
    "prefill_attention",
    "decode_attention",
    "padded_prefill_attention",
    "padded_decode_attention",
)
HOST = ("iteration_ns", "row_ns", "prompt_ns", "padded_ns")
PRIOR = 0.2  # weight of "a factor is 1" beside one iteration's relative error
ROUNDS = 20
SMALLEST_RESIDUAL = 2e-3
FOLDS = 5
LEAST_ITERATIONS = 10
LEAST_PLACES = 5
LIMITS = (
    "time between iterations is that of vLLM V1's scheduler",
    "rows of one iteration differed in length by three at most; kernels may wait for longer ones",
)


class Terms(NamedTuple):
    """One whole iteration: what it took, what its operators take alone, and what the host does, in ns."""

    measured_ns: float
    operators: tuple[float, ...]  # by FACTORS
    host: tuple[float, ...]  # how often each of HOST is paid


class Composition(NamedTuple):
    """Factors by FACTORS, and the host's shares by HOST."""

    factors: tuple[float, ...]
    host: tuple[float, ...]

    def ns(self, terms: Terms) -> float:
        """What an iteration of these terms takes."""
        parts = zip((*self.factors, *self.host), (*terms.operators, *terms.host), strict=True)
        return sum(factor * part for factor, part in parts)


def read_sessions(paths: Sequence[Path]) -> tuple[Environment, list[Timing]]:
    """Files of one environment as one."""
    first, timings = read_timings(paths[0])
    for path in paths[1:]:
        environment, more = read_timings(path)
        for name in ("model", "hardware", "dtype", "device", "threads", "kernels", "path"):
            if getattr(environment, name) != getattr(first, name):
                raise ProfileError(
                    f"{path}: does not belong to {paths[0]}: its {name} is {getattr(environment, name)}, "
                    f"not {getattr(first, name)}"
                )
        timings += more
    return first, timings


def fit_timings(environment: Environment, timings: Sequence[Timing]) -> dict[str, Any]:
    """The profile's JSON fields."""
    found = find_values(timings)
    if lack := missing(found):
        raise ProfileError(lack)
    measurements = Measurements(_header(environment, found), tuple(_samples(found)))
    fields = fit_profile(measurements, {"iteration_ns": 0})
    fields["operators"].update(_padded_operators(found))
    bounds = Roofline(
        load_model(environment.model), load_hardware(environment.hardware), environment.dtype, 1
    )
    parts = Parts(as_profile(fields, "pieces"), bounds)
    iterations = [(point, parts.terms(point, value.ns)) for point, value in _whole(found)]
    composition = compose([terms for _, terms in iterations])
    _put_in_place(fields["operators"], composition)
    fields["held_out_error"]["iterations"] = held_out(iterations)
    fields["host"] = _host(composition, found)
    if reference_ns := _reference(found):
        fields["reference_ns"] = reference_ns
    fields["in_place"] = {
        name: round(factor, 4) for name, factor in zip(FACTORS, composition.factors, strict=True)
    }
    fields["range"] = _range(found)
    return fields


def missing(found: Findings) -> str | None:
    """What these timings lack for a profile, and how to get it; None where they suffice."""
    pieces = [point.piece for point in found.values]
    wanted = {**dict.fromkeys(OPERATORS, LEAST_PLACES), "iteration": LEAST_ITERATIONS}
    for piece, least in wanted.items():
        if pieces.count(piece) < least:
            return (
                f"the timings hold {piece!r} at {pieces.count(piece)} places of the {least} that a profile "
                "needs: run calibrate measure again with a larger --budget, which continues the file"
            )
    return None


def _header(environment: Environment, found: Findings) -> Header:
    unsure = sum(value.interval > SURE for value in found.values.values())
    counts = (
        f"{found.timings} timings: {found.rescaled} rescaled to the machine's usual speed, "
        f"{found.drifting} left out as it drifted, {found.disturbed} as others held the processors; "
        f"{unsure} of {len(found.values)} medians are not sure to {SURE:.0%}"
    )
    return Header(
        model=environment.model,
        hardware=environment.hardware,
        device=environment.device,
        dtype=environment.dtype,
        tensor_parallel=1,
        engine=f"ServeTwin live, {environment.path} path, attention {environment.kernels}",
        engine_version=environment.versions.get("servetwin", "unknown"),
        kind="measured",
        source=f"measured live: {environment.driver}, {environment.clocks}, {environment.threads} threads",
        licence="measured by the user",
        tables={name: version for name, version in environment.versions.items() if name != "servetwin"},
        limits=(counts, *LIMITS),
    )


def _samples(found: Findings) -> Iterator[Sample]:
    for operator in OPERATORS:
        yield from _samples_of(found, operator)


def _samples_of(found: Findings, operator: str) -> list[Sample]:
    """One operator's values. Where time ran out, a row count without the shortest context is left out."""
    places = sorted(
        (point.at, value.ns) for point, value in found.values.items() if point.piece == operator
    )
    if operator.endswith("decode_attention") and places:
        shortest = min(at[1] for at, _ in places)
        rooted = {at[0] for at, _ in places if at[1] == shortest}
        places = [place for place in places if place[0][0] in rooted]
    return [Sample(operator, _axes(operator, at), ns) for at, ns in places]


def _axes(piece: str, at: tuple[int, ...]) -> tuple[float, ...]:
    """A point's place as a profile's operators count it."""
    if piece == "prefill_attention":
        chunks, tokens, start = at
        return chunks, chunks * tokens, chunks * (tokens * start + tokens * (tokens + 1) / 2)
    if piece == "padded_prefill_attention":
        rows, width = at
        return rows, rows * width, rows * width * (width + 1) / 2
    if piece in ("decode_attention", "padded_decode_attention"):
        return at[0], at[0] * at[1]
    return at


def _padded_operators(found: Findings) -> dict[str, Any]:
    """Attention of padded batches, where it was timed."""
    samples = {name: _samples_of(found, name) for name in FACTORS[-2:]}
    if not all(samples.values()):
        return {}
    return {
        "padded_prefill_attention": attention_fields(fit_prefill(samples["padded_prefill_attention"])),
        "padded_decode_attention": table_fields(fit_decode(samples["padded_decode_attention"])),
    }


def _whole(found: Findings) -> Iterator[tuple[Point, Any]]:
    for point, value in sorted(found.values.items()):
        if point.piece in WHOLE:
            yield point, value


def shape_of(point: Point) -> IterationShape:
    """The shape of a whole iteration as it is timed: on average one token after its rows joined."""
    if point.piece == "padded_step":
        rows, width = point.at
        return IterationShape(0, 0, 0, rows, rows * (width + 3))
    if point.piece == "padded_prompts":
        rows, width = point.at
        return IterationShape(rows, rows * width, rows * width * (width + 1) // 2, 0, 0)
    chunks, tokens, start, rows, context = point.at
    pairs = chunks * (tokens * start + tokens * (tokens + 1) // 2)
    later = 1 if chunks else 2
    return IterationShape(
        chunks, chunks * tokens, pairs, rows, sum(row_contexts(rows, context)) + later * rows
    )


class Parts:
    """Operators of a profile one by one."""

    def __init__(self, profile: Profile, bounds: Roofline) -> None:
        self._profile = profile
        self._tables = {
            False: DecodeTable(profile.decode_attention, bounds),
            True: DecodeTable(profile.padded_decode_attention or profile.decode_attention, bounds),
        }

    def terms(self, point: Point, measured_ns: float) -> Terms:
        """A whole iteration's terms."""
        shape, padded, profile = shape_of(point), point.piece != "iteration", self._profile
        rows, tokens = shape.prefills + shape.decodes, shape.prefill_tokens + shape.decodes
        layers = sum(_at(curve, tokens) for curve in profile.by_tokens.values()) + _at(profile.head, rows)
        prefill = decode = 0.0
        if shape.prefills:
            fit = (profile.padded_prefill_attention if padded else None) or profile.prefill_attention
            effective = shape.prefill_pairs + fit.pairs_per_token * shape.prefill_tokens
            prefill = _at(fit.curve, effective + fit.pairs_per_chunk * shape.prefills)
        if shape.decodes:
            decode = self._tables[padded].ns(shape.decodes, shape.context_tokens)
        attention = (0.0, 0.0, prefill, decode) if padded else (prefill, decode, 0.0, 0.0)
        host = (1.0, rows, float(shape.prefills > 0), float(padded))
        return Terms(measured_ns, (layers, *attention), host)


def _at(curve: Any, place: float) -> float:
    return PiecewiseLinear(curve.knots, curve.ns)(place)


def compose(iterations: Sequence[Terms]) -> Composition:
    """Non-negative factors and host shares with the least absolute relative error."""
    from scipy.optimize import nnls

    measured = np.asarray([terms.measured_ns for terms in iterations])
    parts = np.asarray([(*terms.operators, *terms.host) for terms in iterations])
    design = parts / measured[:, None]
    prior = np.zeros((len(FACTORS), design.shape[1]))
    prior[:, : len(FACTORS)] = PRIOR * np.eye(len(FACTORS))
    weights: Floats = np.ones(len(measured))
    solution: Floats = np.zeros(design.shape[1])
    for _ in range(ROUNDS):
        system = np.vstack([design * weights[:, None], prior])
        wanted = np.concatenate([weights, np.full(len(FACTORS), PRIOR)])
        scale = np.maximum(np.linalg.norm(system, axis=0), 1e-30)
        solution = nnls(system / scale, wanted)[0] / scale
        residuals = np.abs(design @ solution - 1)
        weights = np.sqrt(SMALLEST_RESIDUAL / np.maximum(residuals, SMALLEST_RESIDUAL))
    factors, host = solution[: len(FACTORS)], solution[len(FACTORS) :]
    return Composition(tuple(map(float, factors)), tuple(map(float, host)))


def held_out(iterations: Sequence[tuple[Point, Terms]]) -> dict[str, object]:
    """Errors of iterations that the composition was not fitted to, by configuration."""
    errors: list[float] = []
    for fold in range(FOLDS):
        rest = [terms for i, (_, terms) in enumerate(iterations) if i % FOLDS != fold]
        composition = compose(rest)
        errors += [
            composition.ns(terms) / terms.measured_ns - 1
            for i, (_, terms) in enumerate(iterations)
            if i % FOLDS == fold
        ]
    return {
        **error_summary(errors, "a fifth of the whole iterations at a time, by configuration"),
        "bias": round(float(np.median(errors)), 4),
    }


def _put_in_place(operators: dict[str, Any], composition: Composition) -> None:
    """Let every operator cost what it costs inside an iteration."""
    factors = dict(zip(FACTORS, composition.factors, strict=True))
    padded_ns = composition.host[HOST.index("padded_ns")]
    for name, operator in operators.items():
        factor = factors["layers"] if name in ("dense", "head") else factors[name]
        more_ns = padded_ns if name.startswith("padded_") else 0.0
        times = operator["ns"]
        if isinstance(times[0], list):
            operator["ns"] = [[round(ns * factor + more_ns) for ns in line] for line in times]
        else:
            operator["ns"] = [round(ns * factor + more_ns) for ns in times]


def _host(composition: Composition, found: Findings) -> dict[str, Any]:
    """The host's share: the executor's, as the iterations tell it, and what lies between iterations."""
    executor = dict(zip(HOST, composition.host, strict=True))
    between = _scheduling(found)
    return {
        **{name: round(executor[name] + between.get(name, 0.0)) for name in HOST[:-1]},
        "executor": {name: round(ns) for name, ns in executor.items()},
        "scheduling": {name: round(ns) for name, ns in between.items()},
    }


def _scheduling(found: Findings) -> Mapping[str, float]:
    """A constant and a share per row of the time between iterations."""
    from scipy.optimize import nnls

    timed = [(at[0], value.ns) for (piece, at), value in found.values.items() if piece == "scheduling"]
    if not timed:
        return {}
    rows, ns = np.asarray(timed, dtype=float).T
    constant, row = nnls(np.stack([np.ones(len(rows)), rows], axis=1) / ns[:, None], np.ones(len(ns)))[0]
    return {"iteration_ns": float(constant), "row_ns": float(row)}


def _reference(found: Findings) -> list[int]:
    """What `backend.reference` takes at the usual speed."""
    pieces = ("reference_prompts", "reference_steps")
    values = [value for piece in pieces if (value := found.values.get(Point(piece, ())))]
    return [round(value.ns) for value in values] if len(values) == len(pieces) else []


def _range(found: Findings) -> dict[str, int]:
    """How far each axis was measured; beyond, results are marked as extrapolated."""
    points = list(found.values)

    def most(piece: str, size: int) -> int:
        return max((point.at[size] for point in points if point.piece == piece), default=0)

    return {
        "tokens": most("dense", 0),
        "rows": most("head", 0),
        "chunk_tokens": most("prefill_attention", 1),
        "context": max(most("decode_attention", 1), most("prefill_attention", 2)),
    }
