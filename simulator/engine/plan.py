"""What one iteration of the model does: the only thing a scheduler and an executor exchange."""

from __future__ import annotations

from typing import NamedTuple

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.request import Request
from simulator.engine.sequence_group import CopyOnWrite


class PrefillChunk(NamedTuple):
    """Tokens ``[start, start + tokens)`` of a request, computed in this iteration.

    ``completes``: the request's known tokens are all computed after it, so it yields a token.
    """

    request: Request
    start: int
    tokens: int
    completes: bool


class BlockCopy(NamedTuple):
    """A request's KV blocks on their way between the GPU and the host."""

    request: Request
    blocks: int


class IterationShape(NamedTuple):
    """All that an iteration's duration depends on, for simulation, live timing and calibration alike."""

    prefills: int  # prompt chunks
    prefill_tokens: int  # positions computed for them, padding included
    prefill_pairs: int  # query-key pairs: sum over chunks of tokens * start + tokens * (tokens + 1) / 2
    decodes: int  # rows computed, finished rows of a padded batch included
    context_tokens: int  # keys read by the decodes, each row's own new token included
    padding_tokens: int = 0  # how many of the positions above are waste


class Plan(NamedTuple):
    """One iteration. ``decodes`` is a live view of the scheduler's group, never a copy; ``paused`` leaves
    the whole group out, its clock stands still, as in engines that prefill or decode but never both.

    ``horizon``: how many times this plan may run, unchanged, before the scheduler must be asked again,
    provided that nobody stops, arrives or is cancelled. Blocks for the first run are already given.

    ``preempted`` lost their KV and will compute it again; ``swapped_out`` keep a copy in host memory.
    Both kinds were evicted. A request of several sequences is named once there, for all of them.
    ``copies`` are made before the model runs, after all that moves to and from the host.
    """

    prefills: tuple[PrefillChunk, ...]
    decodes: DecodeGroup
    preempted: tuple[Request, ...] = ()
    stalled: tuple[Request, ...] = ()  # decoding requests that this iteration leaves out
    horizon: int = 1
    paused: bool = False  # no member of the group takes part
    swapped_out: tuple[BlockCopy, ...] = ()
    swapped_in: tuple[BlockCopy, ...] = ()  # back on the GPU and taking part
    padded_to: int = 0  # every prompt row is padded to this many positions; 0: no padding
    copies: tuple[CopyOnWrite, ...] = ()
    saved_blocks: int | None = None  # KV blocks that sequences save by sharing, where they can

    @property
    def copied_blocks(self) -> int:
        """KV blocks that cross between the GPU and the host before the model runs."""
        return sum(copy.blocks for copy in (*self.swapped_out, *self.swapped_in))

    def end_prefills(self, prefilling: dict[Request, None] | None = None) -> None:
        """Settle the chunks once they are computed: who is complete has a token and joins the group.

        ``prefilling``: the policy's own record of unfinished prompts, which the complete ones leave.
        """
        for request, start, tokens, completes in self.prefills:
            request.computed_tokens = start + tokens
            if completes:
                if prefilling is not None:
                    del prefilling[request]
                request.generated_tokens += 1
                self.decodes.join(request)

    def shape(self) -> IterationShape:
        """The shape of the plan's next run."""
        group, prefills = self.decodes, self.prefills
        decodes = context = padding = 0
        if not self.paused:
            decodes, context, padding = len(group.members), group.context_tokens, group.finished
        if not prefills:
            return IterationShape(0, 0, 0, decodes, context, padding)
        if self.padded_to:
            width, rows = self.padded_to, len(prefills)
            useful = sum(chunk.tokens for chunk in prefills)
            tokens, pairs = rows * width, rows * width * (width + 1) // 2
            return IterationShape(rows, tokens, pairs, decodes, context, padding + tokens - useful)
        tokens = pairs = 0
        for _, start, count, _ in prefills:
            tokens += count
            pairs += count * start + count * (count + 1) // 2
        return IterationShape(len(prefills), tokens, pairs, decodes, context, padding)
