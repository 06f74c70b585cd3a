"""Why the runners-up lost, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.planning.answer import Plan, Question, figure_of
from simulator.planning.criteria import Attainment, Criterion
from simulator.planning.laboratory import Measurement
from simulator.planning.words import counted
from simulator.summary_words import milliseconds, percent, three_digits


def losses(plans: Sequence[Plan], question: Question, wanted: Sequence[Criterion]) -> Iterator[str]:
    """For every plan but the first."""
    for plan in plans[1:]:
        if plan.reason:
            yield plan.reason
        elif plan.price < plans[0].price and plans[0].calibrated and not plan.calibrated:
            yield "cheaper, if the data sheet's numbers hold; ranked behind what rests on measurements"
        elif question == "replicas":
            yield _more_replicas(plan, plans[0], wanted)
        else:
            yield _lower_rate(plan, plans[0], wanted)


def _more_replicas(plan: Plan, best: Plan, wanted: Sequence[Criterion]) -> str:
    if plan.gpus == best.gpus:
        return f"as many GPUs, {_standing(plan, best)}: {_shown(plan.at, wanted)}"
    return f"needs {counted(plan.gpus, 'GPU')} instead of {best.gpus:,}{_because(plan, wanted)}"


def _standing(plan: Plan, best: Plan) -> str:
    if plan.calibrated != best.calibrated:
        return "but rests on a data sheet"
    return "with less room" if plan.price == best.price else "at a higher price"


def _because(plan: Plan, wanted: Sequence[Criterion]) -> str:
    limit = f"; limited by {plan.constraint.name}" if plan.constraint else ""
    if plan.beyond is None:
        return limit
    replicas = counted(plan.beyond.point.replicas, "replica")
    return f": with {replicas} {_shown(plan.beyond, wanted)}{limit}"


def _lower_rate(plan: Plan, best: Plan, wanted: Sequence[Criterion]) -> str:
    per_gpu, best_per_gpu = plan.rate_per_s / plan.gpus, best.rate_per_s / best.gpus
    change = percent(1 - per_gpu / best_per_gpu) if per_gpu < best_per_gpu else "nothing"
    rate = f"bears {three_digits(plan.rate_per_s)} requests/s, {change} less per GPU"
    if plan.beyond is None:
        return rate
    limit = f"; limited by {plan.constraint.name}" if plan.constraint else ""
    beyond = f"at {three_digits(plan.beyond.point.rate_per_s)} {_shown(plan.beyond, wanted)}"
    return f"{rate}: {beyond}{limit}"


def _shown(one: Measurement | None, wanted: Sequence[Criterion]) -> str:
    """What a measurement says of the criterion that is worst there."""
    if one is None:
        return ""
    if not one.strains:
        return f"it is offered {one.rho:.2f} of what it can serve"
    criterion, figure = wanted[one.worst], figure_of(one, one.worst, wanted[one.worst])
    value = percent(figure.value) if isinstance(criterion, Attainment) else milliseconds(figure.value)
    growing = " and growing" if one.verdict in {"unstable", "unsettled"} else ""
    return f"{criterion.words} is {value}{growing}"
