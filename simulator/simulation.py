"""From a scenario to its results: the composition of everything that simulating needs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from simulator.cluster import Cluster, Fleet
from simulator.cost_model import CostModel
from simulator.engine_settings import OrcaSettings
from simulator.fleet import Group, build_fleet, load_groups
from simulator.fleet_summary import (
    extrapolated_time_share,
    group_summaries,
    happened,
    joint_name,
    joint_profile,
)
from simulator.metrics import Summary, run_end_ns, summarise
from simulator.models import Model, load_model
from simulator.padded_settings import FasterTransformerSettings
from simulator.profile import ProfileInfo
from simulator.recorder import IterationLog
from simulator.run_tables import RunTables
from simulator.scenario import Scenario, SloSettings
from simulator.scenario_file import model_path
from simulator.sizing import NS_PER_S
from simulator.workloads.workload import Workload, build_workload

CROWDED = 0.9  # peak KV use from which an error in the number of blocks changes the answer


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulation gives: its tables, the figures computed from them, and what one should know."""

    tables: RunTables
    summary: Summary
    profile: ProfileInfo
    notes: tuple[str, ...]


class Ran(NamedTuple):
    """A run as it comes off the clock, with what it was made of.

    ``cost``: the clock of the first group. ``group_of``: the place in ``groups`` of each replica's.
    """

    tables: RunTables
    logs: Sequence[IterationLog]
    model: Model
    cost: CostModel
    profile: ProfileInfo
    workload: Workload
    overhead_ms: float
    groups: Sequence[Group]
    group_of: Sequence[int]
    happened: Summary  # to replicas, as figures of the summary


def simulate(
    scenario: Scenario,
    *,
    folder: Path = Path(),
    progress: Callable[[int, int | None], None] | None = None,
) -> Simulation:
    """Run a scenario on simulated time.

    ``folder``: where its relative paths start. ``progress`` is told now and then how many requests are
    answered, and of how many where that is known. Raises `UserError` where the scenario cannot run.
    """
    started = perf_counter()
    ran = run(scenario, folder=folder, progress=progress)
    model, tables, profile = ran.model, ran.tables, ran.profile
    summary = summarise(
        tables,
        scenario_name=scenario.name,
        seed=scenario.seed,
        policy=joint_name([group.scenario.engine.policy for group in ran.groups]),
        model=model.name,
        hardware=joint_name([group.scenario.hardware for group in ran.groups]),
        profile=profile,
        extrapolated=extrapolated_time_share(tables, ran.groups, ran.group_of),
        slo=scenario.slo or SloSettings.model_construct(),
        wall_s=perf_counter() - started,
        replicas=sum(group.scenario.replicas for group in ran.groups),
        seats=scenario.engine.max_num_seqs,
    )
    summary |= ran.happened
    if len(ran.groups) > 1 or scenario.fleet is not None:
        roles = () if scenario.disaggregation is None else ("prefill", "decode")
        summary["groups"] = group_summaries(tables, ran.groups, ran.group_of, roles)
    notes = (
        *model.notes,
        *ran.workload.notes,
        *profile.notes,
        *_overhead_notes(ran.overhead_ms),
        *_kv_notes(scenario, summary),
        *_reservation_notes(scenario, model),
        *_length_notes(scenario, model),
    )
    return Simulation(tables, summary, profile, notes)


def make_fleet(scenario: Scenario, model: Model, cost: CostModel, workload: Workload) -> Fleet:
    """A scenario's replicas behind its router, all on one clock."""
    group = Group(scenario, cost, ProfileInfo(scenario.profile, "roofline", ()))
    return build_fleet(scenario, model, (group,), workload)


def run(
    scenario: Scenario,
    *,
    folder: Path = Path(),
    progress: Callable[[int, int | None], None] | None = None,
) -> Ran:
    """Everything that `simulate` does but for the figures."""
    model = load_model(model_path(scenario.model, folder))
    groups = load_groups(scenario, model, folder)
    profile = joint_profile(groups)
    workload = build_workload(scenario.workload, scenario.seed, folder)
    fleet = build_fleet(scenario, model, groups, workload)
    overhead_ms = server_overhead_ms(scenario, profile)
    overhead_ns = round(overhead_ms * NS_PER_S / 1000)
    cluster, tables = run_fleet(fleet, workload, scenario.workload.duration_s, overhead_ns, progress)
    group_of = [server.group for server in fleet.servers]
    return Ran(
        tables,
        cluster.logs,
        model,
        groups[0].cost,
        profile,
        workload,
        overhead_ms,
        groups,
        group_of,
        happened(tables, groups, cluster.record(run_end_ns(tables)), cluster.fetched),
    )


def run_fleet(
    fleet: Fleet,
    workload: Workload,
    duration_s: float | None = None,
    server_overhead_ns: int = 0,
    progress: Callable[[int, int | None], None] | None = None,
) -> tuple[Cluster, RunTables]:
    """Serve a workload; clients that react to answers go on until ``duration_s``."""
    reacts = workload.sessions or workload.concurrency is not None
    cluster = Cluster(
        fleet,
        workload,
        send_until_ns=round(duration_s * NS_PER_S) if reacts and duration_s is not None else None,
        server_overhead_ns=server_overhead_ns,
        progress=progress and (lambda completed: progress(completed, workload.requests)),
    )
    with collector_paused():
        return cluster, cluster.run()


def server_overhead_ms(scenario: Scenario, profile: ProfileInfo) -> float:
    """What requests spend in the server outside the engine: the scenario's word, or else the profile's."""
    if scenario.server_overhead_ms != "auto":
        return scenario.server_overhead_ms
    return profile.server_overhead_ns * 1000 / NS_PER_S


def _overhead_notes(overhead_ms: float) -> Iterator[str]:
    if overhead_ms:
        yield (
            f"TTFT and E2E hold {overhead_ms:.3g} ms of server overhead per request (HTTP, tokenisation, "
            "queue hand-off), outside the engine"
        )


@contextmanager
def collector_paused() -> Iterator[None]:
    """A run makes no cycles, and looking for them would visit every waiting request again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _reservation_notes(scenario: Scenario, model: Model) -> Iterator[str]:
    """Policies that reserve for the longest sequence are only as good as that limit is tight."""
    engine = scenario.engine
    reserves_all = isinstance(engine, FasterTransformerSettings) or (
        isinstance(engine, OrcaSettings) and engine.reservation == "max"
    )
    if reserves_all and engine.max_model_len is None:
        yield (
            f"{engine.policy} reserves KV memory for {model.max_positions:,} tokens per request, the limit "
            "of the model: set engine.max_model_len to the longest sequence that you serve"
        )


def _length_notes(scenario: Scenario, model: Model) -> Iterator[str]:
    limit = scenario.engine.max_model_len
    if limit is not None and limit > model.max_positions:
        yield (
            f"engine.max_model_len is {limit:,}, but the model was made for "
            f"{model.max_positions:,} tokens: "
            "engines refuse that unless its positions are scaled"
        )


def _kv_notes(scenario: Scenario, summary: Summary) -> Iterator[str]:
    peak = summary["kv"]["peak_utilisation"]
    if peak is not None and peak > CROWDED and scenario.engine.kv_blocks == "auto":
        yield (
            f"the KV cache was {peak:.0%} full at its peak, so the answer depends on its size: "
            "set engine.kv_blocks to the number that your engine logs at start-up"
        )
