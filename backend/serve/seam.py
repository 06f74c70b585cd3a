"""What the server and whatever generates its tokens say to each other.

A backing is a scheduler, an executor that runs its plans, and a text side that turns words into tokens and
back. The simulated backing is in `simulated`; a live one fills the same three protocols with a real model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol

from backend.driver import Clock
from simulator.engine.plan import Plan
from simulator.engine.request import Content, Request
from simulator.engine.scheduler import Scheduler

StopReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine takes it. ``token_ids`` is None where only the number of tokens is known.

    ``content`` names its beginnings, so that equal ones share KV blocks.
    """

    tokens: int
    token_ids: tuple[int, ...] | None = None
    content: Content | None = None


class Sampling(NamedTuple):
    """How the next token is drawn. ``top_k`` 0 takes all; ``temperature`` 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


DEFAULT_SAMPLING = Sampling()


@dataclass(frozen=True, slots=True)
class Order:
    """What one client asks for, already checked against the model's limits."""

    prompt: Prompt
    output_limit: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    sampling: Sampling = DEFAULT_SAMPLING
    priority: int = 0


class Emitted(NamedTuple):
    """One token of one request; ``ended`` says why where it is the last."""

    request: Request
    token: int
    ended: StopReason | None = None


class ServingExecutor(Protocol):
    """Runs the model for one plan and gives out its tokens. All calls come from the engine's one thread."""

    def expect(self, request: Request, order: Order) -> None:
        """Learn what was asked, before the request is first planned."""
        ...

    def forget(self, request: Request) -> None:
        """A request was cancelled, between two iterations: no token of it is wanted any more.

        A padded batch may keep computing its row.
        """
        ...

    def begin(self, plan: Plan) -> None:
        """Start the iteration; may return before it is done."""
        ...

    def finish(self, plan: Plan) -> Sequence[Emitted]:
        """Wait for the iteration; its tokens, at most one per request. Called before the plan's commit."""
        ...

    def rest(self) -> None:
        """There is nothing to run for now: the next iteration does not follow the last one at once."""
        ...


class ChatMessage(NamedTuple):
    """One turn of a conversation."""

    role: str
    text: str


class Decoder(Protocol):
    """Turns one answer's tokens into text, piece by piece."""

    def add(self, tokens: Sequence[int], *, last: bool) -> str:
        """The text that these tokens add; with ``last`` also what was held back for its next bytes."""
        ...


class Text(Protocol):
    """Words to tokens and back. Raises `UserError` where a prompt cannot be had."""

    def prompt(self, text: str) -> Prompt:
        """A prompt given as text."""
        ...

    def chat(self, messages: Sequence[ChatMessage]) -> Prompt:
        """A conversation, up to where the answer begins."""
        ...

    def token_ids(self, ids: Sequence[int]) -> Prompt:
        """A prompt given as token ids."""
        ...

    def decoder(self) -> Decoder:
        """A fresh decoder for one answer."""
        ...


@dataclass(frozen=True, slots=True)
class Backing:
    """Everything that stands behind a server.

    ``kind`` and ``notes`` are said at start-up; ``seats`` is how many requests can run at once. Arrivals
    are timed by ``clock``.
    """

    kind: str
    clock: Clock
    model_name: str
    scheduler: Scheduler
    executor: ServingExecutor
    text: Text
    kv_blocks: int
    block_size: int
    max_model_len: int
    seats: int
    notes: tuple[str, ...] = ()


def named_content(pieces: Sequence[bytes], tokens_per_piece: int) -> Content:
    """Names for the beginnings of a prompt cut into pieces: equal exactly where the pieces are, so far.

    128-bit digests: a chance collision, which would share the wrong KV, is out of reach.
    """
    digest = blake2b(digest_size=16)
    ids = []
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
        ids.append(int.from_bytes(digest.digest(), "little"))
    return Content(tuple(ids), tokens_per_piece)


def content_of_ids(token_ids: Sequence[int], block_size: int) -> Content:
    """Names for the beginnings of a prompt of known tokens, one per KV block."""
    pieces = [
        b"".join(token.to_bytes(4, "little") for token in token_ids[start : start + block_size])
        for start in range(0, len(token_ids), block_size)
    ]
    return named_content(pieces, block_size)
