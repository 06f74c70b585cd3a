"""A request as the engine sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from simulator.engine.sequence_group import SequenceGroup


@dataclass(frozen=True, slots=True)
class Content:
    """Names what a prompt says, so that equal prefixes can share KV blocks.

    ``ids[i]`` names tokens ``[0, (i + 1) * tokens_per_id)`` of the prompt: ids are prefix-cumulative,
    so two prompts agree up to a point exactly when their ids do. The last id may cover a partial span.
    ``names_answer``: ids go on past the prompt, as a later prompt will name the answer; they may go on
    further, so that nothing can be told from them of its length.
    """

    ids: tuple[int, ...]
    tokens_per_id: int
    names_answer: bool = False


class Decoding(NamedTuple):
    """How many sequences answer a request: independent samples, or the beams of one search."""

    sequences: int = 1
    beam_search: bool = False


ONE_SEQUENCE = Decoding()


@dataclass(eq=False, slots=True)
class Request:
    """One request on its way through the engine. Identity matters: requests are never compared.

    ``output_limit`` is the declared maximum (``max_new_tokens``), all that a scheduler may know of the
    answer's length. Fields below ``decoding`` are progress; the scheduler alone writes them, except the
    two time stamps, which only the recorder writes and no scheduler reads.

    While a request is decoding, ``generated_tokens`` and ``computed_tokens`` are not kept up to date:
    they follow from the decode group's clock (see `DecodeGroup`) and are settled when it leaves.
    """

    id: int
    arrival_ns: int
    prompt_tokens: int
    output_limit: int
    content: Content | None = None
    priority: int = 0
    timeout_ns: int = 0  # the longest wait for its turn that the client asks for; 0: no wish
    decoding: Decoding = ONE_SEQUENCE

    group: SequenceGroup | None = None  # where several sequences answer it; this is the first of them
    computed_tokens: int = 0  # tokens whose KV is stored
    generated_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens found in the prefix cache at first admission
    preemptions: int = 0
    blocks: list[int] = field(default_factory=list)
    published_blocks: int = 0  # leading blocks whose content key is known to the prefix cache
    seat: int = 0  # rank of its latest admission among all admissions
    origin: int = 0  # decode clock minus generated tokens, while decoding

    scheduled_ns: int = -1
    first_token_ns: int = -1

    @property
    def total_tokens(self) -> int:
        """Tokens known so far: the prompt and what has been generated."""
        return self.prompt_tokens + self.generated_tokens

    @property
    def limit_tokens(self) -> int:
        """The most tokens this request may ever hold."""
        return self.prompt_tokens + self.output_limit
