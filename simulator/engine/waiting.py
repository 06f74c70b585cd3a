"""A queue by urgency with the deque's verbs, for policies that offer priorities."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from simulator.engine.request import Request


class PriorityQueue:
    """Lowest priority value first, then earliest arrival, then lowest id."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __getitem__(self, index: int) -> Request:
        return self._heap[index][3]

    def append(self, request: Request) -> None:
        heappush(self._heap, (request.priority, request.arrival_ns, request.id, request))

    def appendleft(self, request: Request) -> None:
        """A preempted request takes its place by urgency, not the front."""
        self.append(request)

    def popleft(self) -> Request:
        return heappop(self._heap)[3]

    def remove(self, request: Request) -> None:
        self._heap = [entry for entry in self._heap if entry[3] is not request]
        heapify(self._heap)
