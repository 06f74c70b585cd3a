"""From a scenario to its replicas: what each is made of, on what clock, and in which group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence

from simulator.availability import Changes, Outage, Scaling, Wear
from simulator.cluster import Fleet, Server
from simulator.cluster_settings import AutoscalingSettings
from simulator.cost_model import CostModel, ProfileCostModel
from simulator.disaggregation import Link, Split
from simulator.engine_settings import Engine
from simulator.hardware import load_hardware
from simulator.models import Model
from simulator.pipeline import make_pipeline
from simulator.policies import make_scheduler
from simulator.pricing import clock_of
from simulator.profile import ProfileInfo
from simulator.routers import ROUTERS
from simulator.scenario import Scenario
from simulator.sizing import NS_PER_S, kv_size, longest_sequence
from simulator.workloads.arrival import whole_sessions
from simulator.workloads.workload import Workload

ROUTER_PURPOSE, FAILURE_PURPOSE = 1, 5  # children of the scenario's seed


class Group(NamedTuple):
    """Replicas alike: the scenario as it reads for them, and their clock."""

    scenario: Scenario
    cost: CostModel
    profile: ProfileInfo

    @property
    def engines(self) -> int:
        """Engines that batch on their own: a replica has one per pipeline stage."""
        return self.scenario.replicas * self.scenario.parallel.pipeline

    @property
    def gpus(self) -> float:
        """GPUs that they occupy; a slice counts as its part of one."""
        parallel = self.scenario.parallel
        whole = self.scenario.replicas * parallel.tensor * parallel.pipeline
        return whole / load_hardware(self.scenario.hardware).instances_per_gpu


def group_scenarios(scenario: Scenario) -> list[Scenario]:
    """The scenario as it reads for each kind of replica."""
    kinds = [group for _, group in scenario.groups()]
    if not kinds:
        most = scenario.replicas if scenario.autoscaling is None else scenario.autoscaling.max
        return [scenario.model_copy(update={"replicas": most})]
    alone = {"fleet": None, "disaggregation": None}
    return [
        scenario.model_copy(update=alone | {key: value for key, value in group if value is not None})
        for group in kinds
    ]


def load_groups(scenario: Scenario, model: Model, folder: Path) -> tuple[Group, ...]:
    """Every kind of replica with the clock that belongs to it."""
    return tuple(Group(kind, *clock_of(kind, model, folder)) for kind in group_scenarios(scenario))


def build_fleet(scenario: Scenario, model: Model, groups: Sequence[Group], workload: Workload) -> Fleet:
    """All replicas behind the scenario's router.

    Of replicas with several engines first come all first engines, then all second ones, so that a router
    which takes the first of equals spreads its requests over replicas.
    """

    def longest_tokens() -> int:
        requests = whole_sessions(workload.arrivals())
        return max(request.prompt_tokens + request.output_limit for request in requests)

    placed = [
        server
        for index, group in enumerate(groups)
        for server in _servers(group, index, model, longest_tokens)
    ]
    servers = [server for _, server in sorted(placed, key=lambda each: each[0])]
    random = np.random.default_rng(SeedSequence(scenario.seed, spawn_key=(ROUTER_PURPOSE,)))
    router = ROUTERS[scenario.router](random)
    return Fleet(servers, router, _split(scenario, model, groups), changes(scenario))


def _split(scenario: Scenario, model: Model, groups: Sequence[Group]) -> Split | None:
    """How prompts and answers are taken apart; a token's KV leaves all GPUs of a replica at once."""
    settings = scenario.disaggregation
    if settings is None:
        return None
    kind = groups[0].scenario
    hardware = load_hardware(kind.hardware)
    links = (hardware.interconnect_bytes_per_s or hardware.pcie_bytes_per_s) * kind.parallel.tensor
    if settings.bandwidth_gb_per_s is not None:
        links = settings.bandwidth_gb_per_s * 1e9
    link = Link(
        round(settings.latency_ms * NS_PER_S / 1000),
        NS_PER_S * model.kv_bytes_per_token(kind.dtype) / links,
    )
    return Split(kind.replicas, link)


def changes(scenario: Scenario) -> Changes | None:
    """What happens to a scenario's replicas during a run."""
    failures = scenario.failures or ()
    if not failures and scenario.autoscaling is None:
        return None
    outages = [
        Outage(
            failure.replica,
            _ns(failure.at_s),
            None if failure.restart_s is None else _ns(failure.restart_s),
        )
        for failure in failures
        if failure.at_s is not None and failure.replica is not None
    ]
    wear = [
        Wear(failure.replica, _ns(failure.mtbf_s), _ns(failure.restart_s))
        for failure in failures
        if failure.mtbf_s is not None and failure.restart_s is not None
    ]
    random = np.random.default_rng(SeedSequence(scenario.seed, spawn_key=(FAILURE_PURPOSE,)))
    return Changes(outages, wear, _scaling(scenario.autoscaling), random)


def _scaling(settings: AutoscalingSettings | None) -> Scaling | None:
    if settings is None:
        return None
    return Scaling(
        settings.min,
        settings.max,
        settings.target_outstanding,
        _ns(settings.start_up_s),
        _ns(settings.interval_s),
        _ns(settings.stabilisation_s),
    )


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def _servers(
    group: Group, index: int, model: Model, longest_tokens: Callable[[], int]
) -> Iterator[tuple[int, Server]]:
    """The engines of a group, each with its place among those of its replica."""
    scenario, stages = group.scenario, group.scenario.parallel.pipeline
    size = kv_size(scenario, model)
    blocks, engine = max(1, size.blocks // stages), _share(scenario.engine, stages)
    longest = longest_sequence(scenario, model)
    make = partial(make_scheduler, engine, blocks, longest, longest_tokens, size.block_bytes)
    for _ in range(scenario.replicas):
        pipeline = None
        if stages > 1 and isinstance(group.cost, ProfileCostModel):
            hardware = load_hardware(scenario.hardware)
            pipeline = make_pipeline(stages, model, hardware, scenario.dtype, group.cost)
        for place in range(stages):
            yield place, Server(make(), group.cost, blocks, *size[2:], index, pipeline, make)


def _share(engine: Engine, stages: int) -> Engine:
    """The engine's settings for one of several that share its seats."""
    if stages == 1 or "max_num_seqs" not in type(engine).model_fields:
        return engine
    return engine.model_copy(update={"max_num_seqs": -(-engine.max_num_seqs // stages)})
