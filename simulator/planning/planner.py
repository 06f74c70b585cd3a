"""Answers a capacity question: searches every alternative, ranks them, and looks closely at the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import NamedTuple

from simulator.alternatives import Alternative
from simulator.errors import UserError
from simulator.models import load_model
from simulator.parallel import processors
from simulator.planning.answer import Capacity, Cost, Knee, Plan, Question, figure_of
from simulator.planning.constraint import constraint_at
from simulator.planning.criteria import Criterion, criteria
from simulator.planning.deploy import load_test, prompts_to_send, serve_command
from simulator.planning.doubts import doubt_of, limit_with, sensitivities
from simulator.planning.laboratory import LIFETIMES, Laboratory, Measurement
from simulator.planning.losses import losses
from simulator.planning.offer import Offer, Point, offer_of
from simulator.planning.search import CAREFUL, HighestRate, highest_rate, least_replicas
from simulator.planning.words import counted, figure_words
from simulator.pricing import clock_of
from simulator.profile import ProfileInfo
from simulator.scenario import Scenario
from simulator.scenario_file import model_path, to_yaml

BUDGET = 2_000_000  # requests simulated for one alternative, unless told otherwise
VERIFIED_LENGTH = 4  # times as long as the longest run of the search
VERIFIED_MOST = 100_000  # requests of the run that verifies an answer
CORRECTIONS = 3
EXTRAPOLATED = 0.05  # share of the time from which it is worth a note

Progress = Callable[[int, str], None]


class Request(NamedTuple):
    """What is asked about every alternative. ``replicas``: None asks for their least number."""

    folder: Path
    attainment: float | None
    replicas: int | None
    price: Mapping[str, float]
    workers: int
    budget: int
    progress: Progress | None


class Case(NamedTuple):
    """An alternative with everything measured on it so far."""

    plan: Plan
    lab: Laboratory
    offer: Offer


def capacity(
    scenario: Scenario,
    *,
    folder: Path = Path(),
    attainment: float | None = None,
    replicas: int | None = None,
    price: float | Mapping[str, float] | None = None,
    workers: int | None = None,
    budget: int = BUDGET,
    progress: Progress | None = None,
) -> Capacity:
    """The least replicas that serve a scenario's rate within its SLO, or the highest rate of ``replicas``.

    ``attainment``: share of requests that must keep every limit, instead of percentiles. ``price``: USD per
    GPU-hour, by hardware where it differs. ``budget``: most requests simulated. The answer depends on the
    scenario's seed, not on ``workers``. ``progress`` is told how many requests were simulated and what for.
    Raises `UserError` where the scenario has no SLO, no rate, or cannot run.
    """
    alone = [Alternative(scenario.name, {}, scenario)]
    return best_of(
        alone,
        folder=folder,
        attainment=attainment,
        replicas=replicas,
        price=price,
        workers=workers,
        budget=budget,
        progress=progress,
    )


def best_of(
    alternatives: Sequence[Alternative],
    *,
    folder: Path = Path(),
    attainment: float | None = None,
    replicas: int | None = None,
    price: float | Mapping[str, float] | None = None,
    workers: int | None = None,
    budget: int = BUDGET,
    progress: Progress | None = None,
) -> Capacity:
    """`capacity` of several alternatives under the same random numbers, the cheapest first."""
    scenarios = [one.scenario for one in alternatives if one.scenario is not None]
    hardware = dict.fromkeys(one.hardware for one in scenarios)
    prices = dict.fromkeys(hardware, price) if isinstance(price, (int, float)) else dict(price or {})
    asked = Request(
        folder,
        attainment,
        replicas,
        prices,
        workers or processors(),
        budget,
        progress,
    )
    wanted = criteria(scenarios[0].slo, attainment)
    cases, failed = _cases(alternatives, asked)
    if not cases:
        raise UserError("\n".join(dict.fromkeys(plan.reason for plan in failed)))
    cases.sort(key=lambda case: _rank(case.plan))
    question: Question = "replicas" if replicas is None else "rate"
    while not (cases[0].plan.reason or cases[0].plan.verification or cases[0].offer.recorded):
        cases[0] = cases[0]._replace(plan=_verified(cases[0], asked))
        cases.sort(key=lambda case: _rank(case.plan))  # an answer that was overruled may cost more now
    if not cases[0].plan.reason:
        cases[0] = cases[0]._replace(plan=_deepened(cases[0], asked))
    plans = (*(case.plan for case in cases), *failed)
    return Capacity(
        title=scenarios[0].name,
        question=question,
        wanted=wanted,
        plans=plans,
        losses=tuple(losses(plans, question, wanted)),
        seed=scenarios[0].seed,
        simulated=sum(case.lab.simulated for case in cases),
        notes=_common_notes(scenarios[0], cases[0].offer),
    )


def _cases(alternatives: Sequence[Alternative], asked: Request) -> tuple[list[Case], list[Plan]]:
    """Every alternative searched; apart, those that cannot run, with their reason."""
    cases, failed = [], []
    for one in alternatives:
        if one.scenario is None:
            failed.append(Plan(one.name, one.values, "", "", 1, "", reason=one.reason))
            continue
        try:
            cases.append(_searched(one.name, one.values, one.scenario, asked, one.notes))
        except UserError as error:
            failed.append(_unanswered(one.name, one.values, one.scenario, str(error)))
    return cases, failed


def _unanswered(name: str, values: Mapping[str, str], scenario: Scenario, reason: str) -> Plan:
    return Plan(
        name,
        values,
        scenario.model,
        scenario.hardware,
        scenario.parallel.tensor * scenario.parallel.pipeline,
        to_yaml(scenario),
        reason=reason,
    )


def _searched(
    name: str, values: Mapping[str, str], scenario: Scenario, asked: Request, notes: tuple[str, ...]
) -> Case:
    offer = offer_of(scenario, asked.folder)
    wanted = criteria(scenario.slo, asked.attainment)
    told = asked.progress
    lab = Laboratory(
        offer,
        wanted,
        folder=asked.folder,
        workers=asked.workers,
        budget=asked.budget,
        progress=(lambda simulated: told(simulated, name)) if told else None,
    )
    info = _profile_of(scenario, asked.folder)
    plan = replace(
        _unanswered(name, values, scenario, ""),
        saturation=lab.saturation,
        profile=info.name,
        profile_kind=info.kind,
        notes=notes,
    )
    answered = _for_rate if asked.replicas is None else _for_replicas
    return Case(answered(plan, lab, asked), lab, offer)


def _for_rate(plan: Plan, lab: Laboratory, asked: Request) -> Plan:
    """The least replicas for the scenario's rate."""
    found = least_replicas(lab, lab.offer.rate_per_s, lab.saturation.rate_per_s.value)
    tried = {one.point.replicas: one for one in found.tried}
    if found.replicas is None:
        return replace(plan, reason=_hopeless(found.tried[-1], lab.wanted), measurements=found.tried)
    at = tried[found.replicas]
    below = max((n for n in tried if n < found.replicas), default=None)
    return _answered(plan, lab, asked, at, tried[below] if below else None)


def _for_replicas(plan: Plan, lab: Laboratory, asked: Request) -> Plan:
    """The highest rate of so many replicas."""
    replicas = asked.replicas
    assert replicas is not None
    found = highest_rate(lab, replicas, replicas * lab.saturation.rate_per_s.value)
    if found.met is None:
        return replace(plan, reason=_hopeless(found.curve[0], lab.wanted), measurements=found.curve)
    plan = replace(plan, limit_per_s=found.rate_per_s, knee=_knee(found.curve))
    return _answered(plan, lab, asked, found.met, found.missed)


def _hopeless(easiest: Measurement, wanted: Sequence[Criterion]) -> str:
    criterion = wanted[easiest.worst] if easiest.strains else wanted[0]
    if easiest.verdict in {"unstable", "unsettled"}:
        return f"no steady state even at {easiest.rho:.2f} of its capacity"
    times = easiest.strain.value
    return (
        f"not even nearly idle replicas meet the SLO: {criterion.words} is {times:.3g} times what it "
        f"allows at {easiest.rho:.2f} of capacity"
    )


def _answered(
    plan: Plan, lab: Laboratory, asked: Request, at: Measurement, beyond: Measurement | None
) -> Plan:
    scenario = lab.offer.scenario
    tight = beyond if beyond is not None and beyond.usage is not None else at
    own = Point(lab.offer.rate_per_s, at.point.replicas)
    return replace(
        plan,
        replicas=at.point.replicas,
        rate_per_s=at.point.rate_per_s,
        own_rate_per_s=own.rate_per_s,
        own_rho=lab.rho(own),
        at=at,
        beyond=beyond,
        constraint=constraint_at(tight, lab.wanted, scenario.engine.max_num_seqs),
        cost=_cost(at, scenario, asked.price),
        measurements=tuple(lab.measurements),
    )


def _cost(at: Measurement, scenario: Scenario, price: Mapping[str, float]) -> Cost:
    gpus = at.point.replicas * scenario.parallel.tensor * scenario.parallel.pipeline
    output = at.point.rate_per_s * at.output_tokens * 3600 / 1e6  # million tokens an hour
    total = at.point.rate_per_s * (at.output_tokens + at.prompt_tokens) * 3600 / 1e6
    hourly = price.get(scenario.hardware)
    usd = None if hourly is None else gpus * hourly
    return Cost(
        gpus,
        gpus / output,
        gpus / total,
        usd,
        None if usd is None else usd / output,
        None if usd is None else usd / total,
    )


def _rank(plan: Plan) -> tuple[float, float, float]:
    """Answers that rest on measurements, then those on a data sheet; by cost per token; then by room.

    Whoever takes the cheapest of several estimates takes the one that is most too cheap: a data sheet,
    which knows of no overheads, would win for that alone.
    """
    if plan.reason or plan.at is None or plan.cost is None or plan.at.verdict != "met":
        return (2.0, 0.0, 0.0)
    return (0.0 if plan.calibrated else 1.0, plan.price, plan.at.strain.value)


def _deepened(case: Case, asked: Request) -> Plan:
    """The best alternative verified, with its limits, its doubts and how to check it."""
    plan = case.plan if case.plan.verification else _verified(case, asked)
    assert plan.at is not None
    lab, scenario = case.lab, case.offer.scenario
    curve = _curve(plan, lab)
    root = plan.limit_per_s
    if asked.replicas is None:
        found = _limit(lab, plan)
        root, curve = found.rate_per_s, found.curve
    info = _profile_of(scenario, asked.folder)
    doubt = doubt_of(plan, lab.wanted, curve, info)
    cost = plan.cost
    if cost is not None and cost.usd_per_hour is not None and asked.replicas is None:
        cost = cost._replace(sure_usd_per_hour=cost.usd_per_hour / plan.replicas * doubt.sure_replicas)
    warm = max(plan.at.warmup_requests, 1)
    least = max(criterion.least_requests for criterion in lab.wanted)
    share = case.offer.simulated_per_s(plan.at.point)
    prompts = prompts_to_send(share, lab.saturation.service_s, warm, least)
    return replace(
        plan,
        limit_per_s=limit_with(plan, lab.wanted, curve, root),
        knee=_knee(curve),
        doubt=doubt,
        cost=cost,
        sensitivities=sensitivities(plan, lab.wanted, curve),
        serve=serve_command(scenario),
        load_test=load_test(scenario, lab.wanted, plan.rate_per_s, plan.replicas, prompts),
        measurements=tuple(lab.measurements),
        notes=(*plan.notes, *_notes(plan, lab, info)),
    )


def _limit(lab: Laboratory, plan: Plan) -> HighestRate:
    """The highest rate of the fleet that was found for the scenario's."""
    fleet = plan.replicas * lab.saturation.rate_per_s.value
    assert plan.at is not None
    return highest_rate(lab, plan.replicas, fleet, known=[plan.at])


def _curve(plan: Plan, lab: Laboratory) -> tuple[Measurement, ...]:
    return tuple(one for one in lab.measurements if one.point.replicas == plan.replicas)


def _verified(case: Case, asked: Request) -> Plan:
    """The answer under an independent, longer run; where that misses, a weaker answer under another."""
    plan, lab, offer = case.plan, case.lab, case.offer
    if offer.recorded:
        return replace(plan, notes=(*plan.notes, "a trace is one realisation: no second run can verify it"))
    for _ in range(CORRECTIONS):
        assert plan.at is not None
        plan = replace(plan, verification=_verification(lab, offer, plan.at))
        if plan.verified != "refuted":
            return plan
        weaker = _weaker(plan, asked)
        (at,) = lab.measure([weaker], CAREFUL)
        note = _overruled(plan, lab.wanted, asked)
        if at.verdict != "met":
            return plan
        plan = _answered(replace(plan, notes=(*plan.notes, note)), lab, asked, at, plan.at)
    return plan


def _weaker(plan: Plan, asked: Request) -> Point:
    if asked.replicas is None:
        return Point(plan.rate_per_s, plan.replicas + 1)
    return Point(plan.rate_per_s * 0.98, plan.replicas)


def _overruled(plan: Plan, wanted: Sequence[Criterion], asked: Request) -> str:
    """What the search and the independent run said of the criterion that the latter found missed."""
    at, one = plan.at, plan.verification
    assert at is not None
    assert one is not None
    place, criterion = one.worst, wanted[one.worst]
    search, independent = (figure_words(criterion, figure_of(run, place, criterion)) for run in (at, one))
    return (
        f"{_place(plan, asked)} met the SLO in the search ({criterion.words} {search}) but not in the "
        f"independent run ({independent})"
    )


def _place(plan: Plan, asked: Request) -> str:
    if asked.replicas is None:
        return counted(plan.replicas, "replica")
    return f"{plan.rate_per_s:.4g} requests/s"


def _verification(lab: Laboratory, offer: Offer, at: Measurement) -> Measurement:
    """Of the whole fleet, if that can be afforded for long enough; else of one replica and its share."""
    single = VERIFIED_LENGTH * at.requests
    parts = at.point.replicas if offer.divisible else 1
    least = LIFETIMES * at.point.rate_per_s * lab.saturation.service_s
    whole = least <= VERIFIED_MOST
    requests = min(single * parts, VERIFIED_MOST) if whole else single
    found = lab.verify(at.point, round(max(requests, least) if whole else requests), whole=whole)
    if found.verdict == "unsettled" or not found.clear:
        found = lab.verify(at.point, 2 * found.requests, whole=whole)
    return found


def _profile_of(scenario: Scenario, folder: Path) -> ProfileInfo:
    return clock_of(scenario, load_model(model_path(scenario.model, folder)), folder)[1]


def _knee(curve: Sequence[Measurement]) -> Knee | None:
    known = [one for one in curve if one.verdict in {"met", "missed"} and one.figures_ms]
    known = [one for one in known if 0 < one.figures_ms["e2e_ms"]["mean"].value < inf]
    if len(known) < 3:
        return None
    best = max(known, key=lambda one: one.point.rate_per_s / one.figures_ms["e2e_ms"]["mean"].value)
    mean = best.figures_ms["e2e_ms"]["mean"].value
    return Knee(best.point.rate_per_s, best.rho, mean, best is known[-1])


def _common_notes(scenario: Scenario, offer: Offer) -> tuple[str, ...]:
    if offer.recorded:
        return ("the trace is replayed whole; its intervals come from stretches of it",)
    workload = scenario.workload
    if workload.requests is None and workload.duration_s is None:
        return ()
    return ("workload.requests and duration_s are not used: runs last until the figures are sure enough",)


def _notes(plan: Plan, lab: Laboratory, info: ProfileInfo) -> list[str]:
    assert plan.at is not None
    told = list(info.notes)
    if plan.at.extrapolated > EXTRAPOLATED and info.kind != "roofline":
        told.append(
            f"{plan.at.extrapolated:.0%} of the time lies beyond what the profile's source measured"
        )
    if lab.spent:
        told.append(
            "the budget of requests is spent: intervals are as narrow as that allowed; see --budget"
        )
    if plan.verified == "refuted":
        told.append("NOT CONFIRMED: the independent run did not meet the SLO; plan for more")
    return told
