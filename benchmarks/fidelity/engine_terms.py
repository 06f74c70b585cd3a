"""What an engine of some version adds to its kernels: the terms that kernel tables cannot know.

Tables time each kernel alone, on a GPU that is cool and clocked high, and say nothing of the host. An
engine leaves gaps between the kernels of each layer, spends host time on each sequence and on each
iteration with prompts; arithmetic takes longer by one factor, presumably because a GPU under sustained load
lowers its clock (Vidur's layers on an A100 are slower than the tables by 16 to 21 % from 1,024 tokens on,
and equal to them for single tokens); and the server around the engine adds a constant to each request. Five
numbers, fitted on the configurations that a study names as fit, used unchanged on all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from simulator.models import load_model
from simulator.profile import Curve, Profile

FIRST_STEP = 1.6  # factor by which a term is moved up and down at first
LAST_STEP = 1.08
STEP_POWER = 0.5


class EngineTerms(NamedTuple):
    """Times in microseconds; ``compute``: arithmetic takes so many times as long as in the tables."""

    layer_us: float
    row_us: float
    prompt_us: float
    compute: float
    overhead_us: float

    def applied(self, profile: Profile) -> Profile:
        """The profile with these terms in place of its own host term."""
        attention = profile.prefill_attention
        return replace(
            profile,
            by_tokens={name: _slowed(curve, self.compute) for name, curve in profile.by_tokens.items()},
            prefill_attention=replace(attention, curve=_slowed(attention.curve, self.compute)),
            host_ns=self.layer_us * 1e3 * load_model(profile.model).layers,
            host_row_ns=self.row_us * 1e3,
            host_prompt_ns=self.prompt_us * 1e3,
            server_overhead_ns=round(self.overhead_us * 1e3),
        )


def _slowed(curve: Curve, factor: float) -> Curve:
    """The curve with all that it takes beyond its first knot, which is traffic, stretched."""
    floor = curve.ns[0]
    return Curve(curve.knots, tuple(floor + factor * (ns - floor) for ns in curve.ns))


def fit_terms(loss: Callable[[EngineTerms], float], start: EngineTerms) -> EngineTerms:
    """Pattern search: move one term at a time by a factor, which shrinks when no move helps."""
    best, least, step = start, loss(start), FIRST_STEP
    while step > LAST_STEP:
        moved = False
        for candidate in _neighbours(best, step):
            found = loss(candidate)
            if found < least:
                best, least, moved = candidate, found, True
        if not moved:
            step = step**STEP_POWER
    return EngineTerms(*(float(f"{value:.3g}") for value in best))


def _neighbours(terms: EngineTerms, step: float) -> Sequence[EngineTerms]:
    found = []
    for name, value in terms._asdict().items():
        if name == "compute":  # near 1: half-size moves
            changed = (max(1.0, value * step**0.25), max(1.0, value / step**0.25))
        else:
            changed = (value * step, value / step)
        found += [terms._replace(**{name: each}) for each in changed if each != value]
    return found
