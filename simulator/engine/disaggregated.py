"""Two halves of an engine: one computes prompts, one generates answers from KV computed elsewhere.

Source: DistServe (OSDI 2024) as read in its code, policy notes section 1.15. KV is pulled: it stays on the
side that computed it, and occupies its blocks, until the other side has room and has fetched it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from simulator.engine.plan import BlockCopy, Plan
from simulator.engine.request import Request
from simulator.engine.vllm_v1 import VllmV1


class PromptSide:
    """Computes prompts up to their first token. Their KV blocks stay taken until `release`.

    It takes requests with an output limit of one token.
    """

    def __init__(self, engine: VllmV1) -> None:
        self.engine = engine
        self.kv = engine.kv
        self.streams = engine.streams
        self.kept: dict[Request, None] = {}

    @property
    def busy(self) -> bool:
        return self.engine.busy or bool(self.kept)

    @property
    def waiting_requests(self) -> int:
        return self.engine.waiting_requests

    @property
    def used_blocks(self) -> int:
        return self.engine.used_blocks

    def add(self, request: Request) -> None:
        self.engine.add(request)

    def cancel(self, request: Request) -> None:
        if request in self.kept:
            self.release(request)
        else:
            self.engine.cancel(request)

    def plan(self) -> Plan | None:
        return self.engine.plan()

    def repeat(self, plan: Plan, times: int) -> None:
        self.engine.repeat(plan, times)

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        held = [(request, request.blocks) for request in stopped]
        for request in stopped:
            request.blocks = []  # the engine has nothing to free: others may share these
        completed = self.engine.commit(plan, stopped)
        for request, blocks in held:
            request.blocks = blocks
            self.kept[request] = None
        return completed

    def release(self, request: Request) -> None:
        """A request's KV was fetched, or nobody needs it."""
        del self.kept[request]
        self.kv.release(request)


class AnswerSide:
    """Generates answers of requests whose prompts were computed, and first tokens generated, elsewhere.

    A request is accepted in order of arrival when nobody evicted waits and a seat and blocks for its prompt
    are free. These are taken and ``fetch`` is called; when its KV is here (`arrived`) it decodes from the
    next iteration on. Who is evicted computes all its tokens again on this side.
    """

    def __init__(self, engine: VllmV1, fetch: Callable[[Request], None]) -> None:
        self.engine = engine
        self.kv = engine.kv
        self.streams = engine.streams
        self._fetch = fetch
        self._offered: deque[Request] = deque()
        self._fetching: dict[Request, None] = {}
        self._here: list[Request] = []

    @property
    def busy(self) -> bool:
        return bool(self._offered or self._fetching or self._here) or self.engine.busy

    @property
    def waiting_requests(self) -> int:
        elsewhere = len(self._offered) + len(self._fetching) + len(self._here)
        return elsewhere + self.engine.waiting_requests

    @property
    def used_blocks(self) -> int:
        return self.engine.used_blocks

    def add(self, request: Request) -> None:
        self.engine.refuse_hopeless(request)
        self._offered.append(request)

    def cancel(self, request: Request) -> None:
        if request in self._offered:
            self._offered.remove(request)
        elif request in self._fetching or request in self._here:
            self._fetching.pop(request, None)
            self._here = [other for other in self._here if other is not request]
            self.kv.release(request)
        else:
            self.engine.cancel(request)

    def arrived(self, request: Request) -> None:
        """A request's KV is in its blocks."""
        del self._fetching[request]
        self._here.append(request)

    def plan(self) -> Plan | None:
        here, self._here = self._here, []
        for request in here:
            self.engine.resume(request)
        self._accept()
        plan = self.engine.plan()
        if plan is None or not here:
            return plan
        return plan._replace(swapped_in=tuple(BlockCopy(request, 0) for request in here), horizon=1)

    def _accept(self) -> None:
        kv, engine, offered = self.kv, self.engine, self._offered
        while offered and not engine.waiting_requests:
            request = offered[0]
            need = kv.blocks_for(request.prompt_tokens)
            if need > kv.free_blocks or len(engine.running) + len(self._fetching) >= engine.max_num_seqs:
                return
            offered.popleft()
            request.blocks = kv.take(need)
            self._fetching[request] = None
            self._fetch(request)

    def repeat(self, plan: Plan, times: int) -> None:
        self.engine.repeat(plan, times)

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        return self.engine.commit(plan, stopped)
