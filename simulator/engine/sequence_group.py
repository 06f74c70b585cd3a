"""Several sequences that answer one request: parallel samples, or the beams of one search.

Source: PagedAttention (arXiv:2309.06180, sections 4.4 and 4.5) and vLLM 0.1.0 (vllm/sequence.py,
vllm/core/block_manager.py). See docs/decisions/0006-sequence-groups.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simulator.engine.request import Request

SIBLING_IDS = 1 << 40  # more requests than a run can have: sequences of one request are this far apart


class CopyOnWrite(NamedTuple):
    """A KV block that one of its holders is about to write to, and its own copy to write to instead."""

    request: Request
    source: int
    target: int


class SequenceGroup:
    """A request's sequences, each a `Request` of its own to the decode group and the KV cache.

    ``sequences`` begins with the request itself; all are alike in what the client asked. A beam keeps its
    place there for the whole search: a step of the search only exchanges what the places hold.
    ``alive``: those that have not stopped. ``gang``: they share one prompt computation, and are seated and
    evicted together; otherwise each goes its own way, as vLLM V1 fans samples out.

    ``parents`` is what a step of the search chose, written by the executor before the iteration is
    committed: the place that each beam continues; empty: each its own. ``layout``, while the group is in
    host memory: for each living sequence, the places of its blocks in the copy.
    """

    __slots__ = ("alive", "beam_search", "gang", "layout", "parents", "sequences")

    def __init__(self, request: Request, *, gang: bool) -> None:
        count, self.beam_search = request.decoding
        self.gang = gang
        self.sequences: tuple[Request, ...] = (request, *(_sibling(request, i) for i in range(1, count)))
        self.alive = list(self.sequences)
        self.parents: Sequence[int] = ()
        self.layout: list[list[int]] = []
        for sequence in self.sequences:
            sequence.group = self

    def stop(self, sequence: Request) -> bool:
        """A sequence has its last token. Whether it was the last one, which completes the answer."""
        self.alive.remove(sequence)
        if self.alive:
            return False
        request = self.sequences[0]
        request.generated_tokens = max(one.generated_tokens for one in self.sequences)
        self.sequences = ()  # no cycles: simulations run without the collector
        return True


def _sibling(request: Request, place: int) -> Request:
    return Request(
        request.id + place * SIBLING_IDS,
        request.arrival_ns,
        request.prompt_tokens,
        request.output_limit,
        request.content,
        request.priority,
        request.timeout_ns,
        request.decoding,
    )


def together(request: Request) -> Sequence[Request]:
    """The living sequences that are seated and evicted with a request; itself where it is alone."""
    group = request.group
    return (request,) if group is None or not group.gang else group.alive
