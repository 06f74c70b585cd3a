"""What is simulated: the keys of a scenario file, their meaning, their defaults and what they may hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

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


TraceFormat: TypeAlias = Literal["auto", "azure", "mooncake", "vidur", "lengths"]


class TraceArrivals(Chosen):
    """Requests recorded from a real service."""

    process: Literal["trace"] = Field("trace", description="arrival times from a recorded trace")
    file: Text = Field(description="trace file; a relative path is taken from the scenario's folder")
    format: TraceFormat = Field("auto", description="trace format; auto looks at the first lines")
    rate_scale: Rate = Field(1.0, description="replay this many times as fast (2: half the gaps)")
    spread_ticks: Switch = Field(
        False, description="spread requests that share a coarse time stamp evenly until the next one"
    )


Arrivals: TypeAlias = (
    PoissonArrivals | GammaArrivals | ConstantArrivals | BurstArrivals | ClosedArrivals | TraceArrivals
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


class WorkloadSettings(Settings):
    """The requests that are offered: when they come, how long they are, how many."""

    arrivals: ArrivalSettings = Field(description="when requests arrive")
    lengths: LengthSettings = Field(description="how long prompts and outputs are")
    requests: Count | None = Field(None, description="stop after this many requests")
    duration_s: Seconds | None = Field(None, description="no request arrives later than this, seconds")
    timeout_ms: Positive | None = Field(
        None,
        description="longest wait in the queue that clients ask for, ms; heeded only where the engine's "
        "queue policy allows overrides",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> WorkloadSettings:
        refuse(_workload_problems(self))
        return self


def _workload_problems(workload: WorkloadSettings) -> Iterator[Problem]:
    process = workload.arrivals.process
    if workload.lengths.trace and process != "trace":
        yield ("lengths.trace", "arrivals.process"), f"needs arrivals with process: trace, not {process}"
    if workload.requests is None and process != "trace":
        if workload.duration_s is None:
            yield ("requests",), "is required (or duration_s): without either the run would never end"
        elif process == "burst":
            yield (
                ("requests",),
                "is required: burst arrivals all come at time 0, which duration_s cannot bound",
            )


class ParallelSettings(Settings):
    """How one replica is spread over GPUs."""

    tensor: Count = Field(1, description="GPUs that share every layer of a replica")
    pipeline: Count = Field(1, description="pipeline stages; only 1 is modelled yet")

    @model_validator(mode="after")
    def _modelled(self) -> ParallelSettings:
        if self.pipeline != 1:
            refuse([(("pipeline",), f"must be 1, not {self.pipeline}: pipelines are not modelled yet")])
        return self


class SloSettings(Settings):
    """What a request must meet to count as good; limits left out do not bind."""

    ttft_ms: Positive | None = Field(None, description="longest time to the first token, ms")
    tpot_ms: Positive | None = Field(None, description="longest mean time per further output token, ms")
    e2e_ms: Positive | None = Field(None, description="longest time from arrival to the last token, ms")

    @model_validator(mode="after")
    def _asks_something(self) -> SloSettings:
        if self.ttft_ms is None and self.tpot_ms is None and self.e2e_ms is None:
            refuse([(("",), "must give at least one of ttft_ms, tpot_ms, e2e_ms")])
        return self


class Scenario(Settings):
    """One question to the twin: this model on this hardware under this load, served so."""

    name: Text = Field("unnamed", description="what reports call it; without it the file's name")
    model: Text = Field(
        description="built-in model, or path of a Hugging Face config.json or model folder; "
        "see: servetwin list models"
    )
    hardware: Text = Field(description="GPU; see: servetwin list hardware")
    profile: Text = Field("auto", description="cost profile: auto, a name, a path, or roofline")
    dtype: Literal["bfloat16", "float16", "float32", "float8"] = Field(
        "bfloat16", description="number format of weights, activations and KV cache"
    )
    parallel: ParallelSettings = Field(ParallelSettings(), description="GPUs of one replica")
    replicas: Count = Field(1, description="copies of the model behind the router")
    router: Literal["round-robin", "least-outstanding"] = Field(
        "round-robin", description="how requests are shared between replicas"
    )
    engine: EngineSettings = Field(VllmV1Settings(), description="batching policy and its knobs")
    workload: WorkloadSettings = Field(description="the requests that are offered")
    slo: SloSettings | None = Field(None, description="limits that a good request keeps")
    seed: Whole = Field(0, description="seed of everything random")
