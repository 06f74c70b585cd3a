"""Scenario keys of more than one replica: routers, kinds of replicas, what happens to them during a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Protocol, TypeAlias

from pydantic import Field

from simulator.engine_settings import Engine, EngineSettings
from simulator.mig import is_slice
from simulator.settings import Count, Number, Positive, Problem, Seconds, Settings, Text, Whole

RouterName: TypeAlias = Literal[
    "round-robin", "least-outstanding", "power-of-two", "join-shortest-queue", "prefix-affinity"
]
MOST_ENGINES = 100_000
DtypeName: TypeAlias = Literal["bfloat16", "float16", "float32", "float8"]


class ParallelSettings(Settings):
    """How one replica is spread over GPUs."""

    tensor: Count = Field(1, description="GPUs that share every layer of a replica")
    pipeline: Count = Field(1, description="stages that share out the layers of a replica, in turn")


class GroupSettings(Settings):
    """Replicas alike within a fleet of several kinds; what is left out is as the scenario says."""

    replicas: Count = Field(1, description="replicas of this kind")
    hardware: Text | None = Field(None, description="their GPU; see: servetwin list hardware")
    profile: Text | None = Field(None, description="their cost profile")
    dtype: DtypeName | None = Field(None, description="their number format")
    parallel: ParallelSettings | None = Field(None, description="GPUs of one of them")
    engine: EngineSettings | None = Field(
        None, description="their whole batching policy, in place of the scenario's"
    )


class DisaggregationSettings(Settings):
    """Prompts and answers on replicas of their own, with the KV sent from the ones to the others."""

    prefill: GroupSettings = Field(description="replicas that compute prompts up to the first token")
    decode: GroupSettings = Field(description="replicas that generate the rest of the answers")
    bandwidth_gb_per_s: Positive | None = Field(
        None,
        description="what KV leaves a prefill replica at, 10^9 bytes per second; without it the "
        "interconnect of its GPUs",
    )
    latency_ms: Annotated[Number, Field(ge=0, le=1e6)] = Field(
        0.01, description="what every transfer takes besides, ms"
    )


class FailureSettings(Settings):
    """A failure that is planned (at_s), or failures by chance (mtbf_s)."""

    replica: Whole | None = Field(None, description="which replica fails, from 0; by chance: every one")
    at_s: Annotated[Number, Field(ge=0, le=1e9)] | None = Field(None, description="when it fails, s")
    mtbf_s: Seconds | None = Field(
        None, description="mean time of a replica from coming up to failing, s, exponential"
    )
    restart_s: Seconds | None = Field(
        None, description="how long until it is back, s; planned and without it: never"
    )


class AutoscalingSettings(Settings):
    """Replicas started and stopped by how many requests are unanswered."""

    min: Count = Field(1, description="fewest replicas")
    max: Count = Field(description="most replicas")
    target_outstanding: Positive = Field(
        description="unanswered requests per replica to aim at, waiting and running"
    )
    start_up_s: Seconds = Field(60.0, description="from asking for a replica to its first request, s")
    interval_s: Annotated[Number, Field(ge=0.001, le=1e9)] = Field(
        15.0, description="time between two decisions, s"
    )
    stabilisation_s: Annotated[Number, Field(ge=0, le=1e9)] = Field(
        300.0, description="fewer replicas only once no more were wanted for so long, s"
    )


def failure_problems(failures: Sequence[FailureSettings], replicas: int) -> Iterator[Problem]:
    """What is wrong with failures of one of so many replicas."""
    for index, failure in enumerate(failures):
        keys = f"failures.[{index}]"
        if (failure.at_s is None) == (failure.mtbf_s is None):
            yield (keys,), "must give either at_s or mtbf_s"
        elif failure.at_s is not None and failure.replica is None:
            yield (f"{keys}.replica", keys), "is required: which one fails at at_s"
        elif failure.mtbf_s is not None and failure.restart_s is None:
            yield (f"{keys}.restart_s", keys), "is required with mtbf_s"
        if failure.replica is not None and failure.replica >= replicas:
            yield (
                (f"{keys}.replica",),
                f"must be below the number of replicas, {replicas}, not {failure.replica}",
            )


def autoscaling_problems(autoscaling: AutoscalingSettings) -> Iterator[Problem]:
    """What is wrong with the bounds."""
    if autoscaling.min > autoscaling.max:
        yield (
            ("autoscaling.min", "autoscaling.max"),
            f"must be <= autoscaling.max, {autoscaling.max}, not {autoscaling.min}",
        )


def disaggregation_problems(
    settings: DisaggregationSettings, engine: Engine, hardware: str, parallel: ParallelSettings
) -> Iterator[Problem]:
    """What cannot be taken apart."""
    for side, group in (("prefill", settings.prefill), ("decode", settings.decode)):
        keys = f"disaggregation.{side}."
        policy = (group.engine or engine).policy
        if policy != "vllm-v1":
            yield (
                (f"{keys}engine.policy", "engine.policy"),
                f"must be vllm-v1, not {policy}: no other policy is modelled with its two halves apart",
            )
        spread = group.parallel or parallel
        if spread.pipeline != 1:
            yield (
                (f"{keys}parallel.pipeline", "parallel.pipeline"),
                f"must be 1 with disaggregation, not {spread.pipeline}",
            )
        yield from parallel_problems(group.hardware or hardware, spread, keys)


def parallel_problems(hardware: str, parallel: ParallelSettings, keys: str = "") -> Iterator[Problem]:
    """What a replica cannot be spread over. ``keys`` lead to where its keys stand."""
    if not is_slice(hardware):
        return
    for key, ways in (("tensor", parallel.tensor), ("pipeline", parallel.pipeline)):
        if ways != 1:
            yield (
                (f"{keys}parallel.{key}", f"{keys}hardware"),
                f"must be 1 on {hardware}, not {ways}: a process sees one MIG slice only",
            )


def fleet_problems(
    fleet: Sequence[GroupSettings], hardware: str, parallel: ParallelSettings
) -> Iterator[Problem]:
    """What is wrong with groups of replicas as they stand beside the scenario's own keys."""
    if not fleet:
        yield ("fleet",), "must hold at least one group of replicas"
    for index, group in enumerate(fleet):
        yield from parallel_problems(
            group.hardware or hardware, group.parallel or parallel, f"fleet.[{index}]."
        )


class Replicas(Protocol):
    """The keys of a scenario that say what its replicas are."""

    @property
    def hardware(self) -> str: ...
    @property
    def parallel(self) -> ParallelSettings: ...
    @property
    def replicas(self) -> int: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def fleet(self) -> tuple[GroupSettings, ...] | None: ...
    @property
    def disaggregation(self) -> DisaggregationSettings | None: ...
    @property
    def failures(self) -> tuple[FailureSettings, ...] | None: ...
    @property
    def autoscaling(self) -> AutoscalingSettings | None: ...
    @property
    def engines(self) -> int: ...


def cluster_problems(scenario: Replicas) -> Iterator[Problem]:
    """What is wrong with a scenario's replicas, or with what becomes of them."""
    yield from parallel_problems(scenario.hardware, scenario.parallel)
    yield from _crowded(scenario)
    if scenario.fleet is not None:
        yield from fleet_problems(scenario.fleet, scenario.hardware, scenario.parallel)
    if scenario.failures is not None:
        yield from failure_problems(scenario.failures, scenario.engines)
    if scenario.autoscaling is not None:
        yield from autoscaling_problems(scenario.autoscaling)
    if scenario.disaggregation is not None:
        yield from disaggregation_problems(
            scenario.disaggregation, scenario.engine, scenario.hardware, scenario.parallel
        )


def _crowded(scenario: Replicas) -> Iterator[Problem]:
    """How many replicas there are, and what becomes of them, is said once."""
    ways = [key for key in ("fleet", "disaggregation", "autoscaling") if getattr(scenario, key) is not None]
    for key in ways[1:]:
        yield (key, ways[0]), f"cannot stand beside {ways[0]}"
    if ways and scenario.replicas != 1:
        yield (
            (ways[0], "replicas"),
            f"cannot stand beside replicas ({scenario.replicas}): it says how many there are",
        )
    if scenario.engines > MOST_ENGINES:
        key = (*ways, "replicas")[0]
        yield (key,), f"must come to {MOST_ENGINES:,} engines at most, not {scenario.engines:,}"
    if scenario.failures is not None and scenario.disaggregation is not None:
        yield ("failures", "disaggregation"), "cannot stand beside disaggregation: not modelled together"
    if scenario.autoscaling is not None and scenario.parallel.pipeline != 1:
        yield (
            ("parallel.pipeline", "autoscaling"),
            f"must be 1 with autoscaling, not {scenario.parallel.pipeline}",
        )
