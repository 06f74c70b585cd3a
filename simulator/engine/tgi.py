"""Token-quota batching: Hugging Face's text-generation-inference.

Source: policy notes section 1.11, read from backends/v3/src/{backend,queue}.rs. New prompts run in an
iteration of their own, in which the decodes of the running batch stand still; then both decode together.
Not modelled: prefix caching, speculation, and the joint iterations of later releases.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.scheduler import UNBOUNDED
from simulator.errors import RequestTooLarge


class Tgi:
    """First come, first served, with the KV of prompt and output limit reserved at admission: no evictions.

    New requests join a running batch of ``n`` only in groups of at least ``waiting_served_ratio * n``,
    or of any size once ``max_waiting_tokens`` tokens have passed since the last time some joined. After
    an interruption for prompts the batch always decodes once.
    """

    streams = True

    def __init__(
        self,
        kv: KVCache,
        *,
        max_num_seqs: int,
        max_model_len: int,
        max_batch_prefill_tokens: int = 4096,
        max_batch_total_tokens: int | None = None,
        waiting_served_ratio: float = 0.3,
        max_waiting_tokens: int = 20,
    ) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.max_batch_prefill_tokens = max_batch_prefill_tokens
        capacity = kv.blocks * kv.block_size
        self.max_batch_total_tokens = capacity if max_batch_total_tokens is None else max_batch_total_tokens
        self.waiting_served_ratio = waiting_served_ratio
        self.max_waiting_tokens = max_waiting_tokens
        self.group = DecodeGroup(kv.block_size)
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self._reserved_tokens = 0  # prompts and output limits of the running
        self._waited_tokens = 0  # decoded since somebody joined, the prompt's own first token included
        self._decode_next = False  # an interruption just ended

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
        limit, prompt, kv = request.limit_tokens, request.prompt_tokens, self.kv
        longest = min(self.max_model_len, self.max_batch_total_tokens)
        if limit > longest:
            key = "max_model_len" if longest == self.max_model_len else "max_batch_total_tokens"
            raise RequestTooLarge(f"{limit} tokens (prompt and output limit) exceed {key} {longest}")
        if prompt > self.max_batch_prefill_tokens:
            text = f"{prompt} prompt tokens exceed max_batch_prefill_tokens {self.max_batch_prefill_tokens}"
            raise RequestTooLarge(text)
        need = kv.blocks_for(limit - 1)
        if need > kv.blocks:
            raise RequestTooLarge(f"needs {need} KV blocks, the cache has {kv.blocks}")
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        if request in self.running:
            self._release(request)
        else:
            self.waiting.remove(request)

    def plan(self) -> Plan | None:
        if not self.busy:
            return None
        interrupted, self._decode_next = self._decode_next and bool(self.running), False
        joining = 0 if interrupted else self._joining()
        if joining:
            return self._join(joining)
        return Plan((), self.group, horizon=1 if interrupted else self._patience())

    def _patience(self) -> int:
        """How often to decode before a request that waits might join although nothing has changed."""
        left = self.max_waiting_tokens - self._waited_tokens
        return left if self.waiting and left > 0 else UNBOUNDED

    def _smallest_join(self) -> int:
        """How many requests an interruption of the running batch must be worth."""
        if self._waited_tokens >= self.max_waiting_tokens:
            return 0
        return int(len(self.running) * self.waiting_served_ratio)

    def _joining(self) -> int:
        """How many of the waiting, from the head of the queue, fit every limit; 0 if too few to interrupt.

        The prefill limit is rounded up to whole blocks. Looks at those that fit and one more.
        """
        smallest = self._smallest_join()
        if len(self.waiting) < smallest:
            return 0
        kv, seats = self.kv, self.max_num_seqs - len(self.running)
        prompt_budget = kv.blocks_for(self.max_batch_prefill_tokens) * kv.block_size
        token_budget = self.max_batch_total_tokens - self._reserved_tokens
        blocks = kv.free_blocks
        joining = 0
        for request in self.waiting:
            prompt_budget -= request.prompt_tokens
            token_budget -= request.limit_tokens
            blocks -= kv.blocks_for(request.limit_tokens - 1)
            if joining == seats or prompt_budget < 0 or token_budget < 0 or blocks < 0:
                break
            joining += 1
        return joining if joining >= smallest else 0

    def _join(self, count: int) -> Plan:
        """Compute the prompts of the first ``count`` waiting requests; the running batch stands still."""
        interrupts = bool(self.running)
        chunks = []
        for _ in range(count):
            request = self.waiting.popleft()
            request.blocks = self.kv.take(self.kv.blocks_for(request.limit_tokens - 1))
            self._reserved_tokens += request.limit_tokens
            self.running[request] = None
            chunks.append(PrefillChunk(request, 0, request.prompt_tokens, completes=True))
        self._decode_next = interrupts
        self._waited_tokens = 1
        return Plan(tuple(chunks), self.group, paused=interrupts)

    def repeat(self, plan: Plan, times: int) -> None:  # noqa: ARG002 the plan is the group's
        self.group.steps += times
        self._waited_tokens += times

    def commit(self, plan: Plan, stopped: Sequence[Request]) -> Sequence[Request]:
        if not plan.paused:
            self.group.steps += 1
        if not plan.prefills:
            self._waited_tokens += 1
        plan.end_prefills()
        for request in stopped:
            self._release(request)
        return stopped

    def _release(self, request: Request) -> None:
        del self.running[request]
        self.group.leave(request)
        self.kv.release(request)
        self._reserved_tokens -= request.limit_tokens
