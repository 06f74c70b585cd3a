"""How far an answer may be wrong: chance in the simulation and the error of the step times together."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, inf, log, sqrt
from statistics import NormalDist

from simulator.planning.answer import Doubt, Plan, Sensitivity
from simulator.planning.criteria import Criterion
from simulator.planning.laboratory import Measurement
from simulator.planning.search import headroom, rate_if_slower, slope_at
from simulator.planning.steady_state import Z_975, Interval
from simulator.profile import ProfileInfo

STEP_TIMES = (0.90, 0.95, 1.05, 1.10)
SURE = 0.95
MEDIAN_TO_SIGMA = 1 / NormalDist().inv_cdf(0.75)  # of a normal error, from its median absolute value
# Median relative error of roofline step times against the ten shipped profiles:
# python -m benchmarks.capacity --roofline
ROOFLINE_ERROR = 0.10
UNKNOWN_ERROR = "no error is stated in the profile; taken as the roofline's"

Curve = Sequence[Measurement]


def doubt_of(plan: Plan, wanted: Sequence[Criterion], curve: Curve, info: ProfileInfo) -> Doubt:
    """P(log headroom > error of log step time): the two errors are independent and taken as normal."""
    assert plan.estimate is not None
    error, source = _step_error(info)
    sigma, raised = error * MEDIAN_TO_SIGMA, _raised(plan)
    room = headroom(curve, wanted, plan.rate_per_s, raised)
    strain = plan.estimate.strain
    chance = strain.half_width / strain.value / Z_975 / (1 + slope_at(plan.rate_per_s, curve))
    spread = sqrt(sigma**2 + (0.0 if chance == inf else chance) ** 2)
    rate = rate_if_slower(curve, wanted, exp(NormalDist().inv_cdf(SURE) * spread), raised)
    each = rate / plan.replicas
    return Doubt(
        probability=NormalDist().cdf(log(room) / spread) if spread else float(room >= 1),
        headroom=room,
        step_error=error,
        step_error_source=source,
        sure_rate_per_s=rate,
        sure_replicas=max(plan.replicas, ceil(plan.rate_per_s / each - 1e-9)),
    )


def _raised(plan: Plan) -> float:
    """What the independent run makes of the strain that the search found at the answer."""
    at, estimate = plan.at, plan.estimate
    assert at is not None
    assert estimate is not None
    before, after = at.strain.value, estimate.strain.value
    return after / before if 0 < before < inf and after < inf else 1.0


def _step_error(info: ProfileInfo) -> tuple[float, str]:
    if info.step_error is not None:
        return info.step_error, f"held-out error of profile {info.name}"
    if info.kind == "roofline":
        return ROOFLINE_ERROR, "roofline against the shipped profiles"
    return ROOFLINE_ERROR, UNKNOWN_ERROR


def sensitivities(plan: Plan, wanted: Sequence[Criterion], curve: Curve) -> tuple[Sensitivity, ...]:
    """The answer if every step took a little less or more time."""
    return tuple(_sensitivity(step, plan, wanted, curve) for step in STEP_TIMES)


def _sensitivity(step: float, plan: Plan, wanted: Sequence[Criterion], curve: Curve) -> Sensitivity:
    rate = rate_if_slower(curve, wanted, step, _raised(plan))
    needed = ceil(plan.rate_per_s / (rate / plan.replicas) - 1e-9)
    return Sensitivity(step, rate, needed, rate >= plan.rate_per_s)


def limit_with(
    plan: Plan, wanted: Sequence[Criterion], curve: Curve, found: Interval | None
) -> Interval | None:
    """The highest rate of the fleet, its interval wide enough for what the independent run says of it."""
    if found is None or plan.verification is None:
        return found
    moved = rate_if_slower(curve, wanted, 1.0, _raised(plan))
    return Interval(found.value, max(found.half_width, abs(moved - found.value)))
