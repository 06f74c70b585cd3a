"""What every batching policy offers to whoever lets time pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from simulator.engine.plan import Plan
from simulator.engine.request import Request

UNBOUNDED = 1 << 60  # a horizon that only a stop, an arrival or a cancellation ends


class Scheduler(Protocol):
    """Decides, once per iteration, what the model computes next. It knows no clock and no answer lengths.

    ``streams``: tokens leave when they are generated; otherwise a whole answer leaves at once.
    """

    streams: bool

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        ...

    @property
    def waiting_requests(self) -> int:
        """Requests that hold no seat yet."""
        ...

    @property
    def used_blocks(self) -> int:
        """KV blocks held."""
        ...

    def add(self, request: Request) -> None:
        """Take in a request; `RequestRefused` if it could never run or the queue is full."""
        ...

    def cancel(self, request: Request) -> None:
        """Forget a request, between ``commit`` and the next ``plan``, and free all it holds."""
        ...

    def plan(self) -> Plan | None:
        """Begin an iteration: choose its work and give it KV blocks. None when there is nothing to do."""
        ...

    def repeat(self, plan: Plan, times: int) -> None:
        """Let ``times`` iterations of a plan end with nobody stopping, and begin the plan again after each.

        Equal to ``times`` rounds of ``commit(plan, ())`` and ``plan()``, for ``times < plan.horizon``.
        """
        ...

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        """End an iteration in which ``stopped`` produced their last token; the answers now complete."""
        ...


@runtime_checkable
class Patient(Protocol):
    """What a scheduler offers besides where its policy names a time: a window, a timeout.

    It still reads no clock: whoever lets time pass tells it the time before every ``plan``. Times are
    those of `Request.arrival_ns`. See docs/decisions/0005-time-in-policies.md.
    """

    @property
    def wake_at_ns(self) -> int | None:
        """When to ask for a plan again, after ``plan`` gave none; None: not before somebody arrives."""
        ...

    def tell(self, now_ns: int) -> None:
        """The time, before ``plan``."""
        ...

    def take_expired(self) -> Sequence[tuple[Request, str]]:
        """Requests that ``plan`` gave up since the last call, each with the reason; they are forgotten."""
        ...
