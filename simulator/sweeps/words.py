"""A sweep in words: the same sentences, columns and cells on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from simulator.measures import MEASURES
from simulator.summary_words import DASH, milliseconds, percent, three_digits
from simulator.sweeps.sweep import Sweep
from simulator.sweeps.table import Row

MARK = "*"  # beside a point that nobody beats
COSTS = ("gpus", "cost_per_hour", "cost_per_million_output_tokens")
SHOWN = (
    "throughput.requests_per_s",
    "throughput.output_tokens_per_s",
    "ttft_ms.p99",
    "tpot_ms.p99",
    "e2e_ms.p99",
    "slo.attainment",
)
LOAD = "workload."  # keys that change what is offered rather than what serves it
LABELS = {measure.key: measure.label for measure in MEASURES} | {
    "gpus": "GPUs",
    "cost_per_hour": "Cost/h",
    "cost_per_million_output_tokens": "Cost/1M out",
    "throughput.requests_per_s": "Req/s",
    "throughput.output_tokens_per_s": "Tokens/s out",
}


def headline(sweep: Sweep) -> str:
    """How many points, how they came about, and what the best were judged by."""
    failed = f", {len(sweep.failed):,} cannot run" if sweep.failed else ""
    count = f"{len(sweep.rows):,} {'point' if len(sweep.rows) == 1 else 'points'}"
    judged = ", ".join(f"{objective.better} {label(objective.key)}" for objective in sweep.objectives)
    missed = len(sweep.misses_slo)
    left_out = f" {missed:,} left out, which miss{'es' if missed == 1 else ''} the SLO." if missed else ""
    return (
        f"{count}: {sweep.computed:,} computed, {sweep.reused:,} reused{failed}. "
        f"{len(sweep.front):,} on the Pareto front ({MARK}): no other has {judged} all at once.{left_out}"
    )


def heads(keys: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Names over a table's columns, of whole words: what was varied, by its last part, and each figure."""
    return ["#", *(key.rpartition(".")[2].replace("_", " ") for key in keys), *map(label, columns)]


def label(key: str) -> str:
    """A figure's name in a table, else its key."""
    if key in LABELS:
        return LABELS[key]
    name, _, statistic = key.rpartition(".")
    return f"{name.removesuffix('_ms').upper()} {statistic}"


def shown_columns(sweep: Sweep) -> list[str]:
    """Figures worth a column: those that differ somewhere, and the price instead of the GPUs if known."""
    wanted = dict.fromkeys((*COSTS, *SHOWN, sweep.objectives[-1].key))
    if sweep.objectives[0].key != "gpus":
        del wanted["gpus"]
    ran = [row.figures for row in sweep.rows if row.figures]
    return [key for key in wanted if len({figures.get(key) for figures in ran}) > 1 or len(ran) == 1]


def shown_rows(rows: Sequence[Row], keys: Sequence[str], columns: Sequence[str]) -> list[list[str]]:
    """Number, varied values and figures of each row that ran."""
    return [
        [
            f"{row.number}{MARK if row.front else ''}",
            *(str(row.values[key]) for key in keys),
            *(cell(key, row.figures.get(key)) for key in columns),
        ]
        for row in rows
        if row.figures
    ]


def cell(key: str, value: Any) -> str:
    """A figure with as many digits as it deserves."""
    if value is None:
        return DASH
    if "_ms" in key:
        return milliseconds(value)
    if key == "slo.attainment":
        return percent(value)
    if isinstance(value, int):
        return f"{value:,}"
    # A price keeps its zeros, so that those of a column can be told from one another: 0.900 beside 2.50.
    return f"{value:#.3g}" if key in COSTS and 0 < value < 0.995 else three_digits(value)


def failures(sweep: Sweep, most: int = 10) -> list[str]:
    """Why points could not run, each reason once with how many it is about."""
    reasons: dict[str, list[int]] = {}
    for row in sweep.failed:
        for line in row.reason.splitlines():
            reasons.setdefault(line, []).append(row.number)
    told = [
        f"{'point' if len(numbers) == 1 else 'points'} {_numbers(numbers)}: {reason}"
        for reason, numbers in reasons.items()
    ]
    left = len(told) - most
    return told if left <= 0 else [*told[:most], f"and {left} further reasons; the table has them all"]


def _numbers(numbers: Sequence[int], most: int = 5) -> str:
    told = ", ".join(map(str, numbers[:most]))
    return told if len(numbers) <= most else f"{told} and {len(numbers) - most} more"


def warnings(sweep: Sweep) -> list[str]:
    """What speaks against taking the figures at face value, once for all the points that it is about."""
    return _grouped(sweep, _doubts)


def notes(sweep: Sweep, most: int = 10) -> list[str]:
    """What one should know, once for all the points that it is about."""
    told = _grouped(sweep, lambda row: row.notes)
    return [*sweep.notes, *_no_front(sweep), *_mixed_loads(sweep), *told[:most]]


def _grouped(sweep: Sweep, facts: Callable[[Row], Iterable[str]]) -> list[str]:
    ran = [row for row in sweep.rows if row.figures]
    about: dict[str, int] = {}
    for row in ran:
        for fact in dict.fromkeys(facts(row)):
            about[fact] = about.get(fact, 0) + 1
    return [
        fact if count == len(ran) else f"{count} of {len(ran)} points: {fact}"
        for fact, count in about.items()
    ]


def _mixed_loads(sweep: Sweep) -> list[str]:
    varied = [key for key in sweep.keys if key.startswith(LOAD)]
    if not varied:
        return []
    return [
        f"points with another {' or '.join(varied)} serve another load: the front mixes loads, and those "
        "that are offered more have more throughput for it"
    ]


def _no_front(sweep: Sweep) -> list[str]:
    if any(row.front for row in sweep.rows):
        return []
    ran = [row for row in sweep.rows if row.figures]
    if sweep.misses_slo:
        nearest = max(sweep.misses_slo, key=lambda row: row.figures.get("slo.attainment") or 0.0)
        kept = percent(nearest.figures.get("slo.attainment"))
        number = "no point" if len(sweep.misses_slo) == len(ran) else "no comparable point"
        return [
            f"{number} meets the SLO, so none is on the front; most requests keep it at point "
            f"{nearest.number}: {kept}"
        ]
    latency = label(sweep.objectives[-1].key)
    return [f"no point is on the front: each loses more requests than {latency} leaves aside"]


def _doubts(row: Row) -> list[str]:
    doubts = []
    if row.figures.get("profile.kind") == "roofline":
        doubts.append("UNCALIBRATED: priced by a roofline of data-sheet numbers; times may be far off")
    if row.figures.get("requests.completed") != row.figures.get("requests.offered"):
        doubts.append("not every request was answered; percentiles are of those that were")
    return doubts


def as_json(sweep: Sweep) -> dict[str, Any]:
    """The sweep for programs: every row, the numbers of those that nobody beats, and the counts."""
    return {
        "scenario": sweep.name,
        "varied": list(sweep.keys),
        "objectives": [objective._asdict() for objective in sweep.objectives],
        "points": len(sweep.rows),
        "computed": sweep.computed,
        "reused": sweep.reused,
        "failed": len(sweep.failed),
        "front": [row.number for row in sweep.front],
        "rows": [row.cells() for row in sweep.rows],
        "notes": [*warnings(sweep), *notes(sweep)],
    }
