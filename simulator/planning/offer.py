"""A scenario at another rate, on another number of replicas, with another length of run."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import NamedTuple

from simulator.errors import ScenarioError
from simulator.scenario import (
    BurstArrivals,
    ClientArrivals,
    ClosedArrivals,
    ConstantArrivals,
    GammaArrivals,
    PoissonArrivals,
    Scenario,
    TraceArrivals,
)
from simulator.workloads.workload import build_workload

NS_PER_S = 1e9
AT_ONCE = 1e9  # rate_scale that makes a trace arrive all at once
FIXED_FLEETS = ("fleet", "disaggregation", "autoscaling", "failures")
UNEVEN = (
    "{key}: capacity asks for a number of replicas that are alike and always there; leave {key} out, or "
    "see what it does with simulate and compare"
)
CHANGING = (
    "workload.{key}: capacity asks for a steady state, and {what}; give arrivals at a constant mean rate, "
    "for a daily profile that of its peak"
)
REFUSED = (
    "workload.arrivals: capacity asks how much load arrives, and {process} arrivals have no rate of their "
    "own; give poisson, gamma or constant arrivals with rate_per_s, or a trace"
)


class Point(NamedTuple):
    """Where a service is looked at: requests per second offered to so many replicas."""

    rate_per_s: float
    replicas: int


class Offer(NamedTuple):
    """What a scenario offers. ``base_per_s``: mean rate of its trace as recorded; None: rates are free.

    ``rate_per_s``: what the scenario itself asks for.
    """

    scenario: Scenario
    rate_per_s: float
    base_per_s: float | None = None

    @property
    def recorded(self) -> bool:
        """A trace is one realisation: it can be neither prolonged nor drawn again."""
        return self.base_per_s is not None

    @property
    def divisible(self) -> bool:
        """Whether one replica's share of the load is known without simulating the others.

        Round-robin gives each of n replicas every nth request: gaps are sums of n independent ones, so
        gamma gaps stay gamma gaps, exactly, with a variation 1/sqrt(n) of the fleet's.
        """
        renewal = (PoissonArrivals, GammaArrivals, ConstantArrivals)
        arrivals = self.scenario.workload.arrivals
        return self.scenario.router == "round-robin" and isinstance(arrivals, renewal)

    def at(self, point: Point, requests: int, seed: int, *, whole: bool = False) -> Scenario:
        """The scenario at a point; ``whole``: every replica, even where one stands for all."""
        scenario, parts = self.scenario, 1
        if self.divisible and not whole:
            parts = point.replicas
        arrivals = self._arrivals(point.rate_per_s, parts)
        workload = scenario.workload.model_copy(update={"arrivals": arrivals})
        if not self.recorded:
            workload = workload.model_copy(update={"requests": requests, "duration_s": None})
        changed = {"replicas": point.replicas // parts, "seed": seed, "workload": workload}
        return scenario.model_copy(update=changed)

    def _arrivals(
        self, rate: float, parts: int
    ) -> PoissonArrivals | GammaArrivals | ConstantArrivals | ClientArrivals | TraceArrivals:
        arrivals, part = self.scenario.workload.arrivals, rate / parts
        if isinstance(arrivals, TraceArrivals):
            assert self.base_per_s is not None
            return arrivals.model_copy(update={"rate_scale": rate / self.base_per_s})
        if isinstance(arrivals, ClientArrivals):
            return arrivals.model_copy(update={"rate_per_s": rate})
        if isinstance(arrivals, ConstantArrivals):
            return ConstantArrivals(process="constant", rate_per_s=part)
        variation = arrivals.cv if isinstance(arrivals, GammaArrivals) else 1.0
        if variation == parts == 1:
            return PoissonArrivals(process="poisson", rate_per_s=part)
        return GammaArrivals(process="gamma", rate_per_s=part, cv=variation / sqrt(parts))

    def simulated_per_s(self, point: Point) -> float:
        """The rate at which a simulated run sees requests."""
        return point.rate_per_s / point.replicas if self.divisible else point.rate_per_s

    def backlog(self, requests: int, seed: int) -> Scenario:
        """One replica with everything there at once, so that every seat is taken while the queue lasts."""
        scenario, arrivals = self.scenario, self.scenario.workload.arrivals
        queue = getattr(scenario.engine, "max_queue_size", 0)
        crowd: TraceArrivals | ClosedArrivals | BurstArrivals = BurstArrivals(process="burst")
        if isinstance(arrivals, TraceArrivals) and scenario.workload.lengths.trace:
            crowd = arrivals.model_copy(update={"rate_scale": AT_ONCE})
        elif queue:
            crowd = ClosedArrivals(process="closed", concurrency=queue + scenario.engine.max_num_seqs)
        changed = {"arrivals": crowd, "requests": requests, "duration_s": None, "timeout_ms": None}
        workload = scenario.workload.model_copy(update=changed)
        return scenario.model_copy(update={"replicas": 1, "seed": seed, "workload": workload})


def offer_of(scenario: Scenario, folder: Path) -> Offer:
    """What a scenario offers; raises where it has no rate that could be raised or lowered."""
    _refuse_what_changes(scenario)
    arrivals = scenario.workload.arrivals
    if isinstance(arrivals, (ClosedArrivals, BurstArrivals)):
        raise ScenarioError(REFUSED.format(process=arrivals.process))
    if not isinstance(arrivals, TraceArrivals):
        return Offer(scenario, arrivals.rate_per_s)
    count, first_ns, last_ns = 0, 0, 0
    for row in build_workload(scenario.workload, scenario.seed, folder).arrivals():
        first_ns, last_ns = first_ns if count else row.arrival_ns, row.arrival_ns
        count += 1
    if count < 2 or last_ns == first_ns:
        raise ScenarioError(
            f"workload.arrivals.file: {arrivals.file} has no rate: its requests share one time"
        )
    rate = (count - 1) * NS_PER_S / (last_ns - first_ns)
    return Offer(scenario, rate, rate / arrivals.rate_scale)


def _refuse_what_changes(scenario: Scenario) -> None:
    """Raise where there is no steady state of equal replicas to ask for."""
    for key in FIXED_FLEETS:
        if getattr(scenario, key) is not None:
            raise ScenarioError(UNEVEN.format(key=key))
    workload = scenario.workload
    if workload.sessions is not None:
        what = "turns come when earlier ones are answered, not at a rate"
        raise ScenarioError(CHANGING.format(key="sessions", what=what))
    if isinstance(workload.arrivals, ClientArrivals) and workload.arrivals.profile is not None:
        what = "this rate changes over time"
        raise ScenarioError(CHANGING.format(key="arrivals.profile", what=what))
