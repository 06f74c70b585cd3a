"""Contiguous KV memory in chunks of a power of two.

Source: Knuth, The Art of Computer Programming, volume 1, section 2.5 (the buddy system), which the vLLM
paper assumes for Orca. A pool that is no power of two is cut into descending powers of two, so each
chunk starts at a multiple of its size and a contiguous chunk is also a run of whole KV blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from simulator.engine.request import Request


class BuddyAllocator:
    """``blocks`` KV blocks of ``block_size`` tokens, given out as aligned runs of 1, 2, 4, ... blocks."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.free_blocks = blocks
        orders = blocks.bit_length()
        self._heaps: list[list[int]] = [
            [] for _ in range(orders)
        ]  # starts by order, lowest first; lazily cleaned
        self._free: list[set[int]] = [set() for _ in range(orders)]
        self._roots: set[tuple[int, int]] = set()  # the chunks that the pool was first cut into
        self._cut_pool()

    def _cut_pool(self) -> None:
        start = 0
        for order in reversed(range(len(self._heaps))):
            if self.blocks >> order & 1:
                self._roots.add((start, order))
                self._put(start, order)
                start += 1 << order

    @property
    def used_blocks(self) -> int:
        """Blocks in reserved chunks, the rounding to powers of two included."""
        return self.blocks - self.free_blocks

    @property
    def largest_chunk(self) -> int:
        """Blocks of the largest chunk of an empty pool."""
        return 1 << (self.blocks.bit_length() - 1)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def take(self, count: int) -> list[int] | None:
        """A contiguous chunk of at least ``count`` blocks, or None where no chunk is free."""
        wanted = (count - 1).bit_length()
        for order in range(wanted, len(self._free)):
            if self._free[order]:
                return self._split(self._pop(order), order, wanted)
        return None

    def release(self, request: Request) -> None:
        """Free a request's chunk and join it with its buddy as far as possible."""
        blocks = request.blocks
        start, order = blocks[0], (len(blocks) - 1).bit_length()
        self.free_blocks += len(blocks)
        while (start, order) not in self._roots and (start ^ (1 << order)) in self._free[order]:
            self._free[order].discard(start ^ (1 << order))
            start &= ~(1 << order)
            order += 1
        self._put(start, order)
        request.blocks = []

    def _split(self, start: int, order: int, wanted: int) -> list[int]:
        while order > wanted:
            order -= 1
            self._put(start + (1 << order), order)
        size = 1 << wanted
        self.free_blocks -= size
        return list(range(start, start + size))

    def _put(self, start: int, order: int) -> None:
        self._free[order].add(start)
        heappush(self._heaps[order], start)

    def _pop(self, order: int) -> int:
        """The lowest free chunk of an order: a fixed choice, so that runs repeat exactly."""
        while True:
            start = heappop(self._heaps[order])
            if start in self._free[order]:
                self._free[order].discard(start)
                return start

    def check(self, requests: Iterable[Request]) -> None:
        """Assert that held and free chunks tile the pool. For tests."""
        held = [block for request in requests for block in request.blocks]
        free = [
            block
            for order, starts in enumerate(self._free)
            for start in sorted(starts)
            for block in range(start, start + (1 << order))
        ]
        assert sorted(held + free) == list(range(self.blocks)), "a block is lost, doubled or foreign"
        assert len(free) == self.free_blocks
