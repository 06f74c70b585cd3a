"""The KV cache against a naive model of the same rules, and the stories that explain it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from simulator.engine.kv_cache import KVCache
from simulator.engine.request import Content, Request

BLOCKS, SIZE = 12, 2


@dataclass
class Naive:
    """Every block as an object in one ordered list: free first to last, holders counted one by one."""

    free: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=lambda: list(range(BLOCKS)))  # never used
    holders: dict[int, int] = field(default_factory=dict)
    content: dict[int, tuple[object, ...]] = field(default_factory=dict)  # block -> the prefix it ends
    order: list[int] = field(default_factory=list)  # blocks in order of publication

    def find(self, prefix: tuple[object, ...]) -> int | None:
        return next((block for block in self.order if self.content.get(block) == prefix), None)


def words(request: Request) -> list[object]:
    """What each token of a request says."""
    content = request.content
    assert content is not None
    return [content.ids[i // content.tokens_per_id] for i in range(request.prompt_tokens)]


class CacheMachine(RuleBasedStateMachine):
    """Random admissions, growth, publication and release; both sides must agree on every visible fact."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.cache = KVCache(BLOCKS, SIZE, prefix_caching=True)
        self.naive = Naive()
        self.live: list[Request] = []
        self.names: dict[Request, list[int]] = {}  # the naive model's blocks
        self.offered = 0

    def prefixes(self, request: Request) -> list[tuple[object, ...]]:
        said = words(request)
        return [tuple(said[: (i + 1) * SIZE]) for i in range(request.prompt_tokens // SIZE)]

    @rule(target=running, prompt=st.integers(2, 14), branch=st.integers(0, 7), kind=st.integers(0, 1))
    def admit(self, prompt: int, branch: int, kind: int) -> Request:
        ids = tuple(
            100 * kind + i + (10 * (branch + 1) if i >= branch else 0) for i in range(-(-prompt // SIZE))
        )
        request = Request(self.offered, 0, prompt, 1, Content(ids, SIZE))
        self.offered += 1
        hits = self.cache.lookup(request)
        expected = []
        for prefix in self.prefixes(request)[: (prompt - 1) // SIZE]:
            block = self.naive.find(prefix)
            if block is None:
                break
            expected.append(block)
        assert hits == expected
        idle = sum(block in self.naive.free for block in expected)
        assert self.cache.idle(hits) == idle
        need = -(-prompt // SIZE) - len(hits)
        if need + idle > self.cache.free_blocks:
            return request
        self.cache.share(request, hits)
        request.blocks += self.cache.take(need)
        for block in expected:
            if block in self.naive.free:
                self.naive.free.remove(block)
            self.naive.holders[block] = self.naive.holders.get(block, 0) + 1
        self.names[request] = expected + self.naive_take(need)
        self.live.append(request)
        return request

    def naive_take(self, count: int) -> list[int]:
        """Never used ones, then the front; while no block holds anything to find, the end before both."""
        free, fresh = self.naive.free, self.naive.fresh
        taken: list[int] = []
        while len(taken) < count and fresh and self.naive.content:
            taken.append(fresh.pop(0))
        if self.naive.content:
            while len(taken) < count:
                taken.append(free.pop(0))
        else:
            while len(taken) < count and free:
                taken.insert(0, free.pop())
            while len(taken) < count:
                taken.append(fresh.pop(0))
        for block in taken:
            self.naive.content.pop(block, None)
            if block in self.naive.order:
                self.naive.order.remove(block)
            self.naive.holders[block] = 1
        return taken

    @rule(request=running, tokens=st.integers(1, 14))
    def publish(self, request: Request, tokens: int) -> None:
        if request not in self.live:
            return
        tokens = min(tokens, request.prompt_tokens)
        self.cache.publish(request, tokens)
        full = tokens // SIZE
        for block, prefix in list(zip(self.names[request], self.prefixes(request), strict=False))[:full]:
            if block not in self.naive.content:
                self.naive.content[block] = prefix
                self.naive.order.append(block)

    @rule(request=consumes(running), computed=st.integers(0, 14))
    def release(self, request: Request, computed: int) -> None:
        if request not in self.live:
            return
        request.computed_tokens = computed = min(computed, request.prompt_tokens)
        blocks = self.names.pop(request)
        full = sum(i < computed // SIZE or block in self.naive.content for i, block in enumerate(blocks))
        self.cache.release(request)
        if not self.naive.content:
            full = len(blocks)
            blocks.reverse()
        self.naive.free[:0] = blocks[full:]
        for block in reversed(blocks):
            self.naive.holders[block] -= 1
            if not self.naive.holders[block]:
                del self.naive.holders[block]
                if block not in blocks[full:]:
                    self.naive.free.append(block)
        self.live.remove(request)

    @invariant()
    def agree(self) -> None:
        self.cache.check(self.live)
        assert self.cache.free_blocks == len(self.naive.free) + len(self.naive.fresh)
        for request in self.live:
            assert request.blocks == self.names[request]


CacheMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestCacheAgainstNaiveModel = CacheMachine.TestCase


def request_of(identity: int, prompt: int, *ids: int, span: int = 4) -> Request:
    return Request(identity, 0, prompt, 8, Content(ids, span))


def admit(cache: KVCache, request: Request) -> int:
    """Give a request what it shares and what it needs; how many blocks it shares."""
    hits = cache.lookup(request)
    cache.share(request, hits)
    request.blocks += cache.take(cache.blocks_for(request.prompt_tokens) - len(hits))
    cache.publish(request, request.prompt_tokens)
    return len(hits)


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    cache = KVCache(8, 4, prefix_caching=True)
    assert admit(cache, request_of(0, 8, 1, 2)) == 0
    assert admit(cache, request_of(1, 8, 1, 2)) == 1
    assert admit(cache, request_of(2, 9, 1, 2, 3)) == 2


def test_the_tail_of_a_released_prompt_is_reused_first() -> None:
    cache = KVCache(3, 4, prefix_caching=True)
    first = request_of(0, 12, 1, 2, 3)
    admit(cache, first)
    cache.release(first)
    cache.take(1)
    assert len(cache.lookup(request_of(1, 12, 1, 2, 3))) == 2


def test_blocks_that_hold_nothing_to_find_are_reused_before_any_content() -> None:
    cache = KVCache(4, 4, prefix_caching=True)
    first = request_of(0, 8, 1, 2)
    admit(cache, first)
    cache.release(first)
    unfinished = Request(1, 0, 7, 8)
    unfinished.blocks = cache.take(2)
    unfinished.computed_tokens = 6
    cache.release(unfinished)
    cache.take(1)
    assert len(cache.lookup(request_of(2, 9, 1, 2, 3))) == 2


def test_content_blocks_larger_than_kv_blocks_are_shared_kv_block_by_kv_block() -> None:
    cache = KVCache(64, 16, prefix_caching=True)
    admit(cache, request_of(0, 600, 7, 8, span=512))  # 37 full KV blocks: 32 in id 7, 5 in id 8
    same_start = request_of(1, 1024, 7, 9, span=512)
    assert len(cache.lookup(same_start)) == 32


def test_kv_blocks_that_straddle_two_ids_need_both_to_agree() -> None:
    cache = KVCache(64, 3, prefix_caching=True)
    admit(cache, request_of(0, 12, 7, 8, 9, span=4))
    assert len(cache.lookup(request_of(1, 12, 7, 80, 90, span=4))) == 1
    assert len(cache.lookup(request_of(2, 12, 7, 8, 90, span=4))) == 2


def test_two_requests_computing_one_prefix_at_once_are_both_kept() -> None:
    cache = KVCache(8, 4, prefix_caching=True)
    twins = [request_of(i, 8, 1, 2) for i in range(2)]
    for twin in twins:
        twin.blocks = cache.take(2)
    for twin in twins:
        cache.publish(twin, 8)
    assert cache.lookup(request_of(2, 9, 1, 2, 3)) == twins[0].blocks
    second = list(twins[1].blocks)
    cache.release(twins[0])
    cache.take(6)
    assert cache.lookup(request_of(3, 9, 1, 2, 3)) == second
    cache.check([twins[1], *_holding(cache, second)])


def _holding(cache: KVCache, others: list[int]) -> list[Request]:
    holder = request_of(9, 1, 1)
    holder.blocks = [block for block in range(cache.blocks) if block not in others]
    return [holder]
