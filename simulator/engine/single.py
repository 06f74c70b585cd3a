"""One request at a time, from its first prefill token to its last. Source: policy notes section 1.1."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.scheduler import UNBOUNDED
from simulator.errors import RequestTooLarge


class Single:
    """First come, first served, alone on the device; room for prompt and output limit is held all along."""

    streams = True

    def __init__(self, kv: KVCache, *, max_model_len: int) -> None:
        self.kv = kv
        self.max_model_len = max_model_len
        self.group = DecodeGroup(kv.block_size)
        self.waiting: deque[Request] = deque()
        self.running: Request | None = None

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def waiting_requests(self) -> int:
        return len(self.waiting)

    @property
    def used_blocks(self) -> int:
        return self.kv.used_blocks

    def add(self, request: Request) -> None:
        refuse_oversized(request, self.kv, self.max_model_len)
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        if request is self.running:
            self._release(request)
        else:
            self.waiting.remove(request)

    def plan(self) -> Plan | None:
        if self.running is not None:
            return Plan((), self.group, horizon=UNBOUNDED)
        if not self.waiting:
            return None
        self.running = request = self.waiting.popleft()
        request.blocks = self.kv.take(self.kv.blocks_for(request.limit_tokens))
        return Plan((PrefillChunk(request, 0, request.prompt_tokens, completes=True),), self.group)

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the group's
        self.group.steps += times

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        self.group.steps += 1
        plan.end_prefills()
        for request in stopped:
            self._release(request)
        return stopped

    def _release(self, request: Request) -> None:
        self.group.leave(request)
        self.kv.release(request)
        self.running = None


def refuse_oversized(request: Request, kv: KVCache, max_model_len: int) -> None:
    """Raise `RequestTooLarge` where prompt and output limit exceed the model's length or the cache."""
    refuse_beyond_model(request, max_model_len)
    limit = request.limit_tokens
    if kv.blocks_for(limit) > kv.blocks:
        raise RequestTooLarge(f"needs {kv.blocks_for(limit)} KV blocks, the cache has {kv.blocks}")


def refuse_beyond_model(request: Request, max_model_len: int) -> None:
    """Raise `RequestTooLarge` where prompt and output limit exceed the model's length."""
    limit = request.limit_tokens
    if limit > max_model_len:
        raise RequestTooLarge(
            f"{limit} tokens (prompt and output limit) exceed max_model_len {max_model_len}"
        )
