"""Whole iterations for timing: plans of chosen shapes, through the live executor and the live driver."""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep

import numpy as np

from backend.clock import WallClock
from backend.driver import Driver
from backend.prompts import Prompt
from backend.workbench import REPEATS, SHORT_NS, Took, Workbench, middle
from simulator.engine.decode_group import DecodeGroup
from simulator.engine.kv_cache import KVCache
from simulator.engine.plan import Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.vllm_v1 import VllmV1
from simulator.recorder import IterationLog, RequestLog
from simulator.workloads.arrival import Arrival

ANSWER_TOKENS = 1 << 20  # nobody stops while the clock runs
ROOM_TOKENS = REPEATS + 2  # that a timed row may add
PAUSE_S = 0.05  # before prompts, which a live engine begins when it was idle or has decoded for a while
SCHEDULED_STEPS = 48
SCHEDULED_PROMPT = 8


def time_iteration(bench: Workbench, chunks_of: Sequence[int], contexts: Sequence[int]) -> Took:
    """One iteration of prompt chunks beside rows that decode already, reading so many keys each.

    ``chunks_of``: how many equal chunks, their tokens, and the tokens of the same prompt before each.
    """
    chunks, tokens, start = chunks_of
    group = DecodeGroup(bench.kv.block_size)
    decoding = [_decoding(bench, group, i, context) for i, context in enumerate(contexts)]
    prompts = [_prompt(bench, len(contexts) + i, start + tokens) for i in range(chunks)]
    _give_blocks(bench, [*decoding, *prompts])
    if decoding:  # named as if they had been left out for a while, the rows take their places
        _run(bench, Plan((), group, stalled=tuple(decoding)))
        group.advance(1)
    parts = tuple(PrefillChunk(request, start, tokens, completes=True) for request in prompts)
    took = _repeatedly(bench, Plan(parts, group), group)
    for request in (*decoding, *prompts):
        bench.executor.forget(request)
    return took


def _repeatedly(bench: Workbench, plan: Plan, group: DecodeGroup) -> Took:
    """The plan's first run, or a median of a few where it has only decodes and is short."""
    found = [_run(bench, plan)]
    if not plan.prefills and found[0].ns < SHORT_NS:
        for _ in range(REPEATS - 1):
            group.advance(1)
            found.append(_run(bench, plan))
    return middle(found)


def _run(bench: Workbench, plan: Plan) -> Took:
    executor = bench.executor
    if plan.prefills:
        sleep(PAUSE_S)

    def iterate() -> None:
        executor.begin(plan)
        executor.finish(plan)

    return bench.clocked(iterate)


def time_padded(bench: Workbench, rows: int, width: int, *, step: bool) -> Took:
    """A padded batch's first iteration, or one after it; its prompts are half to all of the width."""
    group = DecodeGroup(bench.kv.block_size)
    requests = [_prompt(bench, i, width - i * width // (2 * rows)) for i in range(rows)]
    _give_blocks(bench, requests, width)
    chunks = tuple(PrefillChunk(request, 0, request.prompt_tokens, completes=True) for request in requests)
    took = _run(bench, Plan(chunks, group, padded_to=width))
    if step:
        for request in requests:
            request.generated_tokens = 1
            group.join(request, width)
        _run(bench, Plan((), group))  # the rows take their places
        group.advance(1)
        took = _repeatedly(bench, Plan((), group), group)
    for request in requests:
        bench.executor.forget(request)
    return took


def _prompt(bench: Workbench, number: int, tokens: int) -> Request:
    request = Request(number, 0, tokens, ANSWER_TOKENS)
    bench.executor.admit(request, Prompt(bench.prompt(tokens), output_tokens=ANSWER_TOKENS))
    return request


def _decoding(bench: Workbench, group: DecodeGroup, number: int, context: int) -> Request:
    """A request past its prompt; what its stored keys and values say does not matter."""
    request = Request(number, 0, context - 1, ANSWER_TOKENS, generated_tokens=1)
    bench.executor.admit(request, Prompt(bench.prompt(context), output_tokens=ANSWER_TOKENS))
    group.join(request)
    return request


def _give_blocks(bench: Workbench, requests: Sequence[Request], least_tokens: int = 0) -> None:
    """Enough for a few more tokens each."""
    tokens = [max(request.prompt_tokens, least_tokens) + ROOM_TOKENS for request in requests]
    tables = bench.block_tables(len(requests), max(tokens))
    for request, table, needed in zip(requests, tables, tokens, strict=True):
        request.blocks = table[: -(-needed // bench.kv.block_size)]


class _NoModel:
    """An executor that takes no time and notes when it is called."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._expected: list[Request] = []
        self.began_ns: list[int] = []

    def expect(self, request: Request, arrival: Arrival) -> None:  # noqa: ARG002 lengths do not matter
        self._expected.append(request)

    def forget(self, request: Request) -> None:
        self._expected.remove(request)

    def begin(self, plan: Plan) -> None:
        if not plan.prefills:
            self.began_ns.append(self._bench.now_ns())

    def finish(self, plan: Plan) -> Sequence[Request]:  # noqa: ARG002 all stop at once
        return self._expected if len(self.began_ns) == SCHEDULED_STEPS else ()


def time_scheduling(bench: Workbench, rows: int) -> Took:
    """What lies between iterations of decoding rows: vLLM V1's scheduler, the driver and the log."""
    limit = SCHEDULED_STEPS + 1
    blocks = rows * -(-(SCHEDULED_PROMPT + limit) // bench.kv.block_size)
    scheduler = VllmV1(
        KVCache(blocks, bench.kv.block_size),
        max_num_seqs=rows,
        max_num_batched_tokens=max(rows * SCHEDULED_PROMPT, 1),
        max_model_len=SCHEDULED_PROMPT + limit,
    )
    executor = _NoModel(bench)
    arrivals = (Arrival(0, SCHEDULED_PROMPT, limit, limit) for _ in range(rows))
    waited = bench.waited_ns()
    Driver(scheduler, executor, WallClock(), RequestLog(), IterationLog(0, streams=True)).run(arrivals)
    waited = (bench.waited_ns() - waited) // SCHEDULED_STEPS
    return Took(max(1, int(np.median(np.diff(executor.began_ns)))), waited)
