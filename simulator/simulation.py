"""From a scenario to its results: the composition of everything that simulating needs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from simulator.cluster import Cluster, Fleet
from simulator.cost_model import CostModel, load_cost_model
from simulator.engine_settings import OrcaSettings
from simulator.hardware import load_hardware
from simulator.metrics import Summary, summarise
from simulator.models import Model, load_model
from simulator.padded_settings import FasterTransformerSettings
from simulator.policies import make_scheduler
from simulator.profile import ProfileInfo
from simulator.routers import ROUTERS
from simulator.run_tables import RunTables
from simulator.scenario import ClosedArrivals, Scenario, SloSettings
from simulator.scenario_file import model_path
from simulator.sizing import NS_PER_S, kv_size, longest_sequence
from simulator.workloads.workload import Workload, build_workload

CROWDED = 0.9  # peak KV use from which an error in the number of blocks changes the answer


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulation gives: its tables, the figures computed from them, and what one should know."""

    tables: RunTables
    summary: Summary
    profile: ProfileInfo
    notes: tuple[str, ...]


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
    model, hardware = load_model(model_path(scenario.model, folder)), load_hardware(scenario.hardware)
    cost, profile = load_cost_model(
        scenario.profile, model, hardware, scenario.dtype, scenario.parallel.tensor, folder
    )
    workload = build_workload(scenario.workload, scenario.seed, folder)
    tables = _run(scenario, make_fleet(scenario, model, cost, workload), workload, progress)
    summary = summarise(
        tables,
        scenario_name=scenario.name,
        seed=scenario.seed,
        policy=scenario.engine.policy,
        model=model.name,
        hardware=hardware.name,
        profile=profile,
        extrapolated=extrapolated_share(tables, cost),
        slo=scenario.slo or SloSettings.model_construct(),
        wall_s=perf_counter() - started,
        replicas=scenario.replicas,
        seats=scenario.engine.max_num_seqs,
    )
    notes = (
        *model.notes,
        *workload.notes,
        *profile.notes,
        *_kv_notes(scenario, summary),
        *_reservation_notes(scenario, model),
    )
    return Simulation(tables, summary, profile, notes)


def make_fleet(scenario: Scenario, model: Model, cost: CostModel, workload: Workload) -> Fleet:
    """A scenario's schedulers behind its router, on its clock."""

    def longest_tokens() -> int:
        return max(arrival.prompt_tokens + arrival.output_limit for arrival in workload.arrivals())

    size, longest = kv_size(scenario, model), longest_sequence(scenario, model)
    schedulers = [
        make_scheduler(scenario.engine, size.blocks, longest, longest_tokens, size.block_bytes)
        for _ in range(scenario.replicas)
    ]
    return Fleet(schedulers, cost, ROUTERS[scenario.router](), size.blocks, size.block_copy_ns)


def _run(
    scenario: Scenario,
    fleet: Fleet,
    workload: Workload,
    progress: Callable[[int, int | None], None] | None,
) -> RunTables:
    duration_s = scenario.workload.duration_s
    closed = isinstance(scenario.workload.arrivals, ClosedArrivals)
    cluster = Cluster(
        fleet,
        workload,
        send_until_ns=round(duration_s * NS_PER_S) if closed and duration_s is not None else None,
        progress=progress and (lambda completed: progress(completed, workload.requests)),
    )
    with collector_paused():
        return cluster.run()


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


def extrapolated_share(tables: RunTables, cost: CostModel) -> float:
    """Share of the iteration time that was priced outside what the profile's source measured."""
    iterations = tables.iterations
    time_ns = iterations["end_ns"] - iterations["start_ns"]
    total = int(time_ns.sum())
    return float(time_ns[cost.extrapolated(iterations)].sum() / total) if total else 0.0


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


def _kv_notes(scenario: Scenario, summary: Summary) -> Iterator[str]:
    peak = summary["kv"]["peak_utilisation"]
    if peak is not None and peak > CROWDED and scenario.engine.kv_blocks == "auto":
        yield (
            f"the KV cache was {peak:.0%} full at its peak, so the answer depends on its size: "
            "set engine.kv_blocks to the number that your engine logs at start-up"
        )
