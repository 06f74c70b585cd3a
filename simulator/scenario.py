"""What is simulated: the keys of a scenario file, their meaning, their defaults and what they may hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

DEFAULT_POLICY = "vllm-v1"
EXACT_WHOLE = 2**53  # beyond it a float no longer tells neighbouring whole numbers apart

Problem: TypeAlias = tuple[tuple[str, ...], str]  # the keys to blame, the first one most; what it must be


def _whole(value: object) -> object:
    """``1e3`` is a whole number, although YAML reads it as a float."""
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_WHOLE:
        return int(value)
    return value


def _blocks(value: object) -> object:
    """A number of KV blocks, or ``auto``: one message for both, where a union would give two."""
    value = _whole(value)
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise PydanticCustomError("expected", "{wanted}", {"wanted": "auto or a whole number >= 1"})


def _not_frozen(rate: float) -> float:
    """Gaps must stay representable in integer nanoseconds."""
    if rate < 1e-9:
        raise PydanticCustomError("expected", "{wanted}", {"wanted": ">= 1e-09"})
    return rate


def _with_policy(value: object) -> object:
    """Engine settings that name no policy are those of the default one."""
    if isinstance(value, dict) and "policy" not in value:
        return {"policy": DEFAULT_POLICY, **value}
    return value


def refuse(problems: Iterable[Problem]) -> None:
    """Raise one error that carries every combination found wrong, each with the keys to blame."""
    found = list(problems)
    if found:
        text = "; ".join(f"{keys[0]} {problem}".lstrip() for keys, problem in found)
        raise PydanticCustomError("combination", "{text}", {"text": text, "problems": found})


Whole: TypeAlias = Annotated[int, Field(strict=True, ge=0), BeforeValidator(_whole)]
Count: TypeAlias = Annotated[int, Field(strict=True, ge=1), BeforeValidator(_whole)]
Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive: TypeAlias = Annotated[Number, Field(gt=0)]
Text: TypeAlias = Annotated[str, Field(strict=True, min_length=1)]
Switch: TypeAlias = Annotated[bool, Field(strict=True)]
Rate: TypeAlias = Annotated[Number, Field(gt=0, le=1e9), AfterValidator(_not_frozen)]
Seconds: TypeAlias = Annotated[Number, Field(gt=0, le=1e9)]  # 31 years: integer nanoseconds hold it
Variation: TypeAlias = Annotated[Number, Field(gt=0, le=1000)]


class Settings(BaseModel):
    """Settings are values: unknown keys are refused and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _require_first(schema: JsonDict) -> None:
    properties = schema["properties"]
    required = schema.get("required", [])
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    first = next(iter(properties))
    schema["required"] = [first, *(key for key in required if key != first)]


class Chosen(Settings):
    """One alternative of several, told apart by its first key, which a file must therefore give."""

    model_config = ConfigDict(json_schema_extra=_require_first)


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


class EngineMemory(Settings):
    """What every policy has: the KV cache and the longest sequence."""

    policy: str
    block_size: Count = Field(16, description="tokens per KV block")
    gpu_memory_utilization: Annotated[Number, Field(gt=0, le=1)] = Field(
        0.9, description="share of the GPU's memory that the engine may use, 0 to 1"
    )
    kv_blocks: Annotated[Literal["auto"] | Count, BeforeValidator(_blocks)] = Field(
        "auto", description="KV blocks per replica; auto works them out from the GPU's memory"
    )
    max_model_len: Count | None = Field(
        None, description="longest sequence, prompt and output, tokens; without it the model's own limit"
    )


class SingleSettings(EngineMemory):
    """One request on the device from its first to its last token."""

    model_config = ConfigDict(json_schema_extra=_require_first)
    max_num_seqs: ClassVar[int] = 1
    policy: Literal["single"] = Field("single", description="one request at a time")


class StaticSettings(EngineMemory):
    """Padded batches that run until their last row has finished: the Hugging Face pipeline."""

    model_config = ConfigDict(json_schema_extra=_require_first)
    policy: Literal["static"] = Field("static", description="padded batches, as a Hugging Face pipeline")
    max_num_seqs: Count = Field(8, description="batch size, requests")
    stop_rule: Literal["batch-max", "global-max"] = Field(
        "batch-max",
        description="a batch decodes to its own longest output, or to the longest of the whole workload",
    )
    streaming: Switch = Field(False, description="whether tokens are seen before the batch has ended")


class OrcaSettings(EngineMemory):
    """Iteration-level batching with KV memory reserved for the whole request at admission."""

    model_config = ConfigDict(json_schema_extra=_require_first)
    policy: Literal["orca"] = Field("orca", description="iteration-level batching with reserved memory")
    max_num_seqs: Count = Field(256, description="most requests in one iteration")
    reservation: Literal["max", "pow2", "oracle"] = Field(
        "max",
        description="KV slots reserved: the longest sequence, the next power of two, or the true length",
    )


class VllmV1Settings(EngineMemory):
    """vLLM's V1 scheduler: one token budget per iteration, paged KV, preemption by recomputation."""

    policy: Literal["vllm-v1"] = Field("vllm-v1", description="vLLM's V1 scheduler")
    max_num_seqs: Count = Field(256, description="most requests running at once")
    max_num_batched_tokens: Count = Field(2048, description="token budget of one iteration")
    chunked_prefill: Switch = Field(True, description="whether a prompt may be split over iterations")
    long_prefill_token_threshold: Whole = Field(
        0, description="most tokens of one prompt in one iteration; 0: only the budget bounds them"
    )
    scheduling: Literal["fcfs", "priority"] = Field(
        "fcfs", description="queue order: first come first served, or lowest priority number first"
    )
    prefix_caching: Switch = Field(True, description="whether KV blocks of equal prefixes are shared")
    full_isl_gate: Switch = Field(
        True,
        description="admit only when blocks for the whole sequence are free (vLLM since late 2026); "
        "false: for its first chunk",
    )
    watermark: Annotated[Number, Field(ge=0, lt=1)] = Field(
        0.0, description="share of KV blocks kept free at admission while something runs, 0 to 1"
    )

    @model_validator(mode="after")
    def _budget_suffices(self) -> VllmV1Settings:
        refuse(_budget_problems(self))
        return self


def _budget_problems(engine: VllmV1Settings) -> Iterator[Problem]:
    budget = engine.max_num_batched_tokens
    key = "max_num_batched_tokens"
    if budget < engine.max_num_seqs:
        yield (
            (key, "max_num_seqs"),
            f"must be >= max_num_seqs ({engine.max_num_seqs}), a token for each, not {budget}",
        )
    if budget < engine.block_size:
        yield (key, "block_size"), f"must be >= block_size ({engine.block_size}), not {budget}"
    longest = engine.max_model_len
    if not engine.chunked_prefill and longest is not None and budget < longest:
        yield (
            (key, "max_model_len", "chunked_prefill"),
            f"must be >= max_model_len ({longest}) while chunked_prefill is false, or a long prompt could "
            f"never be scheduled, not {budget}",
        )


Engine: TypeAlias = SingleSettings | StaticSettings | OrcaSettings | VllmV1Settings
EngineSettings: TypeAlias = Annotated[Engine, Field(discriminator="policy"), BeforeValidator(_with_policy)]


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
