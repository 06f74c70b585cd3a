"""A capacity answer on the terminal: the answer in a sentence, then the figures behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.planning.answer import Capacity, Cost, Plan, figure_of
from simulator.planning.criteria import Criterion, promises
from simulator.planning.laboratory import Measurement
from simulator.planning.search import IDLE
from simulator.planning.words import counted, figure_words
from simulator.summary_words import DASH, milliseconds, percent, three_digits

VERDICTS = {"met": "met", "missed": "missed", "unstable": "UNSTABLE", "unsettled": "unsettled"}
EXPLAINED = {
    "unstable": "UNSTABLE: the backlog grows for as long as the load lasts",
    "unsettled": "unsettled: no steady state within the longest run",
}
VERIFIED = {
    "confirmed": "confirmed by an independent run of {requests} requests",
    "not refuted": "not refuted by an independent run of {requests} requests; "
    "the limit is within its interval",
    "refuted": "NOT CONFIRMED by an independent run of {requests} requests",
}
NEARLY_IDLE = 1.5 * IDLE  # rho up to which a row only says that some number of replicas would do
FIT_ON_A_LINE = 2  # criteria whose intervals a terminal of 80 columns holds


def capacity_view(found: Capacity) -> RenderableType:
    """Everything that one reads first."""
    best = found.best
    parts: list[RenderableType] = [Text(found.title, style="bold")]
    parts.append(Text(headline(found), style="bold" if best else "bold red"))
    parts.append(Text(f"SLO: {promises(found.wanted)}"))
    if len(found.plans) > 1:
        parts.append(_alternatives(found))
    shown = best or found.plans[0]
    rows = list(_worth_showing(shown))
    if rows:
        parts.append(_measurements(shown, rows, found.wanted))
        verdicts = {one.verdict: None for one in rows}
        parts += [Text(told) for verdict, told in EXPLAINED.items() if verdict in verdicts]
    if best is not None:
        parts.append(_figures(found, best))
    notes = (*found.notes, *(best.notes if best else ()))
    parts += [Text(f"note: {note}", style="yellow") for note in dict.fromkeys(notes)]
    return Group(*parts)


def headline(found: Capacity) -> str:
    """``6 replicas; p99 TTFT 410 ms [380, 455]; SLO met with probability 0.97; limited by KV blocks``

    The figures are those of the search and of the independent run together.
    """
    best = found.best
    if best is None:
        return f"No answer: {found.plans[0].reason}" if found.plans else "No answer"
    parts = [_answer(found, best)]
    if best.estimate is not None:
        parts.append(_criteria_words(best.estimate, found.wanted))
    if best.doubt is not None:
        parts.append(f"SLO met with probability {best.doubt.probability:.2f}")
    if best.constraint is not None:
        parts.append(f"limited by {best.constraint.name}")
    if best.cost is not None and best.cost.usd_per_million_output is not None:
        parts.append(f"{_usd(best.cost.usd_per_million_output)} per million output tokens")
    cheaper = found.cheaper_uncalibrated
    if cheaper is not None:
        parts.append(f"cheaper but UNCALIBRATED: {cheaper.name}, {_amount(found, cheaper)}")
    return "; ".join(parts)


def _answer(found: Capacity, best: Plan) -> str:
    label = f"{best.name}: " if len(found.plans) > 1 else ""
    return f"{label}{_amount(found, best)}{_basis(found, best)}"


def _amount(found: Capacity, plan: Plan) -> str:
    copies = counted(plan.replicas, "replica")
    gpus = f" ({plan.gpus:,} GPUs)" if plan.gpus != plan.replicas else ""
    rate = f"{three_digits(plan.rate_per_s)} requests/s"
    return f"{copies}{gpus} for {rate}" if found.question == "replicas" else f"{rate} on {copies}{gpus}"


def _basis(found: Capacity, best: Plan) -> str:
    """A warning where nothing behind the answer was ever measured; nothing where it was."""
    if best.calibrated:
        return ""
    others = any(plan.profile and plan.calibrated for plan in found.plans)
    none = ", and no calibrated alternative meets the SLO" if others else ""
    return f", UNCALIBRATED (step times from a data sheet{none})"


def _criteria_words(one: Measurement, wanted: Sequence[Criterion]) -> str:
    return ", ".join(
        f"{criterion.words} {figure_words(criterion, figure_of(one, place, criterion))}"
        for place, criterion in enumerate(wanted)
    )


def _measurements(plan: Plan, rows: Sequence[Measurement], wanted: Sequence[Criterion]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("Replicas", "Rate/s", "rho"):
        table.add_column(name, justify="right", no_wrap=True)
    for criterion in wanted:
        table.add_column(criterion.words, justify="right", no_wrap=len(wanted) <= FIT_ON_A_LINE)
    table.add_column("SLO", no_wrap=True)
    for one in rows:
        cells = [f"{one.point.replicas:,}", three_digits(one.point.rate_per_s), f"{one.rho:.2f}"]
        cells += _strain_cells(one, wanted)
        table.add_row(*cells, VERDICTS[one.verdict], style="bold" if one is plan.at else None)
    return table


def _strain_cells(one: Measurement, wanted: Sequence[Criterion]) -> list[str]:
    """Each criterion's figure; of an overloaded point how fast its backlog grows."""
    if one.strains:
        return [
            figure_words(criterion, figure_of(one, place, criterion))
            for place, criterion in enumerate(wanted)
        ]
    growth = three_digits(one.point.rate_per_s * (1 - 1 / one.rho))
    return [f"backlog +{growth}/s", *("–" for _ in wanted[1:])]


def _worth_showing(plan: Plan) -> Iterator[Measurement]:
    """The answer's fleet at every rate, and every other fleet at the answer's rate."""
    for one in plan.measurements:
        same_fleet = one.point.replicas == plan.replicas
        same_rate = abs(one.point.rate_per_s - plan.rate_per_s) < 1e-9 * plan.rate_per_s
        idle = one.rho < NEARLY_IDLE and one is not plan.at
        if plan.at is None or ((same_fleet or same_rate) and not idle):
            yield one


def _alternatives(found: Capacity) -> Table:
    priced = any(plan.cost and plan.cost.usd_per_hour is not None for plan in found.plans)
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Alternative", overflow="fold")
    for name in ("GPUs", "Rate/s", "$/M out" if priced else "GPU-h/M out"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for plan, lost in zip(found.plans, ("", *found.losses), strict=True):
        price = DASH if not plan.cost else _usd(plan.price) if priced else f"{plan.price:.3g}"
        cells = (f"{plan.gpus:,}" if plan.gpus else DASH, three_digits(plan.rate_per_s or None), price)
        style = "bold" if found.best is plan else None
        table.add_row(plan.name, *cells, _standing(found, plan, lost), style=style)
    return table


def _standing(found: Capacity, plan: Plan, lost: str) -> str:
    """Best or why not, behind what one should know of its figures."""
    told = [] if plan.calibrated or not plan.profile else ["UNCALIBRATED"]
    if found.best is plan:
        return ", ".join([*told, "best", plan.verified or "not verified"])
    if plan.reason:
        return ": ".join([*told, plan.reason])
    return f"{', '.join([*told, plan.verified or 'not verified'])}: {lost}"


def _figures(found: Capacity, best: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, told in _lines(found, best):
        table.add_row(Text(label, style="bold"), Text(told))
    return table


def _lines(found: Capacity, best: Plan) -> Iterator[tuple[str, str]]:
    if best.constraint is not None:
        yield "Limited by", f"{best.constraint.name}: {best.constraint.evidence}"
        if best.constraint.hint:
            yield "Try", best.constraint.hint
    yield from _load_lines(best)
    yield from _doubt_lines(found, best)
    if best.verification is not None:
        yield from _verification_lines(best, found.wanted)
    yield from _cost_lines(best)
    if best.serve is not None:
        yield "Serve with", best.serve
    if best.load_test is not None:
        yield "Refute with", best.load_test
    yield "Simulated", f"{found.simulated:,} requests; seed {found.seed}"


def _load_lines(best: Plan) -> Iterator[tuple[str, str]]:
    saturation, at = best.saturation, best.at
    if saturation is not None and at is not None:
        most = best.replicas * saturation.rate_per_s.value
        yield (
            "Load",
            f"rho {at.rho:.2f}: {three_digits(best.rate_per_s)} of {three_digits(most)} requests/s that "
            f"saturate the fleet, {percent(1 - at.rho)} away",
        )
    if abs(best.own_rate_per_s - best.rate_per_s) > 1e-9 * best.rate_per_s:
        own = f"{three_digits(best.own_rate_per_s)} requests/s is {best.own_rho:.2f} of that"
        yield "", f"the scenario's {own}: {VERDICTS[best.own_verdict]}"
    if best.limit_per_s is not None:
        low, high = (three_digits(end) for end in (best.limit_per_s.low, best.limit_per_s.high))
        limit = f"{three_digits(best.limit_per_s.value)} requests/s [{low}, {high}]"
        yield "SLO limit", f"this fleet meets the SLO up to {limit}"
    if best.knee is not None:
        beyond = " or beyond" if best.knee.beyond else ""
        rate = three_digits(best.knee.rate_per_s)
        yield (
            "Knee",
            f"{rate} requests/s{beyond} (rho {best.knee.rho:.2f}), mean E2E "
            f"{milliseconds(best.knee.e2e_ms)}: throughput over latency is largest there",
        )


def _doubt_lines(found: Capacity, best: Plan) -> Iterator[tuple[str, str]]:
    doubt = best.doubt
    if doubt is None:
        return
    yield (
        "Sure of it",
        f"steps may take {percent(doubt.headroom - 1)} longer before the SLO is missed; "
        f"median error of step times {percent(doubt.step_error)} ({doubt.step_error_source})",
    )
    if found.question == "replicas":
        yield "", f"with probability 0.95: {counted(doubt.sure_replicas, 'replica')}"
    else:
        yield "", f"with probability 0.95: {three_digits(doubt.sure_rate_per_s)} requests/s"
    told = [
        f"{one.step_time - 1:+.0%}: "
        + (f"{one.replicas:,}" if found.question == "replicas" else three_digits(one.rate_per_s))
        for one in best.sensitivities
    ]
    what = "replicas needed" if found.question == "replicas" else "requests/s"
    yield "Step time", f"{what} at {', '.join(told)}"


def _verification_lines(best: Plan, wanted: Sequence[Criterion]) -> Iterator[tuple[str, str]]:
    one, together = best.verification, best.estimate
    assert one is not None
    assert together is not None
    assert best.verified is not None
    told = VERIFIED[best.verified].format(requests=f"{one.requests:,}")
    yield "Verified", f"{told}: {_criteria_words(one, wanted)}"
    yield "", f"together with the search: {_criteria_words(together, wanted)}"


def _cost_lines(best: Plan) -> Iterator[tuple[str, str]]:
    cost = best.cost
    if cost is None:
        return
    hours = (
        f"{cost.gpu_hours_per_million_output:.3g} GPU-hours per million output tokens, "
        f"{cost.gpu_hours_per_million_total:.3g} with prompts"
    )
    if cost.usd_per_hour is None:
        yield "Cost", f"{hours}; --price USD_PER_GPU_HOUR for money"
        return
    yield (
        "Cost",
        f"{_hourly(best, cost)}; {_usd(cost.usd_per_million_output)} per million output tokens, "
        f"{_usd(cost.usd_per_million_total)} with prompts; {hours}",
    )


def _hourly(best: Plan, cost: Cost) -> str:
    """``$40.00 an hour (2 replicas) to $80.00 (4 replicas, probability 0.95)``"""
    plain = f"{_usd(cost.usd_per_hour)} an hour ({counted(best.replicas, 'replica')}"
    if best.doubt is None or cost.sure_usd_per_hour is None:
        return f"{plain})"
    if best.doubt.sure_replicas == best.replicas:
        return f"{plain}, enough with probability 0.95)"
    sure = counted(best.doubt.sure_replicas, "replica")
    return f"{plain}) to {_usd(cost.sure_usd_per_hour)} ({sure}, probability 0.95)"


def _usd(amount: float | None) -> str:
    """Cents where there are any to speak of, else three digits."""
    return DASH if amount is None else f"${amount:,.2f}" if amount >= 0.1 else f"${amount:.3g}"
