"""What scenarios are made of: values with units and bounds, and settings that refuse unknown keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

MOST_BLOCKS = 10**8
EXACT_WHOLE = 2**53  # beyond it a float no longer tells neighbouring whole numbers apart

Problem: TypeAlias = tuple[tuple[str, ...], str]  # the keys to blame, the first one most; what it must be


def whole(value: object) -> object:
    """``1e3`` is a whole number, although YAML reads it as a float."""
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_WHOLE:
        return int(value)
    return value


def _not_frozen(rate: float) -> float:
    """Gaps must stay representable in integer nanoseconds."""
    if rate < 1e-9:
        raise PydanticCustomError("expected", "{wanted}", {"wanted": ">= 1e-09"})
    return rate


def refuse(problems: Iterable[Problem]) -> None:
    """Raise one error that carries every combination found wrong, each with the keys to blame."""
    found = list(problems)
    if found:
        text = "; ".join(f"{keys[0]} {problem}".lstrip() for keys, problem in found)
        raise PydanticCustomError("combination", "{text}", {"text": text, "problems": found})


Whole: TypeAlias = Annotated[int, Field(strict=True, ge=0), BeforeValidator(whole)]
Count: TypeAlias = Annotated[int, Field(strict=True, ge=1, le=10**9), BeforeValidator(whole)]
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


def require_first(schema: JsonDict) -> None:
    properties = schema["properties"]
    required = schema.get("required", [])
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    first = next(iter(properties))
    schema["required"] = [first, *(key for key in required if key != first)]


class Chosen(Settings):
    """One alternative of several, told apart by its first key, which a file must therefore give."""

    model_config = ConfigDict(json_schema_extra=require_first)


def _blocks(value: object) -> object:
    """A number of KV blocks, or ``auto``: one message for both, where a union would give two."""
    value = whole(value)
    if value == "auto" or (
        isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_BLOCKS
    ):
        return value
    raise PydanticCustomError(
        "expected", "{wanted}", {"wanted": f"auto or a whole number from 1 to {MOST_BLOCKS}"}
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
