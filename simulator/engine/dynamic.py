"""Padded batches formed while a window is open: Triton's dynamic batcher.

Source: policy notes section 1.5; Triton's ``DynamicBatchScheduler`` and ``RateLimiter``, for requests of
batch size 1 and one model instance, in which ``preserve_ordering`` changes nothing. Left out is the
merging of two formed batches at the moment an instance takes the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from simulator.engine.kv_cache import KVCache
from simulator.engine.padded_batch import PaddedBatch, extent_of
from simulator.engine.plan import Plan
from simulator.engine.queue_policy import Level, QueuePolicy
from simulator.engine.request import Request
from simulator.engine.single import refuse_oversized

FORMED_AHEAD = 2  # batches that may stand ready while the device is busy, Triton's cap for one instance


class Formed:
    """A batch that stands ready; until it is taken more may join, unless it is ``saturated``."""

    def __init__(self) -> None:
        self.rows: list[Request] = []
        self.saturated = False


class Walk(NamedTuple):
    """What a walk along the queue found: who could join, how many make the best preferred size."""

    pending: Sequence[Request]
    best: int
    ends: bool  # the next in the queue cannot join


class Dynamic:
    """Waits up to ``max_queue_delay_ns`` for a batch of a preferred size, then sends what there is.

    ``preferred_batch_sizes``: without any, ``max_num_seqs`` is the one. ``priority_levels``: 0 is one
    queue; otherwise a request's priority names its level, 1 goes first, and 0 or an unknown one stands
    for ``default_priority_level``. ``queue_policies``: by level, ``queue_policy`` for the others.

    With one unlimited queue batches are formed ahead and topped up while the device is busy; with levels,
    timeouts or a bounded queue only when it is free, so timeouts are noticed only then, as in Triton.
    A batch that would not fit the cache, padded, counts as full.

    A look at the queue walks along at most one batch. Looks that Triton would have taken while the device
    was busy are caught up with in order, from the times of arrival; nothing has to wake the scheduler for
    them, and their outcome does not depend on when it is asked.
    """

    def __init__(
        self,
        kv: KVCache,
        *,
        max_num_seqs: int,
        max_model_len: int,
        preferred_batch_sizes: Sequence[int] = (),
        max_queue_delay_ns: int = 0,
        priority_levels: int = 0,
        default_priority_level: int = 1,
        queue_policy: QueuePolicy | None = None,
        queue_policies: Mapping[int, QueuePolicy] | None = None,
        streaming: bool = False,
    ) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.preferred = frozenset(preferred_batch_sizes or (max_num_seqs,))
        self.largest_preferred = max(self.preferred)
        self.max_queue_delay_ns = max_queue_delay_ns
        self.default_priority_level = default_priority_level
        self.streams = streaming
        common, own = queue_policy or QueuePolicy(), queue_policies or {}
        self.levels = [Level(own.get(level, common)) for level in range(1, priority_levels + 1)] or [
            Level(common)
        ]
        self.forms_ahead = not priority_levels and common.limits_nothing
        self.formed: deque[Formed] = deque()
        self.batch = PaddedBatch(kv, streams=streaming)
        self.group = self.batch.group
        self.wake_at_ns: int | None = None
        self._now_ns = 0
        self._looked_ns = 0  # the queue has been looked at until then, as far as the device was busy
        self._serving = False  # until plan() learns that the batch has ended
        self._rejected: list[tuple[Request, str]] = []

    @property
    def busy(self) -> bool:
        return bool(self.batch or self.waiting_requests)

    @property
    def waiting_requests(self) -> int:
        return sum(map(len, self.levels)) + sum(len(formed.rows) for formed in self.formed)

    @property
    def used_blocks(self) -> int:
        return self.kv.used_blocks

    def tell(self, now_ns: int) -> None:
        self._now_ns = now_ns

    def take_expired(self) -> Sequence[tuple[Request, str]]:
        rejected, self._rejected = self._rejected, []
        return rejected

    def add(self, request: Request) -> None:
        refuse_oversized(request, self.kv, self.max_model_len)
        if self._serving and self.forms_ahead:
            self._catch_up(request.arrival_ns)
        self._level(request).append(request)

    def cancel(self, request: Request) -> None:
        """A waiting request leaves; a row of the running batch keeps its seat, as stopped rows do."""
        if request in self.batch.rows:
            self.batch.cancel(request)
            return
        for formed in self.formed:
            if request in formed.rows:
                formed.rows.remove(request)
                if not formed.rows:
                    self.formed.remove(formed)
                return
        self._level(request).remove(request)

    def plan(self) -> Plan | None:
        if self.batch:
            return self.batch.plan()
        self._fetch_ready()
        if not self.formed:
            return None
        rows = self.formed.popleft().rows
        extent = extent_of(rows)
        plan = self.batch.start(rows, self.kv.blocks_for(extent.width + extent.answer))
        self._serving, self._looked_ns = True, self._now_ns
        if self.forms_ahead:
            self._look_on(self._now_ns)
        return plan

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the batch's
        self.batch.repeat(times)

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        return self.batch.commit(plan, stopped)

    def _level(self, request: Request) -> Level:
        wanted = request.priority
        if len(self.levels) == 1:
            return self.levels[0]
        known = 0 < wanted <= len(self.levels)
        return self.levels[(wanted if known else self.default_priority_level) - 1]

    def _fetch_ready(self) -> None:
        """The device is free: see what has been formed meanwhile, or form a batch now."""
        now = self._now_ns
        if self._serving and self.forms_ahead:
            self._catch_up(now)
        self._serving = False
        if self.formed:
            self._look_on(now)
        else:
            self._look(now)

    def _catch_up(self, until_ns: int) -> None:
        """Take the looks of a busy time before ``until_ns``: at each arrival and each end of a window."""
        while self._looked_ns < until_ns:
            self._look_on(self._looked_ns)
            wake = self.wake_at_ns
            self._looked_ns = until_ns if wake is None else min(wake, until_ns)

    def _look_on(self, now_ns: int) -> None:
        """Look at the queue until nothing more can be done at this moment."""
        while self._look(now_ns):
            pass

    def _look(self, now_ns: int) -> bool:
        """Move requests into the batch being formed, or fix when to look again; whether it moved any."""
        self.wake_at_ns = None
        if len(self.formed) >= FORMED_AHEAD:
            return False
        tops_up = bool(self.formed) and not self.formed[-1].saturated
        forming = self.formed[-1] if tops_up else Formed()
        walk = self._walk(forming, now_ns)
        count = self._sendable(forming, walk, now_ns)
        for _ in range(count):
            forming.rows.append(next(level for level in self.levels if level).popleft())
        if count and not tops_up:
            self.formed.append(forming)
        return bool(count) or (tops_up and forming.saturated)

    def _walk(self, forming: Formed, now_ns: int) -> Walk:
        pending: list[Request] = []
        size, best, extent = len(forming.rows), 0, extent_of(forming.rows)
        for request in self._queue(now_ns):
            grown = extent.plus(request)
            if size and size + 1 > self.largest_preferred and not best:
                best, forming.saturated = len(pending), True
            if size and not (size < self.max_num_seqs and grown.fits(self.kv)):
                forming.saturated = forming.saturated or not pending
                return Walk(pending, best, ends=True)
            pending.append(request)
            size, extent = size + 1, grown
            if size in self.preferred:
                best = len(pending)
        return Walk(pending, best, ends=False)

    def _queue(self, now_ns: int) -> Iterator[Request]:
        for level in self.levels:
            yield from level.walk(now_ns, self._rejected)

    def _sendable(self, forming: Formed, walk: Walk, now_ns: int) -> int:
        """How many of the pending requests go now. The end of the window ignores preferred sizes."""
        pending, best, _ = walk
        if not pending:
            return 0
        delay, oldest = self.max_queue_delay_ns, min(request.arrival_ns for request in pending)
        exceeded = 0 < delay <= now_ns - oldest
        if best and not exceeded:
            forming.saturated = forming.saturated or not delay
            return best
        size = len(forming.rows)
        if walk.ends or size + len(pending) >= self.largest_preferred:
            forming.saturated = True
            return len(pending)
        if exceeded or not delay or (size and not forming.saturated and size not in self.preferred):
            return len(pending)
        late_ns = (self._level(request).late_from_ns(request) for request in pending)
        self.wake_at_ns = min([oldest + delay, *(time for time in late_ns if now_ns < time)])
        return 0
