"""Which replica gets a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from simulator.engine.request import Request


class Load(Protocol):
    """What a router may see of a replica."""

    @property
    def outstanding(self) -> int:
        """Requests sent to the replica and not yet answered, waiting and running alike."""
        ...


Router = Callable[[Request, Sequence[Load]], int]


def round_robin() -> Router:
    """Each replica in turn."""
    turn = count()
    return lambda _, replicas: next(turn) % len(replicas)


def least_outstanding() -> Router:
    """The replica with the fewest unanswered requests; the first of them on a tie."""

    def choose(_: Request, replicas: Sequence[Load]) -> int:
        loads = [replica.outstanding for replica in replicas]
        return loads.index(min(loads))

    return choose


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": round_robin,
    "least-outstanding": least_outstanding,
}
