"""What limits a service at a point: the resource whose lack would first break the SLO, with its figures."""

from __future__ import annotations

from typing import NamedTuple

from simulator.planning.criteria import Attainment, Criterion
from simulator.planning.laboratory import Measurement
from simulator.summary_words import milliseconds, percent
from simulator.usage import Usage

WAITING_MATTERS = 0.5  # of a latency: from here on it is the queue that makes it long
ROOMY = 0.8  # of the KV blocks at the peak, below which more requests would fit
TOLD_WAIT = 0.2  # of the waiting that one limit must account for to be the cause


class Constraint(NamedTuple):
    """``name``: in two words; ``evidence``: the figures that show it; ``hint``: what to try, or nothing."""

    name: str
    evidence: str
    hint: str = ""


def constraint_at(one: Measurement, wanted: tuple[Criterion, ...], seats: int) -> Constraint:
    """What makes the criterion nearest to its limit as large as it is."""
    usage = one.usage
    assert usage is not None
    criterion = wanted[one.worst]
    metric = _metric(one, criterion)
    if metric in {"ttft_ms", "queue_ms", "e2e_ms"} and _waiting_share(one, metric) >= WAITING_MATTERS:
        return _waiting(one, usage, seats)
    return _stepping(usage, metric)


def _metric(one: Measurement, criterion: Criterion) -> str:
    """The latency that a criterion is about: of several, the one that misses most."""
    if not isinstance(criterion, Attainment):
        return criterion.metric
    figures = one.figures_ms
    return max(criterion.limits, key=lambda pair: figures[pair[0]]["p99"].value / pair[1])[0]


def _waiting_share(one: Measurement, metric: str) -> float:
    queue, whole = one.figures_ms["queue_ms"]["p99"].value, one.figures_ms[metric]["p99"].value
    return queue / whole if whole else 0.0


def _waiting(one: Measurement, usage: Usage, seats: int) -> Constraint:
    waits = {
        "seats": usage.waited_for_seats,
        "blocks": usage.waited_for_blocks,
        "tokens": usage.waited_for_tokens,
        "batch": usage.waited_for_batch,
    }
    cause = max(waits, key=lambda name: waits[name])
    share = percent(min(1.0, waits[cause]))
    queue = milliseconds(one.figures_ms["queue_ms"]["p99"].value)
    if waits[cause] < TOLD_WAIT or (cause == "seats" and seats == 1):
        busy = f"the engine is busy {percent(usage.busy)} of the time"
        return Constraint("queueing", f"{busy} and requests wait for its step to end, p99 {queue}")
    told = {
        "seats": (
            "seats (max_num_seqs)",
            f"{share} of the waiting (p99 {queue}) is for one of {seats:,} seats; "
            f"{usage.rows:.0f} taken on average",
            _more_seats(usage),
        ),
        "blocks": (
            "KV blocks",
            f"{share} of the waiting (p99 {queue}) is for KV blocks: {percent(usage.kv_mean)} used on "
            f"average, {percent(usage.kv_peak)} at the peak, {one.preemptions:.2g} preemptions per request",
            "a larger parallel.tensor, which leaves more memory for KV",
        ),
        "tokens": _tokens(usage, f"{share} of the waiting (p99 {queue})"),
        "batch": (
            "batching policy",
            f"{share} of the waiting (p99 {queue}) is for the batch under way to end",
        ),
    }
    return Constraint(*told[cause])


def _more_seats(usage: Usage) -> str:
    if usage.kv_peak >= ROOMY:
        return ""
    return f"a larger engine.max_num_seqs: KV blocks are used to {percent(usage.kv_peak)} at the peak"


def _tokens(usage: Usage, waiting: str) -> tuple[str, str, str]:
    """Steps with no room for another prompt token: the budget is too small only if they calculate little.

    At least ``memory_bound - (1 - budget_spent)`` of the time goes into steps that spend the budget and
    still move bytes for longer than they calculate.
    """
    spent = percent(usage.budget_spent)
    if usage.memory_bound - (1 - usage.budget_spent) >= usage.budget_spent / 2 > 0:
        return (
            "token budget",
            f"{waiting} is for the token budget, spent in {spent} of the busy time, mostly in steps that "
            "move bytes for longer than they calculate",
            "a larger engine.max_num_batched_tokens",
        )
    return (
        "prompt compute",
        f"{waiting} is for prompts ahead that fill whole steps, {spent} of the busy time",
        "a larger parallel.tensor; a larger engine.max_num_batched_tokens makes steps longer, "
        "prompts no cheaper",
    )


def _stepping(usage: Usage, metric: str) -> Constraint:
    """Steps are long: because of bytes, or of arithmetic, mostly that of prompts beside decodes."""
    step = f"a step takes {milliseconds(usage.step_ms)} with {usage.rows:.0f} rows"
    if metric in {"ttft_ms", "itl_ms"} or usage.memory_bound < 0.5:
        prompts = f"prompts are computed in {percent(usage.beside_prompts)} of the busy time"
        longer = metric in {"itl_ms", "tpot_ms"} and usage.beside_prompts >= WAITING_MATTERS
        hint = "a smaller engine.max_num_batched_tokens: decodes then wait less for prompts beside them"
        told = f"{step}; {prompts}, and the longest latencies are theirs"
        return Constraint("compute", told, hint if longer else "")
    bytes_ = f"{percent(usage.memory_bound)} of the busy time goes into reading weights and KV"
    return Constraint("memory bandwidth", f"{step}; {bytes_}")
