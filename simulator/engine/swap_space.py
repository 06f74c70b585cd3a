"""Host memory for the KV blocks of requests that made way: where swapping keeps them."""

from __future__ import annotations

from simulator.engine.request import Request


class SwapSpace:
    """A bounded number of KV blocks outside the GPU, held by whole requests, oldest eviction first.

    Source: vLLM's ``swap_space`` (policy notes section 1.8). The real engine aborts when it runs out;
    here `store` refuses, and the caller evicts by recomputation instead.
    """

    __slots__ = ("blocks", "free_blocks", "held")

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free_blocks = blocks
        self.held: dict[Request, int] = {}  # swapped-out request -> its blocks here

    def store(self, request: Request, blocks: int, *, must: bool = False) -> bool:
        """Take a copy of a request's blocks, if there is room for all of them, or if it must."""
        if blocks > self.free_blocks and not must:
            return False
        self.free_blocks -= blocks
        self.held[request] = blocks
        return True

    def drop(self, request: Request) -> int:
        """Give up a request's copy; how many blocks it was."""
        blocks = self.held.pop(request)
        self.free_blocks += blocks
        return blocks
