"""Replaying measured requests, or a generated load, on the twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simulator.cost_model import ProfileCostModel
from simulator.fleet_summary import extrapolated_share
from simulator.hardware import load_hardware
from simulator.metrics import RequestMetrics, request_metrics
from simulator.models import load_model
from simulator.profile import Profile
from simulator.roofline import Roofline
from simulator.run_tables import RunTables
from simulator.scenario import Scenario
from simulator.simulation import make_fleet, run_fleet
from simulator.workloads.arrival import Arrival
from simulator.workloads.workload import Workload

NS_PER_S = 1e9
NS_PER_MS = 1e6
ANY_LOAD = {
    "arrivals": {"process": "burst"},
    "lengths": {"fixed": {"prompt": 1, "output": 1}},
    "requests": 1,
}


class Server(NamedTuple):
    """What answered: engine settings, its clock, copies of it behind a round-robin router."""

    engine: Mapping[str, Any]
    profile: Profile
    replicas: int = 1


class Replayed(NamedTuple):
    """What the twin made of a load: its tables, latencies in ns, share of time that it extrapolated."""

    tables: RunTables
    metrics: RequestMetrics
    extrapolated: float

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last answer."""
        requests = self.tables.requests
        return float(requests["finished_ns"].max() - requests["arrival_ns"].min()) / NS_PER_S

    @property
    def mean_itl_ms(self) -> float:
        """Mean time between tokens, pooled over all tokens."""
        gaps, rows = self.tables.gap_ns, self.tables.gap_rows
        return float((gaps * rows).sum() / rows.sum()) / NS_PER_MS


def replay(server: Server, arrivals: Sequence[Arrival], concurrency: int | None = None) -> Replayed:
    """Run requests through the twin of a server, open loop or as so many clients in a closed loop."""
    profile = server.profile
    scenario = Scenario.model_validate(
        {
            "model": profile.model,
            "hardware": profile.hardware,
            "dtype": profile.dtype,
            "parallel": {"tensor": profile.tensor_parallel},
            "replicas": server.replicas,
            "engine": dict(server.engine),
            "workload": ANY_LOAD,
        }
    )
    model = load_model(profile.model)
    bounds = Roofline(model, load_hardware(profile.hardware), profile.dtype, profile.tensor_parallel)
    cost = ProfileCostModel(profile, bounds)
    workload = Workload(lambda: iter(arrivals), concurrency, len(arrivals))
    fleet = make_fleet(scenario, model, cost, workload)
    _, tables = run_fleet(fleet, workload, server_overhead_ns=profile.server_overhead_ns)
    return Replayed(tables, request_metrics(tables.requests), extrapolated_share(tables, cost))
