"""One priority level of Triton's dynamic batcher: its queue, its timeouts, its length.

Source: policy notes section 1.5; Triton's ``ModelQueuePolicy`` and ``PriorityQueue``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from simulator.engine.request import Request
from simulator.errors import QueueFull

NS_PER_MS = 1e6
NEVER_NS = 1 << 62  # later than any run ends


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What a level does with those who wait too long or find too many waiting; 0 is no limit.

    ``delays``: after its timeout a request is served behind all others of its level, else it is rejected.
    """

    timeout_ns: int = 0
    delays: bool = False
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    @property
    def limits_nothing(self) -> bool:
        """Whether requests can wait for ever, in any number."""
        return not (self.timeout_ns or self.allow_timeout_override or self.max_queue_size)

    def timeout_of(self, request: Request) -> int:
        """How long a request may wait, ns; 0: for ever.

        A request may ask for less than the default, never for more; where there is no default its wish
        counts for nothing, because Triton compares it with 0.
        """
        if self.allow_timeout_override and 0 < request.timeout_ns < self.timeout_ns:
            return request.timeout_ns
        return self.timeout_ns


class Level:
    """The requests of one priority: first those in time, then those that were delayed, each in order."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.in_time: deque[Request] = deque()
        self.delayed: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self.in_time) + len(self.delayed)

    def append(self, request: Request) -> None:
        """Queue up; `QueueFull` where the level holds as many as it may."""
        most = self.policy.max_queue_size
        if most and len(self) >= most:
            raise QueueFull(f"the queue holds max_queue_size ({most}) requests")
        self.in_time.append(request)

    def popleft(self) -> Request:
        return (self.in_time or self.delayed).popleft()

    def remove(self, request: Request) -> None:
        (self.in_time if request in self.in_time else self.delayed).remove(request)

    def walk(self, now_ns: int, rejected: list[tuple[Request, str]]) -> Iterator[Request]:
        """The requests in the order they are served. Those that are met too late leave or fall behind."""
        policy, in_time, met = self.policy, self.in_time, 0
        while met < len(in_time):
            request = in_time[met]
            if now_ns < self.late_from_ns(request):
                yield request
                met += 1
                continue
            del in_time[met]
            if policy.delays:
                self.delayed.append(request)
            else:
                timeout_ms = policy.timeout_of(request) / NS_PER_MS
                rejected.append((request, f"waited longer than its timeout of {timeout_ms:g} ms"))
        yield from self.delayed

    def late_from_ns(self, request: Request) -> int:
        """The first moment at which a request has waited longer than it may."""
        timeout_ns = self.policy.timeout_of(request)
        return request.arrival_ns + timeout_ns + 1 if timeout_ns else NEVER_NS
