"""How long an iteration takes: the sum of its operators and the host's share, from one profile.

Every operator is piecewise linear, so for a fixed number of decoding rows an iteration's time is
piecewise linear in the keys those rows read; a leaping simulator needs no more than that line. There is
one arithmetic path, in plain floats, for profiles and for the roofline alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from simulator.engine.plan import IterationShape
from simulator.errors import ModelError, ProfileError
from simulator.hardware import Hardware
from simulator.models import Model, load_model
from simulator.profile import Curve, DecodeAttention, Profile, ProfileInfo, find_profile, shipped_profiles
from simulator.roofline import Roofline, roofline_profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Columns = Mapping[str, NDArray[np.int64]]

UNBOUNDED = 1 << 62
REACH = 1 << 24  # tokens and rows up to which a boundary's roofline utilisation is held knot by knot
_TIMELESS = ("family", "max_positions", "dtype", "stored", "notes")  # fields that no duration depends on
HALF_WIDTHS = frozenset({"bfloat16", "float16"})  # equally fast on every GPU described here


class DecodeLine(NamedTuple):
    """Iteration time ``base_ns + slope_ns * context_tokens``, up to and including ``until_context``."""

    base_ns: float
    slope_ns: float
    until_context: int


class CostModel(Protocol):
    """Prices iterations. A pure-decode shape costs exactly ``max(1, int(base + slope * context))``."""

    def iteration_ns(self, shape: IterationShape) -> int: ...

    def decode_line(self, decodes: int, context_tokens: int) -> DecodeLine: ...

    def extrapolated(self, columns: Columns) -> NDArray[np.bool_]: ...


class PiecewiseLinear:
    """A curve that is constant below its first knot and keeps its last slope above the last."""

    __slots__ = ("knots", "slopes", "values")

    def __init__(self, knots: Sequence[float], values: Sequence[float]) -> None:
        self.knots = list(knots)
        self.values = list(values)
        rises = [(values[i + 1] - values[i]) / (knots[i + 1] - knots[i]) for i in range(len(knots) - 1)]
        last = rises[-1] if rises else 0.0
        self.slopes = [0.0, *rises, last]

    def __call__(self, at: float) -> float:
        knots = self.knots
        index = bisect_left(knots, at)
        if index == 0:
            return self.values[0]
        return self.values[index - 1] + (at - knots[index - 1]) * self.slopes[index]


class ProfileCostModel:
    """The clock of one replica, driven by a `Profile`; bounds hold what lies beyond its knots."""

    __slots__ = (
        "_decode",
        "_head",
        "_host_ns",
        "_lines",
        "_mixed",
        "_mixed_pieces",
        "_pairs_per",
        "_prefill",
        "_prompt_host_ns",
        "_tokens",
        "profile",
    )

    def __init__(self, profile: Profile, roofline: Roofline) -> None:
        self.profile = profile
        self._host_ns = profile.host_ns
        self._prompt_host_ns = profile.host_ns + profile.host_prompt_ns
        self._tokens = _sum(
            [
                _extended(curve, partial(roofline.tokens_ns, operator))
                for operator, curve in profile.by_tokens.items()
            ]
        )
        head = _extended(profile.head, roofline.head_ns)
        rows_ns = [profile.host_row_ns * rows for rows in head.knots]
        self._head = PiecewiseLinear(head.knots, [a + b for a, b in zip(head.values, rows_ns, strict=True)])
        attention = profile.prefill_attention
        self._prefill = _extended(attention.curve, float)
        self._pairs_per = (
            attention.pairs_per_token,
            attention.pairs_per_chunk,
            attention.window_keys,
            attention.windowed_share,
        )
        self._decode = DecodeTable(profile.decode_attention, roofline)
        mixed = profile.mixed_decode_attention
        self._mixed = self._decode if mixed is None else DecodeTable(mixed, roofline)
        self._lines: dict[int, tuple[list[int], list[DecodeLine]]] = {}
        self._mixed_pieces: dict[int, tuple[list[int], list[tuple[float, float, int]]]] = {}

    def iteration_ns(self, shape: IterationShape) -> int:
        """Duration in ns, at least 1."""
        prefills, tokens, pairs, decodes, context, _ = shape
        if not prefills:
            base, slope, _ = self.decode_line(decodes, context)
            return int(base + slope * context) or 1
        per_token, per_chunk, window, share = self._pairs_per
        effective = pairs + per_token * tokens + per_chunk * prefills
        if share and pairs > window * tokens:
            effective -= share * (pairs - window * tokens)
        ns = (
            self._tokens(tokens + decodes)
            + self._head(prefills + decodes)
            + self._prefill(effective)
            + self._prompt_host_ns
        )
        if decodes:
            bounds, pieces = self._mixed_pieces.get(decodes) or self._new_pieces(decodes)
            base, slope, _ = pieces[bisect_left(bounds, context)]
            ns += base + slope * context
        return int(ns) or 1

    def split_ns(self, shape: IterationShape) -> tuple[float, float, float]:
        """An iteration's time in the layers, in the head that follows them, and on the host."""
        head_ns = self._head(shape.prefills + shape.decodes)
        host_ns = self._prompt_host_ns if shape.prefills else self._host_ns
        return self.iteration_ns(shape) - head_ns - host_ns, head_ns, host_ns

    def decode_line(self, decodes: int, context_tokens: int) -> DecodeLine:
        """The straight piece on which a pure decode iteration of ``decodes`` rows lies now."""
        bounds, lines = self._lines.get(decodes) or self._new_lines(decodes)
        return lines[bisect_left(bounds, context_tokens)]

    def _new_lines(self, decodes: int) -> tuple[list[int], list[DecodeLine]]:
        rest = self._host_ns
        if decodes:
            rest += self._tokens(decodes) + self._head(decodes)
        pieces = self._decode.pieces(decodes)
        bounds = [until for _, _, until in pieces]
        lines = [DecodeLine(rest + base, slope, until) for base, slope, until in pieces]
        found = self._lines[decodes] = bounds, lines
        return found

    def _new_pieces(self, decodes: int) -> tuple[list[int], list[tuple[float, float, int]]]:
        """Attention alone of decoding rows that share an iteration with prompt chunks."""
        pieces = self._mixed.pieces(decodes)
        found = self._mixed_pieces[decodes] = [until for _, _, until in pieces], pieces
        return found

    def extrapolated(self, columns: Columns) -> NDArray[np.bool_]:
        """Which iterations lie outside what the profile's source measured."""
        import numpy as np

        profile, attention = self.profile, self.profile.prefill_attention
        if profile.kind == "roofline":
            return np.ones(len(columns["decodes"]), dtype=bool)
        prefills, tokens, pairs, decodes, context = (
            columns[name].astype(float)
            for name in ("prefills", "prefill_tokens", "prefill_pairs", "decodes", "context_tokens")
        )
        effective = pairs + attention.pairs_per_token * tokens + attention.pairs_per_chunk * prefills
        outside: NDArray[np.bool_] = (
            (tokens + decodes > min(curve.knots[-1] for curve in profile.by_tokens.values()))
            | (prefills + decodes > profile.head.knots[-1])
            | (effective > attention.curve.knots[-1])
            | (pairs > attention.keys_per_token * tokens)
            | np.where(
                prefills > 0, self._mixed.beyond(decodes, context), self._decode.beyond(decodes, context)
            )
        )
        return outside


class DecodeTable:
    """Decode attention over (rows, keys read by all rows together), every row count on the same knots.

    Interpolating between row counts at equal *total* keys follows the memory traffic, which is what the
    time mostly consists of. Where a row count was not measured as far as another, it holds the roofline
    utilisation of its own boundary, kept between its neighbours so that more rows never cost less.
    """

    __slots__ = ("_knots", "_rows", "_values", "ends")

    def __init__(self, table: DecodeAttention, roofline: Roofline) -> None:
        self.ends = [
            float(rows * table.contexts[len(line) - 1])
            for rows, line in zip(table.rows, table.ns, strict=True)
        ]
        totals = {rows * context for rows in table.rows for context in table.contexts}
        self._knots = sorted(totals)
        self._rows = table.rows
        self._values = [
            self._row(rows, table.contexts, line, roofline)
            for rows, line in zip(table.rows, table.ns, strict=True)
        ]
        self._keep_order()

    def _row(
        self, rows: int, contexts: Sequence[int], line: Sequence[float], roofline: Roofline
    ) -> list[float]:
        totals = [rows * context for context in contexts[: len(line)]]
        curve = PiecewiseLinear(totals, line)
        end = totals[-1]
        at_end = roofline.decode_ns(rows, end)
        return [
            curve(total) if total <= end else line[-1] * (roofline.decode_ns(rows, total) / at_end)
            for total in self._knots
        ]

    def _keep_order(self) -> None:
        """Where not measured, a row count costs at most what the next one does, at least the last."""
        for row in reversed(range(len(self._rows) - 1)):
            here, above, end = self._values[row], self._values[row + 1], self.ends[row]
            for index, total in enumerate(self._knots):
                if total > end:
                    here[index] = max(min(here[index], above[index]), here[index - 1])
        for row in range(1, len(self._rows)):
            here, below, end = self._values[row], self._values[row - 1], self.ends[row]
            for index, total in enumerate(self._knots):
                if total > end:
                    here[index] = max(here[index], below[index], here[index - 1])

    def beyond(self, decodes: NDArray[np.float64], context: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Where there are more rows, or they read more keys, than were measured."""
        import numpy as np

        outside: NDArray[np.bool_] = (decodes > self._rows[-1]) | (
            context > np.interp(decodes, self._rows, self.ends)
        )
        return outside

    def pieces(self, decodes: int) -> list[tuple[float, float, int]]:
        """Straight pieces ``(base_ns, slope_ns, until_context)`` that together cover every context."""
        if not decodes:
            return [(0.0, 0.0, UNBOUNDED)]
        curve = PiecewiseLinear(self._knots, self._blend(decodes))
        pieces = [(curve.values[0], 0.0, self._knots[0])]
        for index in range(1, len(self._knots)):
            slope = curve.slopes[index]
            pieces.append(
                (curve.values[index - 1] - slope * self._knots[index - 1], slope, self._knots[index])
            )
        base, slope, _ = pieces[-1]
        return [*pieces, (base, slope, UNBOUNDED)]

    def ns(self, decodes: int, context_tokens: float) -> float:
        """Time of all layers' attention for ``decodes`` rows that read ``context_tokens`` keys together."""
        return PiecewiseLinear(self._knots, self._blend(decodes))(context_tokens)

    def _blend(self, decodes: int) -> list[float]:
        rows = self._rows
        index = bisect_left(rows, decodes)
        if index == len(rows):  # each further row costs what a row with next to no context costs on average
            last = self._values[-1]
            extra = (decodes - rows[-1]) * last[0] / rows[-1]
            return [value + extra for value in last]
        if rows[index] == decodes or index == 0:
            return self._values[index]
        share = (decodes - rows[index - 1]) / (rows[index] - rows[index - 1])
        below, above = self._values[index - 1], self._values[index]
        return [low + (high - low) * share for low, high in zip(below, above, strict=True)]


def load_cost_model(
    profile: str,
    model: Model,
    hardware: Hardware,
    dtype: str,
    tensor_parallel: int,
    folder: Path,
    *,
    padded: bool = False,
) -> tuple[ProfileCostModel, ProfileInfo]:
    """The clock for a scenario. ``profile``: auto, roofline, a shipped name or a path from ``folder``.

    ``padded``: of an engine that pads its prompts to one length.
    """
    roofline = Roofline(model, hardware, dtype, tensor_parallel)
    if profile == "roofline":
        chosen = roofline_profile(roofline)
    elif profile == "auto":
        chosen = _best_shipped(model, hardware, dtype, tensor_parallel) or roofline_profile(roofline)
    else:
        chosen = find_profile(profile, folder)
        _check(chosen, model, hardware, dtype, tensor_parallel)
    notes = chosen.notes
    if chosen.dtype != dtype:
        notes = (*notes, f"measured in {chosen.dtype}, used for {dtype}, which moves as many bytes")
    if padded:
        chosen = chosen.for_padded_batches()
    return ProfileCostModel(chosen, roofline), ProfileInfo(
        chosen.name,
        chosen.kind,
        notes,
        chosen.reference_ns,
        server_overhead_ns=chosen.server_overhead_ns,
        step_error=chosen.step_error,
    )


def _best_shipped(model: Model, hardware: Hardware, dtype: str, tensor_parallel: int) -> Profile | None:
    fitting = [
        profile
        for profile in shipped_profiles()
        if not _mismatches(profile, model, hardware, dtype, tensor_parallel)
    ]
    return min(fitting, key=lambda profile: (profile.dtype != dtype, profile.name), default=None)


def _check(profile: Profile, model: Model, hardware: Hardware, dtype: str, tensor_parallel: int) -> None:
    wrong = _mismatches(profile, model, hardware, dtype, tensor_parallel)
    if wrong:
        raise ProfileError(f"profile {profile.name} does not belong to this scenario: {'; '.join(wrong)}")


def _mismatches(
    profile: Profile, model: Model, hardware: Hardware, dtype: str, tensor_parallel: int
) -> list[str]:
    checks: list[tuple[str, object, object, bool]] = [
        ("model", profile.model, model.name, _same_model(profile.model, model)),
        ("hardware", profile.hardware, hardware.name, profile.hardware == hardware.name),
        ("dtype", profile.dtype, dtype, profile.dtype == dtype or {profile.dtype, dtype} <= HALF_WIDTHS),
        (
            "tensor parallelism",
            profile.tensor_parallel,
            tensor_parallel,
            profile.tensor_parallel == tensor_parallel,
        ),
    ]
    wrong = [
        f"its {name} is {has}, the scenario's {wants}" for name, has, wants, agree in checks if not agree
    ]
    if model.experts and "experts" not in profile.by_tokens:
        wrong.append(f"it has no operator 'experts', and {model.name} has experts")
    return wrong


def _same_model(name: str, model: Model) -> bool:
    """Equal names, or equal in everything that time depends on (a fine-tuned variant of the same shape)."""
    if name == model.name:
        return True
    try:
        known = load_model(name)
    except ModelError:
        return False
    return replace(model, name=known.name, **{field: getattr(known, field) for field in _TIMELESS}) == known


def _extended(curve: Curve, bound: Callable[[float], float]) -> PiecewiseLinear:
    """The curve, with knots added beyond its end at which it holds the end's utilisation of ``bound``."""
    knots, values = list(curve.knots), list(curve.ns)
    end, at_end = knots[-1], values[-1]
    per_bound = at_end / bound(end)
    at = end * 2
    while at < max(REACH, 4 * end):
        knots.append(at)
        values.append(max(values[-1], per_bound * bound(at)))
        at *= 2
    return PiecewiseLinear(knots, values)


def _sum(curves: Sequence[PiecewiseLinear]) -> PiecewiseLinear:
    """The sum of piecewise-linear curves, exact because it has all of their knots."""
    knots = sorted({knot for curve in curves for knot in curve.knots})
    return PiecewiseLinear(knots, [sum(curve(knot) for curve in curves) for knot in knots])
