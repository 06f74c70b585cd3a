"""What clients may send, checked field by field, and what becomes of it: an order for the engine.

Fields that would change the answer and that the server cannot honour are refused, never ignored; unknown
fields are let through, as other servers do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.serve.problems import Problem
from backend.serve.seam import ChatMessage, Order, Prompt, Sampling, Text
from simulator.errors import UserError

COMPLETION_TOKENS = 16  # the output limit of /v1/completions where none is given, as in OpenAI's API
NEUTRAL: dict[
    str, tuple[object, ...]
] = {  # fields that are not served, and the values that ask for nothing
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "use_beam_search": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "modalities": (["text"],),
    "audio": (),
}

MOST_CHOICES = 128  # per request, as in OpenAI's API
MOST_STOPS = 256  # each is looked for after every token; OpenAI's API allows 4
Tokens = Annotated[int, Field(ge=1)]
StopText = Annotated[str, Field(max_length=1024)]
Item = TypeVar("Item")
Items = Annotated[list[Item], Field(fail_fast=True)]  # the first wrong entry speaks for all


class StreamOptions(BaseModel):
    """What a stream says besides its tokens."""

    model_config = ConfigDict(strict=True, extra="allow")
    include_usage: bool = False


class Body(BaseModel):
    """What completions and chats have in common."""

    model_config = ConfigDict(strict=True, extra="allow")
    model: str | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    stop: StopText | Annotated[Items[StopText], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[Items[int], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    priority: int = 0

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end the answer."""
        found = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in found if text)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> Sampling:
        """How tokens are drawn; OpenAI's default temperature is 1."""
        return Sampling(
            1.0 if self.temperature is None else self.temperature,
            1.0 if self.top_p is None else self.top_p,
            max(self.top_k or 0, 0),
            self.seed,
        )


class CompletionBody(Body):
    """POST /v1/completions."""

    prompt: str | Items[int] | Items[str] | Items[Items[int]]


class ContentPart(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(strict=True, extra="allow")
    type: Literal["text"]
    text: str


class MessageBody(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(strict=True, extra="allow")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[ContentPart] | None = None

    def message(self) -> ChatMessage:
        """The message with its parts joined."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts or [])
        return ChatMessage(self.role, text)


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: Annotated[list[MessageBody], Field(min_length=1, fail_fast=True)]


AnyBody = TypeVar("AnyBody", bound=Body)


def parse(kind: type[AnyBody], data: bytes) -> AnyBody:
    """A checked body, or the problem with it."""
    try:
        body = kind.model_validate_json(data)
    except ValidationError as error:
        raise _problem(error) from None
    for name, value in (body.model_extra or {}).items():
        if name in NEUTRAL and value is not None and value not in NEUTRAL[name]:
            raise Problem(
                400, f"{name}: {short(value)} is not supported here", param=name, code="unsupported"
            )
    if body.stream_options is not None and not body.stream:
        raise Problem(400, "stream_options: needs stream: true", param="stream_options")
    return body


def _problem(error: ValidationError) -> Problem:
    """The complaint that reaches furthest into the body, as one line: of a union's, the closest miss.

    One about a type is further off than one about a value that has the right type.
    """
    found = error.errors(include_url=False)
    first = max(found, key=lambda one: (len(one["loc"]), not one["type"].endswith("_type")))
    if first["type"] == "json_invalid":
        return Problem(400, f"the body is not valid JSON: {first['ctx']['error']}", code="invalid_json")
    where = ".".join(str(step) for step in first["loc"] if not _names_alternative(step))
    got = "" if first["type"] == "missing" else f", got {short(first['input'])}"
    param = str(first["loc"][0]) if first["loc"] else None
    return Problem(400, f"{where or 'body'}: {first['msg']}{got}", param=param, code="invalid_value")


def _names_alternative(step: int | str) -> bool:
    """Whether a step of a complaint's path names a type of a union, not a key."""
    return isinstance(step, str) and (step.endswith("str") or "[" in step)


def short(value: Any) -> str:
    """A value as a message quotes it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def completion_prompt(body: CompletionBody, text: Text) -> Prompt:
    """The prompt of a completion: a text or a list of token ids, alone or as a list of one."""
    prompt = body.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise Problem(
                400, f"prompt: one per request, got {len(prompt)}", param="prompt", code="unsupported"
            )
        prompt = prompt[0]
    try:
        made = text.prompt(prompt) if isinstance(prompt, str) else text.token_ids(prompt)  # type: ignore[arg-type]
    except UserError as error:
        raise Problem(400, f"prompt: {error}", param="prompt", code="invalid_value") from None
    return made


def chat_prompt(body: ChatBody, text: Text) -> Prompt:
    """The prompt of a chat, up to where the answer begins."""
    try:
        return text.chat([message.message() for message in body.messages])
    except UserError as error:
        raise Problem(400, f"messages: {error}", param="messages", code="invalid_value") from None


def choices_of(order: Order, n: int) -> list[Order]:
    """One order for each of ``n`` answers to the same prompt, each with random numbers of its own."""
    sampling = order.sampling
    if sampling.seed is None:
        return [order] * n
    seeds = range(sampling.seed, sampling.seed + n)
    return [replace(order, sampling=sampling._replace(seed=seed)) for seed in seeds]


def order_of(body: Body, prompt: Prompt, max_model_len: int, default_limit: int | None) -> Order:
    """An order that fits the model's length, or the problem with it."""
    if prompt.tokens < 1:
        raise Problem(400, "the prompt is empty", code="invalid_value")
    room = max_model_len - prompt.tokens
    asked = body.max_completion_tokens or body.max_tokens or min(default_limit or room, room)
    if room < 1 or asked > room:
        raise Problem(
            400,
            f"the prompt has {prompt.tokens} tokens and {max(asked, 1)} more are asked for, but a sequence "
            f"of this model holds {max_model_len} in all",
            code="context_length_exceeded",
        )
    if body.min_tokens > asked:
        raise Problem(400, f"min_tokens: must be <= the output limit {asked}", param="min_tokens")
    return Order(
        prompt,
        asked,
        body.min_tokens,
        body.ignore_eos,
        tuple(body.stop_token_ids or ()),
        body.sampling(),
        body.priority,
    )
