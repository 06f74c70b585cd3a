"""What a workload is made of: one record per request, as the outside world knows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simulator.engine.request import Content


class Turn(NamedTuple):
    """A later request of a session: sent ``think_ns`` after the answer before it was complete.

    ``prompt_tokens`` count the whole prompt, what was said before included.
    """

    think_ns: int
    prompt_tokens: int
    output_tokens: int
    output_limit: int
    content: Content | None = None


class Arrival(NamedTuple):
    """One request as the client sends it, with the answer length that only the model will decide.

    ``output_tokens`` is never shown to a scheduler: the simulated executor owns it. ``later``: what the
    client sends once this is answered, turn by turn.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    output_limit: int
    content: Content | None = None
    priority: int = 0
    timeout_ns: int = 0  # the longest wait for its turn that the client asks for; 0: no wish
    later: tuple[Turn, ...] = ()


def think_ns(answered: Arrival) -> int:
    """How long after its answer a session goes on; a ns at least, so ties never depend on event order."""
    return max(answered.later[0].think_ns, 1)


def next_turn(arrival: Arrival, now_ns: int) -> Arrival:
    """The next request of a session, sent now."""
    turn, *later = arrival.later
    return Arrival(now_ns, *turn[1:], arrival.priority, arrival.timeout_ns, tuple(later))


def with_session(reason: str, arrival: Arrival | None) -> str:
    """Why a request was turned away, and how much of its session will not be sent therefore."""
    if arrival is None or not arrival.later:
        return reason
    return f"{reason}; its session ends {len(arrival.later)} turns early"


def whole_sessions(rows: Iterator[Arrival]) -> Iterator[Arrival]:
    """Every request of every session; later turns carry the time at which their session began."""
    for row in rows:
        yield row
        if row.later:
            for turn in row.later:
                yield Arrival(row.arrival_ns, *turn[1:], row.priority, row.timeout_ns)
