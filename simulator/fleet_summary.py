"""Figures of each kind of replica in a fleet, and what a fleet of several kinds is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy import int64
from numpy.typing import NDArray

from simulator.availability import Record
from simulator.cost_model import CostModel
from simulator.fleet import Group
from simulator.metrics import (
    NS_PER_S,
    Summary,
    distribution_ms,
    first_arrival_ns,
    request_metrics,
    run_end_ns,
)
from simulator.profile import ProfileInfo
from simulator.run_tables import RunTables

TRUST = ("measured", "imported", "roofline")  # what stands behind a profile, best first


def extrapolated_share(tables: RunTables, cost: CostModel) -> float:
    """Share of the iteration time that was priced outside what the profile's source measured."""
    iterations = tables.iterations
    time_ns = iterations["end_ns"] - iterations["start_ns"]
    total = int(time_ns.sum())
    return int(time_ns[cost.extrapolated(iterations)].sum()) / total if total else 0.0


def extrapolated_time_share(tables: RunTables, groups: Sequence[Group], group_of: Sequence[int]) -> float:
    """The same over groups that each have a profile of their own.

    ``group_of``: which group each replica in the tables belongs to.
    """
    if len(groups) == 1:
        return extrapolated_share(tables, groups[0].cost)
    iterations = tables.iterations
    time_ns = iterations["end_ns"] - iterations["start_ns"]
    total = int(time_ns.sum())
    places = np.array(group_of, int64)[iterations["replica"]]
    outside = 0
    for index, group in enumerate(groups):
        mine = places == index
        columns = {name: column[mine] for name, column in iterations.items()}
        outside += int(time_ns[mine][group.cost.extrapolated(columns)].sum())
    return outside / total if total else 0.0


def joint_profile(groups: Sequence[Group]) -> ProfileInfo:
    """What the times of all groups rest on; of its kinds the least trusted."""
    profiles = list({group.profile.name: group.profile for group in groups}.values())
    notes = dict.fromkeys(note for profile in profiles for note in profile.notes)
    return replace(
        groups[0].profile,
        name=" + ".join(profile.name for profile in profiles),
        kind=max((profile.kind for profile in profiles), key=TRUST.index),
        notes=tuple(notes),
    )


def joint_name(names: Sequence[str]) -> str:
    """Different names joined, each once."""
    return " + ".join(dict.fromkeys(names))


def happened(
    tables: RunTables,
    groups: Sequence[Group],
    record: Record | None,
    fetched: tuple[int, int] | None,
) -> Summary:
    """What was paid for, and what became of replicas: figures for the summary.

    Replicas are paid for from when they are started, or the beginning, until they are stopped, or the last
    thing that happens; while they are down after a failure too. ``fetched``: requests and tokens.
    """
    end_ns = run_end_ns(tables)
    gpus = sum(group.gpus for group in groups)
    replicas = sum(group.engines for group in groups)
    paid_ns = replicas * end_ns if record is None else record.replica_ns
    summary: Summary = {
        "gpus": gpus,
        "gpu_seconds": gpus * paid_ns / max(replicas, 1) / NS_PER_S,
    }
    if record is not None:
        summary["availability"] = {
            "failures": record.failures,
            "retries": record.retries,
            "replicas_started": record.started,
            "replicas_stopped": record.stopped,
            "fewest_replicas": record.fewest,
            "most_replicas": record.most,
            "mean_replicas": _ratio(record.replica_ns, end_ns),
        }
    if fetched is not None:
        summary["kv_transfer"] = {"requests": fetched[0], "tokens": fetched[1]}
    return summary


def group_summaries(
    tables: RunTables, groups: Sequence[Group], group_of: Sequence[int], roles: Sequence[str]
) -> list[Summary]:
    """How each kind of replica was loaded; times as shares of the whole run.

    A request counts for the replica that completed it. ``roles``: what each kind is there for, if not all
    of them for everything.
    """
    places = np.array(group_of, int64)
    found = [_group_summary(tables, group, places == index) for index, group in enumerate(groups)]
    return (
        [{"role": role} | figures for role, figures in zip(roles, found, strict=True)] if roles else found
    )


def _group_summary(tables: RunTables, group: Group, members: NDArray[np.bool_]) -> Summary:
    requests, iterations = tables.requests, tables.iterations
    served, ran = members[requests["replica"]], members[iterations["replica"]]
    busy_ns = (iterations["end_ns"] - iterations["start_ns"])[ran]
    span_ns = run_end_ns(tables) - first_arrival_ns(tables)
    used = (iterations["kv_blocks_used"][ran].astype(float) * busy_ns).sum()
    # The tables of a single replica say its blocks only once.
    blocks = int(np.array(tables.replica_blocks or (tables.kv_blocks,), int64)[members].sum())
    metrics = request_metrics({name: column[served] for name, column in requests.items()})
    scenario = group.scenario
    each = blocks // max(scenario.replicas, 1)
    return {
        "hardware": scenario.hardware,
        "policy": scenario.engine.policy,
        "profile": {"name": group.profile.name, "kind": group.profile.kind},
        "replicas": scenario.replicas,
        "gpus": group.gpus,
        "requests": int(served.sum()),
        "request_share": _ratio(int(served.sum()), len(served)),
        "prompt_tokens": int((iterations["prefill_tokens"] * iterations["repeats"])[ran].sum()),
        "output_tokens": int(requests["output_tokens"][served].sum()),
        "busy_share": _ratio(int(busy_ns.sum()), int(members.sum()) * span_ns),
        "kv": {"blocks": each, "mean_utilisation": _ratio(used, blocks * span_ns)},
        "ttft_ms": distribution_ms(metrics.ttft_ns),
        "tpot_ms": distribution_ms(metrics.tpot_ns),
    }


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None
