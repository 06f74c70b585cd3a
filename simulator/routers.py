"""Which replica gets a request.

Loads are those that a router knows of: what it sent and what has come back since, nothing of the inside
of a replica. Choosing costs O(log replicas) at most, so that a thousand replicas cost as little as two.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

from numpy.random import Generator

from simulator.engine.request import Content, Request

DRAWS = 1024  # random numbers drawn at once
STALE_PER_REPLICA = 4  # entries in a heap, before it is built afresh
# When the wanted replica is overloaded, and how much of a prompt must be known to want one: defaults of
# SGLang's model gateway (--balance-abs-threshold, --balance-rel-threshold, --cache-threshold).
OVERLOAD_REQUESTS = 64
OVERLOAD_RATIO = 1.5
KNOWN_SHARE = 0.3
REMEMBERED_IDS = 1 << 20


class Router(Protocol):
    """Chooses among the replicas that are open to new requests; it hears of all that changes its loads."""

    def open(self, replica: int) -> None:
        """A replica takes requests from now on."""
        ...

    def close(self, replica: int) -> None:
        """A replica takes no more requests; those that it has may still be answered."""
        ...

    def choose(self, request: Request) -> int:
        """The replica that gets a request, from now on part of its load. At least one must be open."""
        ...

    def left(self, request: Request, replica: int) -> None:
        """A request that was sent to a replica is answered, turned away or lost."""
        ...


class RoundRobin:
    """Each open replica in turn."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self._turn = 0

    def open(self, replica: int) -> None:
        insort(self._open, replica)

    def close(self, replica: int) -> None:
        self._open.remove(replica)

    def choose(self, request: Request) -> int:  # noqa: ARG002 whoever comes is next
        turn = self._turn
        self._turn = turn + 1
        return self._open[turn % len(self._open)]

    def left(self, request: Request, replica: int) -> None:
        """Nothing to keep count of."""


class LeastLoaded:
    """The open replica with the least load, the first of them on a tie.

    ``weigh`` says what a request adds to the load for as long as it is unanswered. The heap has an entry
    for every load that a replica had lately; those that are no longer true are dropped when they surface.
    """

    def __init__(self, weigh: Callable[[Request], int]) -> None:
        self.loads: dict[int, int] = {}
        self._weigh = weigh
        self._open: set[int] = set()
        self._heap: list[tuple[int, int]] = []

    def open(self, replica: int) -> None:
        self._open.add(replica)
        self.add(replica, 0)

    def close(self, replica: int) -> None:
        self._open.remove(replica)

    def is_open(self, replica: int) -> bool:
        return replica in self._open

    def choose(self, request: Request) -> int:
        replica = self.least()
        self.add(replica, self._weigh(request))
        return replica

    def left(self, request: Request, replica: int) -> None:
        self.add(replica, -self._weigh(request))

    def least(self) -> int:
        """The open replica with the least load."""
        heap, loads, open_now = self._heap, self.loads, self._open
        while True:
            load, replica = heap[0]
            if loads[replica] == load and replica in open_now:
                return replica
            heappop(heap)

    def add(self, replica: int, load: int) -> None:
        """Change a replica's load by so much."""
        loads, heap = self.loads, self._heap
        loads[replica] = load = loads.get(replica, 0) + load
        if len(heap) > STALE_PER_REPLICA * len(loads) + DRAWS:
            heap[:] = [(loads[other], other) for other in loads if other in self._open]
            heapify(heap)
        heappush(heap, (load, replica))


class PowerOfTwo:
    """Of two open replicas drawn at random the one with fewer unanswered requests, the first on a tie.

    Source: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (IEEE TPDS 2001).
    """

    def __init__(self, random: Generator) -> None:
        self._random = random
        self._draws: list[float] = []
        self._open: list[int] = []
        self._loads: dict[int, int] = {}

    def open(self, replica: int) -> None:
        insort(self._open, replica)
        self._loads.setdefault(replica, 0)

    def close(self, replica: int) -> None:
        self._open.remove(replica)

    def choose(self, request: Request) -> int:  # noqa: ARG002 requests weigh alike
        replica = self._open[0] if len(self._open) == 1 else self._less_loaded()
        self._loads[replica] += 1
        return replica

    def _less_loaded(self) -> int:
        if not self._draws:
            self._draws = self._random.random(DRAWS).tolist()
        others = len(self._open) - 1
        first, second = divmod(int(self._draws.pop() * others * (others + 1)), others)
        one, other = self._open[first], self._open[second + (second >= first)]
        return one if self._loads[one] <= self._loads[other] else other

    def left(self, request: Request, replica: int) -> None:  # noqa: ARG002 requests weigh alike
        self._loads[replica] -= 1


class PrefixAffinity:
    """The replica that last got most of the same prompt, unless it is overloaded.

    A prompt of which more than 0.3 is known goes where the longest known part of it last went. Any other
    goes to the replica with the fewest unanswered requests, and so does one whose replica has over 64 more
    than that one and over 1.5 times as many. Source: cache-aware routing of SGLang's model gateway with its
    default thresholds, which looks at the balance of all replicas, this at the two that matter.
    """

    def __init__(self) -> None:
        self._balance = LeastLoaded(one_request)
        self._homes: dict[int, int] = {}  # content id, which names all before it -> the replica it went to

    def open(self, replica: int) -> None:
        self._balance.open(replica)

    def close(self, replica: int) -> None:
        self._balance.close(replica)

    def left(self, request: Request, replica: int) -> None:
        self._balance.left(request, replica)

    def choose(self, request: Request) -> int:
        balance, content = self._balance, request.content
        if content is None or not content.ids:
            return balance.choose(request)
        known = self._known_ids(content)
        wanted = self._homes[content.ids[known - 1]] if known > KNOWN_SHARE * len(content.ids) else -1
        least = balance.least()
        replica = wanted if balance.is_open(wanted) and not self._overloaded(wanted, least) else least
        balance.add(replica, 1)
        self._remember(content, known, replica)
        return replica

    def _known_ids(self, content: Content) -> int:
        """Ids are prefix-cumulative: those before a known one are known."""
        homes, ids = self._homes, content.ids
        return bisect_left(ids, True, key=lambda content_id: content_id not in homes)

    def _overloaded(self, wanted: int, least: int) -> bool:
        load, best = self._balance.loads[wanted], self._balance.loads[least]
        return load - best > OVERLOAD_REQUESTS and load > OVERLOAD_RATIO * best

    def _remember(self, content: Content, known: int, replica: int) -> None:
        homes = self._homes
        start = known if known and homes[content.ids[known - 1]] == replica else 0
        homes.update(dict.fromkeys(content.ids[start:], replica))
        while len(homes) > REMEMBERED_IDS:
            del homes[next(iter(homes))]


def one_request(request: Request) -> int:  # noqa: ARG001 whatever its size
    """Every request weighs the same."""
    return 1


def prompt_tokens(request: Request) -> int:
    """A request weighs what is known of its work: its prompt."""
    return request.prompt_tokens


ROUTERS: dict[str, Callable[[Generator], Router]] = {
    "round-robin": lambda _: RoundRobin(),
    "least-outstanding": lambda _: LeastLoaded(one_request),
    "power-of-two": PowerOfTwo,
    "join-shortest-queue": lambda _: LeastLoaded(prompt_tokens),
    "prefix-affinity": lambda _: PrefixAffinity(),
}
