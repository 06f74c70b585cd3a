"""Requests of several sequences among the seated: how their rows fork, grow and move to the host and back.

Source: PagedAttention (arXiv:2309.06180, section 4.4) and vLLM 0.1.0 (vllm/core/block_manager.py: ``fork``,
``append_slot``, ``swap_out``, ``swap_in``). Rows share the blocks of their common beginning; of
the holders that are about to write to a block all but the last copy it first (copy on write).
"""

from __future__ import annotations

from collections.abc import Collection

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.request import Request
from simulator.engine.sequence_group import CopyOnWrite, SequenceGroup, together


class Gangs:
    """What seats need to know of requests with several sequences; requests with one pass through as well.

    ``copies``: the blocks copied since the last `take_copies`.
    """

    def __init__(self, kv: KVCache, group: DecodeGroup) -> None:
        self.kv = kv
        self.group = group
        self.copies: list[CopyOnWrite] = []
        self._searches: dict[Request, None] = {}  # decoding beam searches
        self._forked: dict[Request, None] = {}  # whose rows may share the block that they write to next

    @property
    def searching(self) -> bool:
        """Whether any beam search is decoding: its rows may fork in every iteration."""
        return bool(self._searches)

    def take_copies(self) -> tuple[CopyOnWrite, ...]:
        """The copies to make in this iteration."""
        copies, self.copies = self.copies, []
        return tuple(copies)

    def spread(self, request: Request) -> None:
        """A prompt is computed and its first row decodes: the others share its KV and decode beside it."""
        for sequence in together(request)[1:]:
            sequence.blocks = self.kv.fork(request.blocks)
            sequence.computed_tokens = request.computed_tokens
            sequence.generated_tokens = request.generated_tokens
        self._enter(request, together(request)[1:])

    def _enter(self, request: Request, rows: Collection[Request]) -> None:
        for row in rows:
            self.group.join(row)
        self._forked[request] = None
        if request.decoding.beam_search:
            self._searches[request] = None

    def growth(self) -> int:
        """Free blocks that the next tokens of all decoding rows take."""
        due = self.group.due()
        return len(due) + sum(self.need(r) for r in self._forked if together(r)[0] not in due)

    def need(self, request: Request) -> int:
        """Free blocks that the next tokens of a decoding request's rows take."""
        rows = together(request)
        if rows[0] in self.group.due():
            return len(rows)
        return self.kv.spare_tails(rows) if request in self._forked else 0

    def grow(self, request: Request) -> None:
        """Give every row of a decoding request a slot for its next token."""
        rows = together(request)
        if rows[0] in self.group.due():
            self.kv.grow(rows)
        elif request in self._forked:
            splits = [(row, self.kv.split(row)) for row in rows]
            self.copies += [CopyOnWrite(row, *blocks) for row, blocks in splits if blocks is not None]
        self._forked.pop(request, None)

    def grow_all(self) -> None:
        """The same for all decoding rows at once, where there is room for `growth`."""
        due = self.group.due()
        for request in [request for request in self._forked if together(request)[0] not in due]:
            self.grow(request)
        self._forked.clear()
        self.kv.grow(due)

    def branch(self) -> None:
        """Every search that took a step: its places now hold what it chose to go on with."""
        for request in self._searches:
            group = request.group
            if group is not None and group.parents:
                self._exchange(group)
                self._forked[request] = None
                group.parents = ()

    def _exchange(self, group: SequenceGroup) -> None:
        """What no place continues is freed; what several continue is shared. Nothing is copied yet."""
        held, continued = [one.blocks for one in group.sequences], dict.fromkeys(group.parents, 0)
        for place, sequence in enumerate(group.sequences):
            if place not in continued:
                self.kv.release(sequence)
        for sequence, parent in zip(group.sequences, group.parents, strict=True):
            sequence.blocks = self.kv.fork(held[parent]) if continued[parent] else held[parent]
            continued[parent] += 1

    def release(self, request: Request) -> None:
        """Let all rows of a request go and free what they hold."""
        for row in together(request):
            if row in self.group.members:
                self.group.leave(row)
            self.kv.release(row)
        self.forget(request)

    def forget(self, request: Request) -> None:
        """A request has no decoding rows any more."""
        self._forked.pop(request, None)
        self._searches.pop(request, None)

    def pack(self, request: Request) -> int:
        """Free a request's blocks, remembering which rows shared which; how many blocks there were."""
        places: dict[int, int] = {}
        layout = [
            [places.setdefault(block, len(places)) for block in row.blocks] for row in together(request)
        ]
        self.release(request)
        if request.group is not None:
            request.group.layout = layout
        return len(places)

    def unpack(self, group: SequenceGroup) -> None:
        """Fresh blocks for all rows, shared as they were."""
        for row, blocks in zip(group.alive, self.kv.take_layout(group.layout), strict=True):
            row.blocks = blocks

    def resume(self, request: Request) -> None:
        """Rows whose KV is back decode again, with a slot for the next token."""
        self._enter(request, together(request))
        self.grow(request)
