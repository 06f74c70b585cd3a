"""Paged KV accounting: which request holds which block, and which prefixes can be shared.

Source: PagedAttention (arXiv:2309.06180, section 4) and vLLM V1's block pool as set out in the policy
notes: blocks are freed tail first into a queue and taken from its front; a full block keeps its content
key until it is taken again, so a later prompt with the same prefix can revive it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from simulator.engine.request import Content, Request

PRIVATE_BLOCKS = 1 << 24  # more blocks than one request can hold: keeps private keys of requests apart


class KVCache:
    """A fixed pool of KV blocks of ``block_size`` tokens.

    The free queue is a list read from ``_head`` or, while no block has content to find, from its end. A
    revived block leaves the middle of it lazily: its oldest entry is marked stale and skipped when it
    reaches the front. A request's keyed blocks are its first ``published_blocks``; only these are ever
    looked at one by one, all others move in slices.

    ``changes`` counts the events after which a request that did not fit may fit.

    Without prefix caching, the sequences of one request may share blocks (`fork`); whoever is about to
    write to such a block gets its own copy first (`split`). ``saved_blocks``: how many more blocks would be
    held if nothing were shared so.
    """

    __slots__ = (
        "_extra_holders",
        "_fresh",
        "_head",
        "_idle",
        "_index",
        "_keys",
        "_queue",
        "_stale",
        "_twins",
        "block_size",
        "blocks",
        "changes",
        "free_blocks",
        "prefix_caching",
        "saved_blocks",
    )

    def __init__(self, blocks: int, block_size: int, *, prefix_caching: bool = False) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.free_blocks = blocks
        self.changes = 0
        self.saved_blocks = 0
        self._fresh = 0  # blocks from here on were never used; they come before the queue
        self._queue: list[int] = []
        self._head = 0
        self._stale: dict[int, int] = {}  # block -> its oldest queue entries that no longer count
        self._keys: dict[int, int] = {}  # keyed block -> content key
        self._index: dict[int, int] = {}  # content key -> the block a lookup returns
        self._twins: dict[int, list[int]] = {}  # content key -> further blocks with the same content
        self._idle: set[int] = set()  # keyed blocks that nobody holds
        self._extra_holders: dict[int, int] = {}  # shared block -> requests holding it beyond the first

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    @property
    def used_blocks(self) -> int:
        """Blocks held by at least one request."""
        return self.blocks - self.free_blocks

    def take(self, count: int) -> list[int]:
        """The next free blocks, which lose their content. The caller has checked ``free_blocks``."""
        self.free_blocks -= count
        if not self._keys:
            # Nothing can be found in any block: the last freed is as good as any, and still at hand.
            queue = self._queue
            if not queue:
                return self._take_fresh(count)
            head = max(self._head, len(queue) - count)
            taken = queue[head:]
            del queue[head:]
            return taken if len(taken) == count else taken + self._take_fresh(count - len(taken))
        taken = self._take_fresh(count)
        head = self._head
        self._head = head + count - len(taken)
        taken += self._queue[head : self._head]
        if self._stale:
            taken = self._without_stale(taken, count)
        if self._head > 65_536 and self._head > len(self._queue) // 2:
            del self._queue[: self._head]
            self._head = 0
        if self._idle:
            self._forget(list(filter(self._idle.__contains__, taken)))
        return taken

    def _take_fresh(self, most: int) -> list[int]:
        """Up to ``most`` blocks that were never used."""
        start = self._fresh
        self._fresh = end = start + most if start + most < self.blocks else self.blocks
        return [*range(start, end)]

    def grow(self, requests: Collection[Request]) -> None:
        """Give each request one more block, once for each time that it is named."""
        for request, block in zip(requests, self.take(len(requests)), strict=True):
            request.blocks.append(block)

    def release(self, request: Request) -> None:
        """Free a request's blocks, tail first, and forget that it held them.

        An answer that a later prompt may repeat can be found from then on.
        Under prefix caching, blocks that it had not filled hold nothing to find: they are reused first.
        """
        blocks = request.blocks
        if not blocks:
            return
        self.changes += 1
        if self.prefix_caching and request.content is not None and request.content.names_answer:
            self.publish(request, request.computed_tokens)
        if self._keys:
            blocks = self._free_findable(request, blocks)
        elif self._extra_holders:
            blocks = self._drop_forked(blocks)
        self._queue += blocks
        self.free_blocks += len(blocks)
        request.blocks = []
        request.published_blocks = 0

    def _free_findable(self, request: Request, blocks: list[int]) -> list[int]:
        """Put first what holds nothing to find; what to queue up last, tail first, if nobody holds it."""
        full = max(request.computed_tokens // self.block_size, request.published_blocks)
        if full < len(blocks):
            self._put_first(blocks[full:])
            del blocks[full:]
        if request.published_blocks:
            blocks = self._drop_keyed(blocks, request.published_blocks)
        blocks.reverse()
        return blocks

    def _put_first(self, blocks: list[int]) -> None:
        """Free blocks without content: into the gap before the head of the queue, where there is room."""
        head = self._head
        self._head = start = max(0, head - len(blocks))
        self._queue[start:head] = blocks
        self.free_blocks += len(blocks)

    def fork(self, blocks: Sequence[int]) -> list[int]:
        """The same blocks for one more holder. Nothing is taken, so there is always room."""
        extra = self._extra_holders
        for block in blocks:
            extra[block] = extra.get(block, 0) + 1
        self.saved_blocks += len(blocks)
        return list(blocks)

    def spare_tails(self, requests: Iterable[Request]) -> int:
        """How many last blocks these requests save by sharing them."""
        return sum(count - 1 for count in Counter(r.blocks[-1] for r in requests).values())

    def split(self, request: Request) -> tuple[int, int] | None:
        """Copy on write: a request's last block and the free one that takes its place, if it is shared."""
        source = request.blocks[-1]
        if source not in self._extra_holders:
            return None
        self._drop_holder(source)
        self.saved_blocks -= 1
        [target] = self.take(1)
        request.blocks[-1] = target
        return source, target

    def take_layout(self, layout: Sequence[Sequence[int]]) -> list[list[int]]:
        """Fresh blocks for several holders, who name theirs by place (0, 1, ...) and share equal places."""
        holders = Counter(chain.from_iterable(layout))
        blocks = self.take(len(holders))
        for place, count in holders.items():
            if count > 1:
                self._extra_holders[blocks[place]] = count - 1
                self.saved_blocks += count - 1
        return [[blocks[place] for place in places] for places in layout]

    def _drop_forked(self, blocks: list[int]) -> list[int]:
        """Release one hold on each of these blocks; those that nobody holds any more."""
        extra, alone = self._extra_holders, list[int]()
        for block in blocks:
            if block in extra:
                self._drop_holder(block)
            else:
                alone.append(block)
        self.saved_blocks -= len(blocks) - len(alone)
        return alone

    def lookup(self, request: Request) -> list[int]:
        """The longest run of cached blocks at the start of a request; one token is left to compute."""
        cached = self.cached_blocks(request)
        keys = self._content_keys(request, 0, cached) if cached else []
        found = list(map(self._index.get, keys))
        if None in found:  # only where ids are not prefix-cumulative, as `Content` wants them
            del found[found.index(None) :]
        return found  # type: ignore[return-value]  # no None is left

    def cached_blocks(self, request: Request) -> int:
        """How many blocks `lookup` finds, in O(log n): what precedes a cached block is cached too.

        Whoever holds a block holds the ones before it, and gives them back after it.
        """
        index = self._index
        if not index or (request.content is None and not request.preemptions):
            return 0
        full = (request.total_tokens - 1) // self.block_size
        return bisect_left(
            range(full), True, key=lambda i: self._content_keys(request, i, i + 1)[0] not in index
        )

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these cached blocks nobody holds: reviving them uses up free blocks."""
        idle = self._idle
        return sum(block in idle for block in blocks)

    def share(self, request: Request, blocks: Sequence[int]) -> None:
        """Give cached blocks to a request, taking idle ones out of the free queue."""
        idle, extra, stale = self._idle, self._extra_holders, self._stale
        for block in blocks:
            if block in idle:
                idle.discard(block)
                stale[block] = stale.get(block, 0) + 1
                self.free_blocks -= 1
            else:
                extra[block] = extra.get(block, 0) + 1
        request.blocks = list(blocks)
        request.published_blocks = len(blocks)

    def publish(self, request: Request, tokens: int) -> None:
        """Make a request's first ``tokens`` tokens, computed or about to be, available to others."""
        full, start = tokens // self.block_size, request.published_blocks
        if full <= start:
            return
        blocks = request.blocks[start:full]
        keys = self._content_keys(request, start, full)
        request.published_blocks = full
        self.changes += 1
        if self._index.keys().isdisjoint(keys):
            self._index.update(zip(keys, blocks, strict=True))
        else:
            for key, block in zip(keys, blocks, strict=True):
                if self._index.setdefault(key, block) != block:
                    self._twins.setdefault(key, []).append(block)
        self._keys.update(zip(blocks, keys, strict=True))

    def _content_keys(self, request: Request, start: int, stop: int) -> list[int]:
        """Content keys of full blocks ``[start, stop)``: non-negative where prompts can share them."""
        content, size = request.content, self.block_size
        named = 0 if content is None else min(stop, _named_tokens(request, content) // size)
        keys = [] if content is None else _named_keys(content, start, named, size)
        first = -1 - request.id * PRIVATE_BLOCKS
        keys.extend(range(first - max(start, named), first - stop, -1))
        return keys

    def _without_stale(self, blocks: list[int], count: int) -> list[int]:
        """``count`` blocks from the front of the queue, of which ``blocks`` were the first entries."""
        stale, valid = self._stale, []
        while True:
            if stale.keys().isdisjoint(blocks):
                valid += blocks
            else:
                valid += [block for block in blocks if not self._strike(block)]
            missing = count - len(valid)
            if not missing:
                return valid
            head = self._head
            self._head = head + missing
            blocks = self._queue[head : head + missing]

    def _strike(self, block: int) -> bool:
        """Whether this queue entry is stale; it counts as read."""
        left = self._stale.get(block)
        if left is None:
            return False
        if left == 1:
            del self._stale[block]
        else:
            self._stale[block] = left - 1
        return True

    def _drop_keyed(self, blocks: list[int], keyed: int) -> list[int]:
        """Release one hold on each of the first ``keyed`` blocks; the blocks that nobody holds any more.

        Others hold the beginning of a prompt, if any of it; only twins can break that rule.
        """
        extra, shared = self._extra_holders, 0
        while shared < keyed and blocks[shared] in extra:
            self._drop_holder(blocks[shared])
            shared += 1
        alone = blocks[shared:keyed]
        if not extra.keys().isdisjoint(alone):
            for block in [block for block in alone if block in extra]:
                self._drop_holder(block)
                alone.remove(block)
        self._idle.update(alone)
        return alone + blocks[keyed:]

    def _drop_holder(self, block: int) -> None:
        held = self._extra_holders[block]
        if held == 1:
            del self._extra_holders[block]
        else:
            self._extra_holders[block] = held - 1

    def _forget(self, blocks: list[int]) -> None:
        """Drop the content of blocks that are about to be reused."""
        self._idle.difference_update(blocks)
        keys = list(map(self._keys.pop, blocks))
        if self._twins:
            for key, block in zip(keys, blocks, strict=True):
                self._forget_one(key, block)
        else:
            deque(map(self._index.pop, keys), maxlen=0)  # runs at C speed

    def _forget_one(self, key: int, block: int) -> None:
        twins = self._twins.get(key)
        if twins is None:
            del self._index[key]
            return
        if self._index[key] == block:
            self._index[key] = twins.pop(0)
        else:
            twins.remove(block)
        if not twins:
            del self._twins[key]

    def check(self, requests: Iterable[Request]) -> None:
        """Assert that every block is either free once or held, and every hold is counted. For tests."""
        held: dict[int, int] = {}
        for request in requests:
            assert len(set(request.blocks)) == len(request.blocks), (
                f"request {request.id} holds a block twice"
            )
            for block in request.blocks:
                held[block] = held.get(block, 0) + 1
        free = self._free_queue()
        assert len(set(free)) == len(free) == self.free_blocks, "a block is free twice or the count is off"
        assert held.keys().isdisjoint(free), "a block is both free and held"
        assert len(held) + len(free) == self.blocks, "a block is lost"
        for block, count in held.items():
            expected = 1 + self._extra_holders.get(block, 0)
            assert count == expected, f"block {block} has {count} holders, {expected} counted"
        for key, block in self._index.items():
            assert self._keys[block] == key, f"the index and the keys disagree about block {block}"
        assert self._keys or self.saved_blocks == sum(self._extra_holders.values()), (
            "the saved count is off"
        )
        keyed_free = [block for block in free if block in self._keys]
        assert sorted(self._idle) == sorted(keyed_free), "the idle set is off"

    def _free_queue(self) -> list[int]:
        stale = dict(self._stale)
        free = list(range(self._fresh, self.blocks))
        for block in self._queue[self._head :]:
            if stale.get(block):
                stale[block] -= 1
            else:
                free.append(block)
        return free


def private_content(request: Request, block_size: int) -> Content:
    """Names for a prompt that only the request itself and its samples have: its own private keys."""
    first = -1 - request.id * PRIVATE_BLOCKS
    return Content(tuple(range(first, first - -(-request.prompt_tokens // block_size), -1)), block_size)


def _named_tokens(request: Request, content: Content) -> int:
    """How many tokens of a request have names that others may share."""
    return len(content.ids) * content.tokens_per_id if content.names_answer else request.prompt_tokens


def _named_keys(content: Content, start: int, stop: int, block_size: int) -> list[int]:
    """Keys of full blocks ``[start, stop)``: equal for prompts that agree to a block's end, no others."""
    ids, span = content.ids, content.tokens_per_id
    if span % block_size:
        stride = span + block_size
        return [ids[((i + 1) * block_size - 1) // span] * stride + i % stride for i in range(start, stop)]
    per_id = span // block_size
    first = start // per_id
    names = ids[first : -(-stop // per_id)]
    keys: list[int] = []
    for name in names:
        keys.extend(range(name * per_id, (name + 1) * per_id))
    return keys[start - first * per_id : stop - first * per_id]
