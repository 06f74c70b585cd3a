"""Beam search for one request: which continuations to keep, when to stop, and the best answer found.

The rules and the arithmetic are those of transformers (generation/utils.py of 5.24, ``_beam_search``), in
the same float32 operations, so that answers are equal to `generate(num_beams=...)`'s to the token.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

NEVER = -1.0e9  # a score that loses against every real one


class BeamRules(NamedTuple):
    """Two of ``generate``'s arguments, by its names and with its defaults.

    Scores are log probabilities over ``length ** length_penalty``. ``early_stopping`` True: end with as
    many finished answers as beams; False: when no open beam can win at its present length; "never": when
    none can at any length.
    """

    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


DEFAULT_RULES = BeamRules()


class Step(NamedTuple):
    """For every beam: the beam that it continues, and with which token."""

    parents: list[int]
    tokens: list[int]


class BeamSearch:
    """A search of ``width`` beams for an answer of at most ``limit`` tokens.

    ``ended``: why the best answer is complete, once the search is over. ``least``: tokens before which no
    stop is chosen.
    """

    def __init__(
        self,
        width: int,
        limit: int,
        stops: frozenset[int],
        *,
        least: int = 0,
        rules: BeamRules = DEFAULT_RULES,
    ) -> None:
        self.width = width
        self.limit = limit
        self.stops = stops
        self.least = least
        self.rules = rules
        self.ended: Literal["stop", "length"] | None = None
        self._open: list[list[int]] = [[] for _ in range(width)]
        self._scores = torch.full((width,), NEVER)
        self._scores[0] = 0.0  # at first all beams are one
        self._closed: list[list[int]] = [[] for _ in range(width)]  # best finished answers, best first
        self._closed_scores = torch.full((width,), NEVER)
        self._is_closed = torch.zeros(width, dtype=torch.bool)
        self._promising = True  # whether an open beam may still win; never again, once it may not

    @property
    def answer(self) -> list[int]:
        """The best finished answer."""
        return self._closed[0]

    def step(self, logits: Tensor) -> Step:
        """Go on by one token, from the logits of every beam: float [width, vocabulary]."""
        length = len(self._open[0])
        scores, parents, tokens = self._candidates(logits, length)
        answers = [[*self._open[p], t] for p, t in zip(parents, tokens, strict=True)]
        ends = torch.tensor([t in self.stops or length + 1 >= self.limit for t in tokens])
        running = scores + ends.float() * NEVER
        kept: list[int] = torch.topk(running, self.width).indices.tolist()
        self._close(answers, scores, ends, length + 1)
        self._open, self._scores = [answers[i] for i in kept], running[kept]
        self._settle(length + 1, exhausted=bool(ends.all()))
        return Step([parents[i] for i in kept], [tokens[i] for i in kept])

    def _candidates(self, logits: Tensor, length: int) -> tuple[Tensor, list[int], list[int]]:
        """The best continuations, so many that ``width`` of them do not stop: score, parent and token."""
        vocabulary = logits.shape[1]
        chances = torch.log_softmax(logits.float(), dim=-1).cpu()
        if length < self.least:
            chances[:, list(self.stops)] = float("-inf")
        chances = chances + self._scores[:, None]
        scores, places = torch.topk(chances.reshape(-1), max(2, 1 + len(self.stops)) * self.width)
        found: list[int] = places.tolist()
        return scores, [place // vocabulary for place in found], [place % vocabulary for place in found]

    def _close(self, answers: list[list[int]], scores: Tensor, ends: Tensor, length: int) -> None:
        """Keep the best of the finished answers; only those among the best ``width`` candidates count."""
        ends = ends.clone()
        ends[self.width :] = False
        scores = scores / (length**self.rules.length_penalty)
        full = self.rules.early_stopping is True and bool(self._is_closed.all())
        scores += float(full) * NEVER
        scores += float(not self._promising) * NEVER
        scores += (~ends) * NEVER
        merged, are_closed = torch.cat((self._closed_scores, scores)), torch.cat((self._is_closed, ends))
        best = torch.topk(merged, self.width).indices
        everyone = self._closed + answers
        self._closed = [everyone[i] for i in best.tolist()]
        self._closed_scores, self._is_closed = merged[best], are_closed[best]

    def _settle(self, length: int, *, exhausted: bool) -> None:
        """Whether the search is over: nothing to gain, nothing left to fill, or nothing to go on with."""
        penalty, early = self.rules
        reachable = self.limit if early == "never" and penalty > 0.0 else length
        best = self._scores[:1] / (reachable**penalty)
        worst = torch.where(self._is_closed, self._closed_scores.min(), NEVER)
        self._promising = self._promising and bool((best > worst).any())
        full = early is True and bool(self._is_closed.all())
        if exhausted or full or not self._promising:
            self.ended = "stop" if self.answer[-1] in self.stops else "length"
