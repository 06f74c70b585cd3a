"""Settings of the policies that run padded batches to their end: FasterTransformer, buckets, Triton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field, model_validator

from simulator.settings import (
    Count,
    EngineMemory,
    Number,
    Problem,
    Settings,
    Switch,
    Text,
    Whole,
    refuse,
    require_first,
)

Wait: TypeAlias = Annotated[Number, Field(ge=0, le=1e9)]  # ms


class FasterTransformerSettings(EngineMemory):
    """Batches of whatever waits when the engine is idle, run to their last token: FasterTransformer."""

    model_config = ConfigDict(json_schema_extra=require_first)
    policy: Literal["faster-transformer"] = Field(
        "faster-transformer", description="request-level batches with memory for the longest sequence"
    )
    max_num_seqs: Count = Field(8, description="most requests in a batch")
    prompt_rule: Literal["min-length-then-step", "pad-to-max"] = Field(
        "min-length-then-step",
        description="prompts are computed to the length of the shortest and then token by token, "
        "or padded to the longest",
    )
    batch_shrinks: Switch = Field(
        False, description="whether finished rows are left out and answered at once, as Vidur emulates it"
    )


class BucketedSettings(EngineMemory):
    """Padded batches of requests of similar length."""

    model_config = ConfigDict(json_schema_extra=require_first)
    policy: Literal["bucketed"] = Field("bucketed", description="padded batches of similar length")
    max_num_seqs: Count = Field(8, description="batch size at which a bucket is full, requests")
    bucket_edges: tuple[Count, ...] = Field(
        (64, 128, 256, 512, 1024, 2048),
        description="longest length of each bucket, tokens, ascending; longer ones share a last bucket",
    )
    bucket_by: Literal["prompt", "prompt+limit"] = Field(
        "prompt", description="what counts as the length: the prompt, or prompt and output limit"
    )
    timeout_ms: Wait = Field(
        100.0, description="longest wait for a bucket to fill, ms; 0: whatever is there goes at once"
    )
    max_padded_tokens: Count | None = Field(
        None, description="most rows times longest length in a batch, tokens; without it only rows count"
    )
    streaming: Switch = Field(False, description="whether tokens are seen before the batch has ended")

    @model_validator(mode="after")
    def _edges_ascend(self) -> BucketedSettings:
        edges = self.bucket_edges
        if list(edges) != sorted(set(edges)):
            refuse([(("bucket_edges",), f"must be ascending, not {list(edges)}")])
        return self


class QueuePolicySettings(Settings):
    """What happens to requests that wait long, or find many others waiting, in one of Triton's queues."""

    timeout_action: Literal["reject", "delay"] = Field(
        "reject", description="after its timeout a request is rejected, or served behind all others"
    )
    default_timeout_ms: Wait = Field(0.0, description="longest wait in the queue, ms; 0: no timeout")
    allow_timeout_override: Switch = Field(
        False, description="whether workload.timeout_ms may shorten the default timeout, if there is one"
    )
    max_queue_size: Whole = Field(0, description="requests waiting at which others are refused; 0: none")


class DynamicSettings(EngineMemory):
    """Padded batches formed while a window is open: Triton's dynamic batcher."""

    model_config = ConfigDict(json_schema_extra=require_first)
    policy: Literal["dynamic"] = Field("dynamic", description="Triton's dynamic batcher")
    max_num_seqs: Count = Field(8, description="largest batch (its max_batch_size), requests")
    preferred_batch_sizes: tuple[Count, ...] = Field(
        (), description="batch sizes to send at once, requests; without any: max_num_seqs"
    )
    max_queue_delay_ms: Wait = Field(0.0, description="longest wait for a preferred batch size, ms")
    priority_levels: Whole = Field(0, description="queues by priority, 1 goes first; 0: one queue for all")
    default_priority_level: Whole = Field(
        0, description="level of requests without a priority; needed where there are levels"
    )
    default_queue_policy: QueuePolicySettings = Field(
        QueuePolicySettings.model_construct(), description="limits of the queue, or of levels without own"
    )
    priority_queue_policy: dict[Text, QueuePolicySettings] = Field(
        {}, description="limits of single levels, by the level's number"
    )
    streaming: Switch = Field(False, description="whether tokens are seen before the batch has ended")

    @model_validator(mode="after")
    def _levels_exist(self) -> DynamicSettings:
        refuse(_dynamic_problems(self))
        return self


def _dynamic_problems(engine: DynamicSettings) -> Iterator[Problem]:
    largest, levels, default = engine.max_num_seqs, engine.priority_levels, engine.default_priority_level
    for size in engine.preferred_batch_sizes:
        if size > largest:
            yield (
                ("preferred_batch_sizes", "max_num_seqs"),
                f"must be <= max_num_seqs ({largest}), not {size}",
            )
    if levels and not 1 <= default <= levels:
        yield (
            ("default_priority_level", "priority_levels"),
            f"must be 1 to priority_levels ({levels}), not {default}",
        )
    known = [str(level) for level in range(1, levels + 1)]
    for level in engine.priority_queue_policy:
        if level not in known:
            yield (
                (f"priority_queue_policy.{level}", "priority_levels"),
                f"must be a level from 1 to priority_levels ({levels})",
            )
