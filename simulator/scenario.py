"""What is simulated: the keys of a scenario file, their meaning, their defaults and what they may hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from simulator.cluster_settings import (
    AutoscalingSettings,
    DisaggregationSettings,
    DtypeName,
    FailureSettings,
    GroupSettings,
    ParallelSettings,
    RouterName,
    cluster_problems,
)
from simulator.engine.request import Decoding
from simulator.engine_settings import EngineSettings, VllmV1Settings
from simulator.settings import (
    Chosen,
    Count,
    Number,
    Positive,
    Problem,
    Rate,
    Seconds,
    Settings,
    Switch,
    Text,
    Variation,
    Whole,
    refuse,
)

SEARCHING = ("vllm-0.1", "vllm-v0")  # policies that know groups of sequences, hence beams
SAMPLING = (*SEARCHING, "vllm-v1")
SEARCHING_POLICIES, SAMPLING_POLICIES = (f"for {', '.join(names)}" for names in (SEARCHING, SAMPLING))


Spread: TypeAlias = Annotated[Number, Field(ge=0, le=10)]
Level: TypeAlias = Annotated[Number, Field(gt=0, le=1e6)]


class PoissonArrivals(Chosen):
    """Independent clients: exponential gaps between requests."""

    process: Literal["poisson"] = Field("poisson", description="exponential gaps between requests")
    rate_per_s: Rate = Field(description="mean arrival rate, requests per second")


class GammaArrivals(Chosen):
    """Gaps from a gamma distribution: burstier than Poisson for cv > 1, more regular for cv < 1."""

    process: Literal["gamma"] = Field("gamma", description="gamma-distributed gaps between requests")
    rate_per_s: Rate = Field(description="mean arrival rate, requests per second")
    cv: Variation = Field(description="coefficient of variation of the gaps; 1 is Poisson")


class ConstantArrivals(Chosen):
    """Equal gaps."""

    process: Literal["constant"] = Field("constant", description="equal gaps between requests")
    rate_per_s: Rate = Field(description="arrival rate, requests per second")


class BurstArrivals(Chosen):
    """Every request is there from the start: offline throughput."""

    process: Literal["burst"] = Field("burst", description="all requests arrive at time 0")


class ClosedArrivals(Chosen):
    """A fixed number of clients, each sending its next request when the last one is answered."""

    process: Literal["closed"] = Field("closed", description="a closed loop of clients")
    concurrency: Count = Field(description="number of clients, each with one request in flight")


class ClientArrivals(Chosen):
    """Many clients of one service, each with its own rate and its own bursts."""

    process: Literal["clients"] = Field("clients", description="many clients, each with its own bursts")
    clients: Annotated[Count, Field(le=10**6)] = Field(description="number of clients")
    rate_per_s: Rate = Field(description="mean rate of all clients together, requests per second")
    rate_sigma: Spread = Field(
        2.2, description="spread of the clients' rates: standard deviation of their logarithm; 0: all alike"
    )
    cv: Variation = Field(
        3.0, description="median over clients of the gaps' coefficient of variation; 1 is Poisson"
    )
    cv_sigma: Spread = Field(0.9, description="spread of it: standard deviation of its logarithm")
    profile: Annotated[list[Level], Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="relative rates of equal parts of a period, such as the hours of a day"
    )
    period_s: Seconds = Field(86_400.0, description="how long the profile takes, seconds")


TraceFormat: TypeAlias = Literal[
    "auto",
    "azure",
    "mooncake",
    "vidur",
    "lengths",
    "burstgpt",
    "bailian",
    "servegen",
    "weka",
    "llmservingsim",
    "splitwise-sim",
    "openai-batch",
    "measured",
]


class TraceArrivals(Chosen):
    """Requests recorded from a real service."""

    process: Literal["trace"] = Field("trace", description="arrival times from a recorded trace")
    file: Text = Field(description="trace file or folder; a relative path is taken from the scenario's")
    format: TraceFormat = Field("auto", description="trace format; auto looks at the first lines")
    rate_scale: Rate = Field(1.0, description="replay this many times as fast (2: half the gaps)")
    spread_ticks: Switch = Field(
        False, description="spread requests that share a coarse time stamp evenly until the next one"
    )


Arrivals: TypeAlias = (
    PoissonArrivals
    | GammaArrivals
    | ConstantArrivals
    | BurstArrivals
    | ClosedArrivals
    | ClientArrivals
    | TraceArrivals
)
ArrivalSettings: TypeAlias = Annotated[Arrivals, Field(discriminator="process")]


Preset: TypeAlias = Literal["sharegpt", "lmsys", "azure-conv", "azure-code", "mooncake-conv", "arxiv"]
Span: TypeAlias = Annotated[tuple[Count, Count], Field(description="[lowest, highest]")]
LENGTH_SOURCES = ("preset", "fixed", "uniform", "lognormal", "empirical", "trace")


class FixedLengths(Settings):
    """Every request alike."""

    prompt: Count = Field(description="prompt length, tokens")
    output: Count = Field(description="output length, tokens")


class UniformLengths(Settings):
    """Every whole number between two bounds is equally likely."""

    prompt: Span = Field(description="[lowest, highest] prompt length, tokens")
    output: Span = Field(description="[lowest, highest] output length, tokens")

    @model_validator(mode="after")
    def _ordered(self) -> UniformLengths:
        refuse(
            ((key,), f"must be [lowest, highest], not {list(span)}")
            for key, span in (("prompt", self.prompt), ("output", self.output))
            if span[0] > span[1]
        )
        return self


class Lognormal(Settings):
    """A lognormal distribution by its own mean and variation, not by those of its logarithm."""

    mean: Annotated[Number, Field(ge=1, le=1e9)] = Field(description="mean length, tokens")
    cv: Variation = Field(description="coefficient of variation: standard deviation over mean")


class LognormalLengths(Settings):
    """Prompt and output lengths, each lognormal and independent of the other."""

    prompt: Lognormal = Field(description="distribution of the prompt length")
    output: Lognormal = Field(description="distribution of the output length")


class LengthSettings(Settings):
    """Prompt and output lengths: exactly one source, and what bounds them."""

    preset: Preset | None = Field(None, description="lengths fitted to a public data set")
    fixed: FixedLengths | None = Field(None, description="every request alike")
    uniform: UniformLengths | None = Field(None, description="uniform between two bounds")
    lognormal: LognormalLengths | None = Field(None, description="lognormal by mean and variation")
    empirical: Text | None = Field(
        None,
        description="CSV of real lengths, sampled with replacement; relative to the scenario's folder",
    )
    trace: Switch = Field(False, description="each request keeps the lengths it has in the trace")
    output_limit: Count | None = Field(
        None,
        description="max_new_tokens that every request declares; without it each declares its own output",
    )
    max_prompt_tokens: Count | None = Field(None, description="longer prompts are cut to this, tokens")
    max_output_tokens: Count | None = Field(None, description="longer outputs are cut to this, tokens")

    @property
    def source(self) -> str:
        """Name of the one source that is given."""
        return next(key for key in LENGTH_SOURCES if getattr(self, key))

    @model_validator(mode="after")
    def _one_source(self) -> LengthSettings:
        refuse(_length_problems(self))
        return self


def _length_problems(lengths: LengthSettings) -> Iterator[Problem]:
    given = [key for key in LENGTH_SOURCES if getattr(lengths, key)]
    if not given:
        yield ("",), f"must give one of {', '.join(LENGTH_SOURCES)}"
    for key in given[1:]:
        yield (key,), f"cannot stand beside {given[0]}: lengths have exactly one source"
    longest = _longest_output(lengths)
    if lengths.output_limit is not None and longest is not None and lengths.output_limit < longest:
        longest_key = f"{lengths.source}.output"
        yield (
            ("output_limit", longest_key),
            f"must be >= the longest output, {longest}, not {lengths.output_limit}",
        )


def _longest_output(lengths: LengthSettings) -> int | None:
    longest = None
    if lengths.fixed is not None:
        longest = lengths.fixed.output
    elif lengths.uniform is not None:
        longest = lengths.uniform.output[1]
    if longest is None or lengths.max_output_tokens is None:
        return longest
    return min(longest, lengths.max_output_tokens)


class ThinkTime(Settings):
    """How long clients think before they go on: lognormal by its own mean and variation."""

    mean: Seconds = Field(description="mean think time, seconds")
    cv: Variation = Field(1.0, description="coefficient of variation: standard deviation over mean")


class SessionSettings(Settings):
    """Conversations instead of single requests: arrivals begin them, lengths are what each turn adds."""

    turns_mean: Annotated[Number, Field(ge=1, le=1e6)] = Field(
        description="mean number of turns; it is geometrically distributed"
    )
    think_s: ThinkTime = Field(description="time between an answer and the next turn")
    system_prompt_tokens: Annotated[Whole, Field(le=10**7)] = Field(
        0, description="tokens with which every conversation begins"
    )
    max_context_tokens: Count | None = Field(
        None, description="a conversation ends before a turn that could go beyond this, tokens"
    )


class WorkloadSettings(Settings):
    """The requests that are offered: when they come, how long they are, how many."""

    arrivals: ArrivalSettings = Field(description="when requests arrive")
    lengths: LengthSettings = Field(description="how long prompts and outputs are")
    sessions: SessionSettings | None = Field(
        None, description="conversations of several turns, with time to think between them"
    )
    requests: Count | None = Field(None, description="stop after this many requests")
    duration_s: Seconds | None = Field(None, description="no request arrives later than this, seconds")
    timeout_ms: Positive | None = Field(
        None,
        description="longest wait in the queue that clients ask for, ms; heeded only where the engine's "
        "queue policy allows overrides",
    )
    samples: Count | None = Field(
        None, description="answers sampled for every prompt, which share its KV; " + SAMPLING_POLICIES
    )
    beams: Count | None = Field(
        None, description="width of a beam search for every answer; " + SEARCHING_POLICIES
    )

    @property
    def decoding(self) -> Decoding:
        """How each request is answered."""
        beams = self.beams or 1
        return Decoding(beams, beam_search=True) if beams > 1 else Decoding(self.samples or 1)

    @model_validator(mode="after")
    def _fits_together(self) -> WorkloadSettings:
        refuse(_workload_problems(self))
        return self


def _workload_problems(workload: WorkloadSettings) -> Iterator[Problem]:
    process = workload.arrivals.process
    if (workload.beams or 1) > 1 and (workload.samples or 1) > 1:
        yield ("beams", "samples"), "cannot stand beside samples: a search has one answer"
    if workload.lengths.trace and process != "trace":
        yield ("lengths.trace", "arrivals.process"), f"needs arrivals with process: trace, not {process}"
    if workload.lengths.trace and workload.sessions is not None:
        yield ("sessions", "lengths.trace"), "cannot stand beside lengths.trace: a trace has its own turns"
    if workload.requests is None and process != "trace":
        if workload.duration_s is None:
            yield ("requests",), "is required (or duration_s): without either the run would never end"
        elif process == "burst":
            yield (
                ("requests",),
                "is required: burst arrivals all come at time 0, which duration_s cannot bound",
            )


LIMITS = ("ttft_ms", "tpot_ms", "e2e_ms", "itl_ms", "queue_ms")


class SloSettings(Settings):
    """What a request must meet to count as good; limits left out do not bind."""

    ttft_ms: Positive | None = Field(None, description="longest time to the first token, ms")
    tpot_ms: Positive | None = Field(None, description="longest mean time per further output token, ms")
    e2e_ms: Positive | None = Field(None, description="longest time from arrival to the last token, ms")
    itl_ms: Positive | None = Field(
        None, description="capacity: longest percentile of the time between tokens, all tokens pooled, ms"
    )
    queue_ms: Positive | None = Field(
        None, description="capacity: longest median wait for the first iteration, ms"
    )
    percentile: Annotated[Number, Field(gt=0, lt=100)] | None = Field(
        None, description="capacity: the percentile that each limit holds for; 99 without it"
    )
    attainment: Annotated[Number, Field(gt=0, lt=1)] | None = Field(
        None, description="capacity: share of requests that must keep every limit, instead of percentiles"
    )

    @model_validator(mode="after")
    def _asks_something(self) -> SloSettings:
        refuse(_slo_problems(self))
        return self


def _slo_problems(slo: SloSettings) -> Iterator[Problem]:
    if all(getattr(slo, limit) is None for limit in LIMITS):
        yield ("",), f"must give at least one of {', '.join(LIMITS)}"
    if slo.attainment is not None and slo.percentile is not None:
        yield (
            ("attainment", "percentile"),
            "cannot stand beside percentile: a share of requests or a percentile of each latency",
        )
    per_request = (slo.ttft_ms, slo.tpot_ms, slo.e2e_ms)
    if slo.attainment is not None and per_request == (None, None, None):
        yield (
            ("attainment",),
            "needs ttft_ms, tpot_ms or e2e_ms: only these are kept or missed by a request",
        )


def _overhead(value: object) -> object:
    """``auto`` or milliseconds: one message for both, where a union would give two."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == "auto" or (number and 0 <= float(value) <= LONGEST_OVERHEAD_MS):  # type: ignore[arg-type]
        return value if value == "auto" else float(value)  # type: ignore[arg-type]
    wanted = f"auto or a number of milliseconds from 0 to {LONGEST_OVERHEAD_MS}"
    raise PydanticCustomError("expected", "{wanted}", {"wanted": wanted})


LONGEST_OVERHEAD_MS = 60_000
Overhead: TypeAlias = Annotated[Literal["auto"] | float, BeforeValidator(_overhead)]


class Scenario(Settings):
    """One question to the twin: this model on this hardware under this load, served so."""

    name: Text = Field("unnamed", description="what reports call it; without it the file's name")
    model: Text = Field(
        description="built-in model, or path of a Hugging Face config.json or model folder; "
        "see: servetwin list models"
    )
    hardware: Text = Field(description="GPU; see: servetwin list hardware")
    profile: Text = Field("auto", description="cost profile: auto, a name, a path, or roofline")
    server_overhead_ms: Overhead = Field(
        "auto", description="time per request outside the engine, ms; auto: what the profile says"
    )
    dtype: DtypeName = Field("bfloat16", description="number format of weights, activations and KV cache")
    parallel: ParallelSettings = Field(ParallelSettings(), description="GPUs of one replica")
    replicas: Count = Field(1, description="copies of the model behind the router")
    router: RouterName = Field("round-robin", description="how requests are shared between replicas")
    fleet: tuple[GroupSettings, ...] | None = Field(
        None, description="groups of replicas that differ, instead of replicas"
    )
    disaggregation: DisaggregationSettings | None = Field(
        None, description="prefill and decode on replicas of their own, instead of replicas"
    )
    failures: tuple[FailureSettings, ...] | None = Field(
        None, description="replicas that fail and lose their requests, which are sent again"
    )
    autoscaling: AutoscalingSettings | None = Field(
        None, description="replicas started and stopped by load, instead of replicas"
    )
    engine: EngineSettings = Field(VllmV1Settings(), description="batching policy and its knobs")
    workload: WorkloadSettings = Field(description="the requests that are offered")
    slo: SloSettings | None = Field(None, description="limits that a good request keeps")
    seed: Whole = Field(0, description="seed of everything random")

    @model_validator(mode="after")
    def _fits_together(self) -> Scenario:
        refuse(self._problems())
        return self

    def groups(self) -> Iterator[tuple[tuple[str | int, ...], GroupSettings]]:
        """The kinds of replicas that have keys of their own, and where these stand."""
        for index, group in enumerate(self.fleet or ()):
            yield ("fleet", index), group
        if self.disaggregation is not None:
            yield ("disaggregation", "prefill"), self.disaggregation.prefill
            yield ("disaggregation", "decode"), self.disaggregation.decode

    def _problems(self) -> Iterator[Problem]:
        yield from cluster_problems(self)
        for key in ("samples", "beams"):
            if self.disaggregation is not None and (getattr(self.workload, key) or 1) > 1:
                yield (f"workload.{key}", "disaggregation"), "must be 1 with disaggregation"

    @property
    def is_one_engine(self) -> bool:
        """Whether all is served by one engine that stays as it is."""
        plain = self.fleet is None and self.failures is None and self.autoscaling is None
        return plain and self.engines == 1

    @property
    def engines(self) -> int:
        """Engines that batch on their own: replicas, or their pipeline stages, of all kinds together."""
        groups = [group for _, group in self.groups()]
        if groups:
            return sum(group.replicas * (group.parallel or self.parallel).pipeline for group in groups)
        replicas = self.autoscaling.max if self.autoscaling is not None else self.replicas
        return replicas * self.parallel.pipeline

    @model_validator(mode="after")
    def _sequences_supported(self) -> Scenario:
        refuse(_sequence_problems(self))
        return self


def _sequence_problems(scenario: Scenario) -> Iterator[Problem]:
    """Every engine that may get a request of several sequences must be able to decode them."""
    count, searches = scenario.workload.decoding
    key, policies = ("workload.beams", SEARCHING) if searches else ("workload.samples", SAMPLING)
    engines = [group.engine or scenario.engine for _, group in scenario.groups()] or [scenario.engine]
    for engine in engines if count > 1 else ():
        if engine.policy not in policies:
            text = f"must be 1 with policy {engine.policy}, not {count}; {', '.join(policies)} can do more"
            yield (key, "engine.policy"), text
            return
        if count > engine.max_num_seqs:
            limit = f"engine.max_num_seqs ({engine.max_num_seqs})"
            yield (key, "engine.max_num_seqs"), f"must be <= {limit}, not {count}"
            return
