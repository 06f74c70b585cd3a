"""What a capacity search answers: values that a program can read, and the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, Literal, NamedTuple, TypeAlias

from simulator.planning.constraint import Constraint
from simulator.planning.criteria import Attainment, Criterion
from simulator.planning.laboratory import Measurement, Saturation, Verdict
from simulator.planning.steady_state import Interval, together

Question: TypeAlias = Literal["replicas", "rate"]
"""The least replicas for the scenario's rate, or the highest rate for a number of replicas."""

Verified: TypeAlias = Literal["confirmed", "not refuted", "refuted"]
"""What an independent run said: the SLO is met; met, but a limit lies in its interval; missed."""


class Sensitivity(NamedTuple):
    """The answer if every step took ``step_time`` times as long: by interpolation on the measured curve."""

    step_time: float
    rate_per_s: float
    replicas: int
    met: bool


class Knee(NamedTuple):
    """Where throughput over mean latency is largest: Kleinrock's power. More load costs more than it gives.

    ``beyond``: the largest value is at the last rate that was measured.
    """

    rate_per_s: float
    rho: float
    e2e_ms: float
    beyond: bool


class Cost(NamedTuple):
    """What the answer costs. ``usd_per_*``: None without a price.

    ``sure_usd_per_hour``: of the replicas with which the SLO is met with probability 0.95.
    """

    gpus: int
    gpu_hours_per_million_output: float
    gpu_hours_per_million_total: float
    usd_per_hour: float | None
    usd_per_million_output: float | None
    usd_per_million_total: float | None
    sure_usd_per_hour: float | None = None


class Doubt(NamedTuple):
    """How sure it is that the SLO is met at the answer, chance and the cost model's error together.

    ``headroom``: how many times as long steps may take. ``step_error``: median relative error of the cost
    model's held-out times; ``step_error_source``: where that stands. ``sure_rate_per_s``,
    ``sure_replicas``: with which the probability is 0.95.
    """

    probability: float
    headroom: float
    step_error: float
    step_error_source: str
    sure_rate_per_s: float
    sure_replicas: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One alternative. ``reason``: why it cannot be the answer, empty where it can.

    ``at``: the measurement at the answer; ``beyond``: the nearest one that does not meet the SLO.
    ``rate_per_s``: what the fleet is offered at the answer; ``limit_per_s``: the highest that it bears.
    ``own_rate_per_s``: the scenario's, and what it is of capacity. What only the best alternative gets is
    None elsewhere.
    """

    name: str
    values: Mapping[str, str]
    model: str
    hardware: str
    gpus_per_replica: int
    scenario_yaml: str
    reason: str = ""
    profile: str = ""
    profile_kind: str = ""
    replicas: int = 0
    rate_per_s: float = 0.0
    own_rate_per_s: float = 0.0
    own_rho: float = 0.0
    at: Measurement | None = None
    beyond: Measurement | None = None
    saturation: Saturation | None = None
    constraint: Constraint | None = None
    cost: Cost | None = None
    limit_per_s: Interval | None = None
    knee: Knee | None = None
    doubt: Doubt | None = None
    sensitivities: tuple[Sensitivity, ...] = ()
    verification: Measurement | None = None
    serve: str | None = None
    load_test: str | None = None
    measurements: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def own_verdict(self) -> Verdict:
        """Of the scenario's own rate on these replicas: latencies rise with the rate."""
        if self.own_rho >= 1:
            return "unstable"
        return "met" if self.own_rate_per_s <= self.rate_per_s else "missed"

    @property
    def gpus(self) -> int:
        return self.replicas * self.gpus_per_replica

    @property
    def price(self) -> float:
        """What alternatives are compared by: USD per million output tokens; GPU-hours without a price."""
        if self.cost is None:
            return inf
        usd = self.cost.usd_per_million_output
        return self.cost.gpu_hours_per_million_output if usd is None else usd

    @property
    def calibrated(self) -> bool:
        """Whether its times were measured anywhere, rather than taken from a data sheet."""
        return self.profile_kind != "roofline"

    @property
    def verified(self) -> Verified | None:
        """What the independent run said; None where there was none."""
        if self.verification is None:
            return None
        if self.verification.verdict != "met":
            return "refuted"
        return "confirmed" if self.verification.clear else "not refuted"

    @property
    def confirmed(self) -> bool:
        """Whether an independent run met the SLO with every interval below its limit."""
        return self.verified == "confirmed"

    @property
    def estimate(self) -> Measurement | None:
        """The measurement at the answer with what the independent run says of the SLO, too."""
        if self.at is None or self.verification is None or not self.verification.strains:
            return self.at
        both = zip(self.at.strains, self.verification.strains, strict=True)
        return replace(self.at, strains=tuple(together(one, other) for one, other in both))


@dataclass(frozen=True, slots=True)
class Capacity:
    """Alternatives, the best first; those that cannot be the answer last."""

    title: str
    question: Question
    wanted: tuple[Criterion, ...]
    plans: tuple[Plan, ...]
    losses: tuple[str, ...]  # why each but the first is not
    seed: int
    simulated: int  # requests in all runs together
    notes: tuple[str, ...] = ()

    @property
    def cheaper_uncalibrated(self) -> Plan | None:
        """What would cost less than the answer if a data sheet's numbers held; ranked behind it."""
        best = self.best
        if best is None or not best.calibrated:
            return None
        others = [plan for plan in self.plans[1:] if not plan.reason and not plan.calibrated]
        return next((plan for plan in others if plan.price < best.price), None)

    @property
    def best(self) -> Plan | None:
        """The answer, if there is one."""
        return self.plans[0] if self.plans and not self.plans[0].reason else None


def as_json(found: Capacity) -> dict[str, Any]:
    """Everything, for programs; what is not finite is null."""
    return {
        "scenario": found.title,
        "question": found.question,
        "slo": [_criterion(criterion) for criterion in found.wanted],
        "seed": found.seed,
        "confidence": 0.95,
        "answer": _plan(found.best, found.wanted) if found.best else None,
        "alternatives": [
            {**_plan(plan, found.wanted), "lost": lost or None}
            for plan, lost in zip(found.plans, ("", *found.losses), strict=True)
        ],
        "simulated_requests": found.simulated,
        "notes": list(found.notes),
    }


def _criterion(criterion: Criterion) -> dict[str, Any]:
    if isinstance(criterion, Attainment):
        return {"attainment": criterion.share, "limits_ms": dict(criterion.limits)}
    return {
        "metric": criterion.metric,
        "percentile": criterion.percentile,
        "limit_ms": criterion.limit_ms,
    }


def _plan(plan: Plan, wanted: Sequence[Criterion]) -> dict[str, Any]:
    saturation = plan.saturation
    return {
        "name": plan.name,
        "values": dict(plan.values),
        "reason": plan.reason or None,
        "model": plan.model,
        "hardware": plan.hardware,
        "profile": {"name": plan.profile, "kind": plan.profile_kind} if plan.profile else None,
        "gpus_per_replica": plan.gpus_per_replica,
        "replicas": plan.replicas or None,
        "gpus": plan.gpus or None,
        "rate_per_s": plan.rate_per_s or None,
        "scenario_rate": {
            "rate_per_s": plan.own_rate_per_s,
            "rho": plan.own_rho,
            "verdict": plan.own_verdict,
        }
        if plan.at
        else None,
        "limit_per_s": _interval(plan.limit_per_s),
        "saturation_per_replica_per_s": _interval(saturation.rate_per_s) if saturation else None,
        "at": _measurement(plan.at, wanted),
        "estimate": _slo(plan.estimate, wanted) if plan.estimate else None,
        "beyond": _measurement(plan.beyond, wanted),
        "constraint": plan.constraint._asdict() if plan.constraint else None,
        "cost": plan.cost._asdict() if plan.cost else None,
        "knee": plan.knee._asdict() if plan.knee else None,
        "doubt": plan.doubt._asdict() if plan.doubt else None,
        "sensitivity": [one._asdict() for one in plan.sensitivities],
        "verification": _measurement(plan.verification, wanted),
        "verified": plan.verified or "not verified",
        "confirmed": plan.confirmed,
        "serve": plan.serve,
        "load_test": plan.load_test,
        "measurements": [_measurement(one, wanted) for one in plan.measurements],
        "notes": list(plan.notes),
        "scenario": plan.scenario_yaml,
    }


def _measurement(one: Measurement | None, wanted: Sequence[Criterion]) -> dict[str, Any] | None:
    if one is None:
        return None
    told: dict[str, Any] = {
        "rate_per_s": one.point.rate_per_s,
        "replicas": one.point.replicas,
        "verdict": one.verdict,
        "rho": one.rho,
    }
    if not one.strains:
        return told | {"backlog_growth_per_s": one.point.rate_per_s * (1 - 1 / one.rho)}
    figures = {
        name: {statistic: _interval(value) for statistic, value in statistics.items()}
        for name, statistics in one.figures_ms.items()
    }
    usage = one.usage
    return told | {
        "slo": _slo(one, wanted),
        "figures_ms": figures,
        "growth": _interval(one.growth),
        "replications": one.replications,
        "requests_per_replication": one.requests,
        "warmup_requests": one.warmup_requests,
        "prompt_tokens": one.prompt_tokens,
        "output_tokens": one.output_tokens,
        "preemptions_per_request": one.preemptions,
        "extrapolated": one.extrapolated,
        "usage": {name: getattr(usage, name) for name in usage.__slots__} if usage else None,
    }


def _slo(one: Measurement, wanted: Sequence[Criterion]) -> list[dict[str, Any]]:
    return [
        {**_criterion(criterion), "figure": _interval(figure_of(one, place, criterion))}
        for place, criterion in enumerate(wanted)
    ]


def figure_of(one: Measurement, place: int, criterion: Criterion) -> Interval:
    """A criterion's own figure: a percentile in ms, or the share that keeps every limit."""
    strain = one.strains[place]
    if isinstance(criterion, Attainment):
        allowed = 1 - criterion.share
        return Interval(1 - strain.value * allowed, strain.half_width * allowed)
    return Interval(strain.value * criterion.limit_ms, strain.half_width * criterion.limit_ms)


def _interval(interval: Interval | None) -> dict[str, float | None] | None:
    if interval is None:
        return None
    ends = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {name: value if isfinite(value) else None for name, value in ends.items()}
