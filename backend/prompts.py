"""What clients really sent: the token ids behind a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from backend.beam_search import DEFAULT_RULES, BeamRules
from backend.sampling import GREEDY, Sampling
from simulator.engine.request import Request


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as the model sees it.

    ``stops``: token ids that end the answer. ``output_tokens``: end it at exactly this length and ignore
    the stops, as replaying a recorded workload does; None: the model decides. ``least_tokens``: no stop is
    chosen while the answer is shorter. ``rules``: of the beam search, where the request asks for one.
    """

    tokens: Sequence[int]
    sampling: Sampling = GREEDY
    stops: frozenset[int] = field(default_factory=frozenset)
    output_tokens: int | None = None
    least_tokens: int = 0
    rules: BeamRules = DEFAULT_RULES


class SyntheticPrompts:
    """Token ids for workloads that have lengths only: equal content gives equal ids, all else differs.

    A content id names everything up to the end of its span, so a span's ids follow from its own id.
    Prompts without content follow from the request's id. Ids below ``first_token`` are left out, where
    vocabularies keep their special tokens.
    """

    def __init__(self, vocabulary: int, seed: int, first_token: int = 3) -> None:
        self._vocabulary = vocabulary
        self._first = min(first_token, vocabulary - 1)
        self._seed = seed

    def tokens(self, request: Request) -> list[int]:
        content = request.content
        if content is None:
            return self._draw((0, request.id), request.prompt_tokens)
        found = [
            token for name in content.ids for token in self._draw((1, *_words(name)), content.tokens_per_id)
        ]
        return found[: request.prompt_tokens]

    def _draw(self, key: Iterable[int], count: int) -> list[int]:
        generator = np.random.Generator(np.random.PCG64([self._seed, *key]))
        drawn: list[int] = generator.integers(self._first, self._vocabulary, count).tolist()
        return drawn


def _words(name: int) -> tuple[int, int]:
    """A content id of any size and sign as two non-negative numbers."""
    return int(name < 0), abs(name)
