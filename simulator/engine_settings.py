"""Batching policies as a scenario sets them: one class of keys per policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from simulator.padded_settings import BucketedSettings, DynamicSettings, FasterTransformerSettings
from simulator.settings import (
    Count,
    EngineMemory,
    Number,
    Positive,
    Problem,
    Switch,
    Whole,
    refuse,
    require_first,
)

DEFAULT_POLICY = "vllm-v1"

Share: TypeAlias = Annotated[Number, Field(ge=0, lt=1)]


def _with_policy(value: object) -> object:
    """Engine settings that name no policy are those of the default one."""
    if isinstance(value, dict) and "policy" not in value:
        return {"policy": DEFAULT_POLICY, **value}
    return value


class SingleSettings(EngineMemory):
    """One request on the device from its first to its last token."""

    model_config = ConfigDict(json_schema_extra=require_first)
    max_num_seqs: ClassVar[int] = 1
    policy: Literal["single"] = Field("single", description="one request at a time")


class StaticSettings(EngineMemory):
    """Padded batches that run until their last row has finished: the Hugging Face pipeline."""

    model_config = ConfigDict(json_schema_extra=require_first)
    policy: Literal["static"] = Field("static", description="padded batches, as a Hugging Face pipeline")
    max_num_seqs: Count = Field(8, description="batch size, requests")
    stop_rule: Literal["batch-max", "global-max"] = Field(
        "batch-max",
        description="a batch decodes to its own longest output, or to the longest of the whole workload",
    )
    streaming: Switch = Field(False, description="whether tokens are seen before the batch has ended")


class OrcaSettings(EngineMemory):
    """Iteration-level batching with KV memory reserved for the whole request at admission."""

    model_config = ConfigDict(json_schema_extra=require_first)
    policy: Literal["orca"] = Field("orca", description="iteration-level batching with reserved memory")
    max_num_seqs: Count = Field(256, description="most requests in one iteration")
    reservation: Literal["max", "pow2", "oracle"] = Field(
        "max",
        description="KV slots reserved: the longest sequence, the next power of two, or the true length",
    )


class VllmV1Settings(EngineMemory):
    """vLLM's V1 scheduler: one token budget per iteration, paged KV, preemption by recomputation."""

    # What `vllm serve` takes by itself: vllm/engine/arg_utils.py, get_batch_defaults.
    policy: Literal["vllm-v1"] = Field("vllm-v1", description="vLLM's V1 scheduler")
    max_num_seqs: Count = Field(
        256,
        description="most requests running at once; vllm serve takes 1024 on GPUs of 70 GiB and more other "
        "than the A100, else 256",
    )
    max_num_batched_tokens: Count = Field(
        2048,
        description="most tokens in one iteration, of prompts and decodes together; vllm serve takes 8192 "
        "on GPUs of 70 GiB and more other than the A100, else 2048",
    )
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


class TensorRtLlmSettings(EngineMemory):
    """TensorRT-LLM's in-flight batching: a capacity policy for the KV cache, then a token budget."""

    model_config = ConfigDict(json_schema_extra=require_first)
    policy: Literal["tensorrt-llm"] = Field("tensorrt-llm", description="TensorRT-LLM's in-flight batching")
    max_num_seqs: Count = Field(256, description="most requests in one iteration (its max_batch_size)")
    max_num_batched_tokens: Count = Field(
        8192, description="token budget of one iteration (its max_num_tokens)"
    )
    capacity_policy: Literal["guaranteed-no-evict", "max-utilization", "static-batch"] = Field(
        "guaranteed-no-evict",
        description="a request starts when its output limit fits, when its prompt fits (it may be paused "
        "later), or when the batch before it is done",
    )
    context_chunking: Literal["off", "fcfs", "equal-progress"] = Field(
        "off",
        description="how prompts share the token budget: whole ones only, first come first served, or "
        "block by block in turn",
    )

    @model_validator(mode="after")
    def _budget_suffices(self) -> TensorRtLlmSettings:
        refuse(_token_budget_problems(self))
        return self


class SglangSettings(EngineMemory):
    """SGLang's scheduler: prefill first, admission by expected output, retraction under pressure."""

    model_config = ConfigDict(json_schema_extra=require_first)
    policy: Literal["sglang"] = Field("sglang", description="SGLang's scheduler")
    block_size: Count = Field(1, description="tokens per KV block (its page_size)")
    max_num_seqs: Count = Field(256, description="most requests running at once (its max_running_requests)")
    schedule_policy: Literal["fcfs", "lpm"] = Field(
        "fcfs", description="queue order: first come first served, or longest cached prefix first"
    )
    schedule_conservativeness: Positive = Field(
        1.0, description="scales the share of possible output that is reckoned with at admission"
    )
    chunked_prefill_size: Whole = Field(
        8192, description="most prompt tokens in one iteration; 0: prompts are never split"
    )
    max_prefill_tokens: Count = Field(
        16384, description="most prompt tokens in one iteration while prompts are not split, or one prompt"
    )
    enable_mixed_chunk: Switch = Field(
        False, description="whether decodes go on while prompts are computed"
    )
    prefix_caching: Switch = Field(True, description="whether KV blocks of equal prefixes are shared")

    @property
    def max_num_batched_tokens(self) -> int:
        """Most positions that an iteration computes, but for one longer prompt where they are not split."""
        return self.chunked_prefill_size or self.max_prefill_tokens

    @model_validator(mode="after")
    def _chunks_fit(self) -> SglangSettings:
        refuse(_chunk_problems(self))
        return self


def _chunk_problems(engine: SglangSettings) -> Iterator[Problem]:
    key, chunk = "chunked_prefill_size", engine.chunked_prefill_size
    if chunk % engine.block_size:
        yield (key, "block_size"), f"must be a multiple of block_size ({engine.block_size}), not {chunk}"
    if engine.enable_mixed_chunk and chunk <= engine.max_num_seqs:
        yield (
            (key, "max_num_seqs", "enable_mixed_chunk"),
            f"must be > max_num_seqs ({engine.max_num_seqs}) while enable_mixed_chunk is true, not {chunk}",
        )


def _token_budget_problems(engine: TensorRtLlmSettings) -> Iterator[Problem]:
    key, budget = "max_num_batched_tokens", engine.max_num_batched_tokens
    if budget < engine.max_num_seqs:
        yield (
            (key, "max_num_seqs"),
            f"must be >= max_num_seqs ({engine.max_num_seqs}), a token for each, not {budget}",
        )
    if engine.context_chunking != "off" and budget < engine.block_size:
        yield (key, "block_size"), f"must be >= block_size ({engine.block_size}), not {budget}"


class Vllm01Settings(EngineMemory):
    """vLLM as in its paper and release 0.1.0: whole prompts beside decodes, preemption by recomputation."""

    model_config = ConfigDict(json_schema_extra=require_first)
    policy: Literal["vllm-0.1"] = Field("vllm-0.1", description="vLLM's first release")
    max_num_seqs: Count = Field(256, description="most requests running at once")
    max_num_batched_tokens: Count = Field(
        2560, description="most tokens in one iteration, decodes included; no prompt may be longer"
    )
    watermark: Share = Field(0.01, description="share of KV blocks kept free at admission, 0 to 1")


class VllmV0Settings(EngineMemory):
    """vLLM 0.2 to 0.6: prompts before decodes, or chunked prompts beside them."""

    model_config = ConfigDict(json_schema_extra=require_first)
    policy: Literal["vllm-v0"] = Field("vllm-v0", description="vLLM's V0 scheduler")
    max_num_seqs: Count = Field(256, description="most requests running at once")
    max_num_batched_tokens: Count | None = Field(
        None,
        description="most tokens in one iteration; without it 512 with chunked_prefill, else 2048 or the "
        "longest sequence if that is more",
    )
    chunked_prefill: Switch = Field(
        False, description="whether prompts are split and run beside decodes, instead of before them"
    )
    watermark: Share = Field(0.01, description="share of KV blocks kept free at admission, 0 to 1")
    preemption_mode: Literal["recompute", "swap"] = Field(
        "recompute", description="whether evicted requests are computed again or kept in host memory"
    )
    swap_space_gib: Annotated[Number, Field(ge=0)] = Field(
        4.0, description="host memory for evicted requests, GiB per GPU"
    )
    padded_budget: Switch = Field(
        False, description="count prompts as rows times longest row (vLLM up to 0.2)"
    )
    block_manager: Literal["v1", "v2"] = Field(
        "v1",
        description="v1 wants a free KV block for every row, v2 (from 0.6.2) only where a block is full",
    )

    def batched_tokens(self, max_model_len: int) -> int:
        """The token limit, its default worked out."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return 512 if self.chunked_prefill else max(max_model_len, 2048)

    @model_validator(mode="after")
    def _budget_suffices(self) -> VllmV0Settings:
        refuse(_v0_budget_problems(self))
        return self


def _v0_budget_problems(engine: VllmV0Settings) -> Iterator[Problem]:
    if engine.max_num_batched_tokens is None and not engine.chunked_prefill:
        return
    key, budget = "max_num_batched_tokens", engine.batched_tokens(engine.max_model_len or 1)
    if budget < engine.max_num_seqs:
        yield (
            (key, "max_num_seqs"),
            f"must be >= max_num_seqs ({engine.max_num_seqs}), a token for each, not {budget}",
        )
    longest = engine.max_model_len
    if not engine.chunked_prefill and longest is not None and budget < longest:
        yield (
            (key, "max_model_len", "chunked_prefill"),
            f"must be >= max_model_len ({longest}) while chunked_prefill is false, or a long prompt could "
            f"never be scheduled, not {budget}",
        )


class SarathiSettings(EngineMemory):
    """Sarathi-Serve: prompt chunks fill what decodes leave of a token budget."""

    model_config = ConfigDict(json_schema_extra=require_first)
    policy: Literal["sarathi"] = Field("sarathi", description="Sarathi-Serve's stall-free batching")
    max_num_seqs: Count = Field(128, description="most requests running at once")
    token_budget: Count = Field(
        512, description="tokens of one iteration that decodes and prompt chunks share; bounds chunks only"
    )
    batching: Literal["combined", "hybrid-only", "chunked-only"] = Field(
        "combined",
        description="chunks beside decodes, whole prompts beside decodes, or chunks and decodes in turns",
    )
    watermark: Share = Field(0.01, description="share of KV blocks kept free at admission, 0 to 1")

    @property
    def max_num_batched_tokens(self) -> int:
        """Most positions that an iteration computes while prompts are chunked."""
        return max(self.token_budget, self.max_num_seqs)


class TgiSettings(EngineMemory):
    """Text-generation-inference: a token quota, and prompts that interrupt the running batch."""

    model_config = ConfigDict(json_schema_extra=require_first)
    policy: Literal["tgi"] = Field("tgi", description="Hugging Face's text-generation-inference")
    max_num_seqs: Count = Field(256, description="most requests running at once (its max_batch_size)")
    max_batch_prefill_tokens: Count = Field(
        4096, description="most prompt tokens in one iteration; no prompt may be longer"
    )
    max_batch_total_tokens: Count | None = Field(
        None, description="quota of prompts and output limits together, tokens; without it the KV cache"
    )
    waiting_served_ratio: Annotated[Number, Field(ge=0)] = Field(
        0.3, description="a batch is interrupted for at least this many requests per running one"
    )
    max_waiting_tokens: Whole = Field(
        20, description="tokens after which a batch is interrupted for any number of requests"
    )

    @property
    def max_num_batched_tokens(self) -> int:
        """Most positions that an iteration computes."""
        return max(self.max_batch_prefill_tokens, self.max_num_seqs)


Engine: TypeAlias = (
    SingleSettings
    | StaticSettings
    | FasterTransformerSettings
    | BucketedSettings
    | DynamicSettings
    | OrcaSettings
    | VllmV1Settings
    | TensorRtLlmSettings
    | SglangSettings
    | Vllm01Settings
    | VllmV0Settings
    | SarathiSettings
    | TgiSettings
)
EngineSettings: TypeAlias = Annotated[Engine, Field(discriminator="policy"), BeforeValidator(_with_policy)]


def batched_tokens(engine: Engine, max_model_len: int) -> int | None:
    """Most positions that an iteration of this engine computes; None where nothing bounds them."""
    if isinstance(engine, VllmV0Settings):
        return engine.batched_tokens(max_model_len)
    budget: int | None = getattr(engine, "max_num_batched_tokens", None)
    return budget
