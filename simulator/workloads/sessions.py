"""Conversations: each turn's prompt is all that was said before and what the client adds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING

from numpy.random import Generator

from simulator.engine.request import Content
from simulator.workloads.arrival import Arrival, Turn
from simulator.workloads.arrivals import NS_PER_S, ArrivalTimes
from simulator.workloads.lengths import Sampler

if TYPE_CHECKING:
    from simulator.scenario import SessionSettings

CHUNK = 1024
SPAN_TOKENS = 16  # a KV block of most engines
SESSION_IDS = 1 << 32  # more blocks than one conversation can have
LONGEST_THINK_NS = 2**60

Pair = tuple[int, int]


def sessions(
    times: ArrivalTimes,
    sampler: Sampler,
    lengths: Generator,
    settings: SessionSettings,
    generator: Generator,
    output_limit: int | None,
) -> Iterator[Arrival]:
    """Conversations that begin at these times; their turns take the sampler's lengths in order."""
    pairs = _pairs(sampler, lengths, output_limit)
    starts = chain.from_iterable(iter(lambda: times.take(CHUNK).tolist(), []))
    for number, start_ns in enumerate(starts):
        turns = int(generator.geometric(1 / settings.turns_mean))
        thinks = [0, *_thinks_ns(settings, generator, turns - 1)]
        spoken = [_turn(think, pair, output_limit) for think, pair in zip(thinks, pairs, strict=False)]
        first, *later = _cumulated(spoken, number, settings)
        yield Arrival(start_ns, *first[1:], later=tuple(later))


def _turn(think_ns: int, pair: Pair, output_limit: int | None) -> Turn:
    """A turn by itself, without what was said before."""
    prompt, output = pair
    return Turn(think_ns, prompt, output, output if output_limit is None else output_limit)


def _pairs(sampler: Sampler, generator: Generator, output_limit: int | None) -> Iterator[Pair]:
    while True:
        prompts, outputs = sampler(generator, CHUNK)
        limits = repeat(math.inf if output_limit is None else output_limit)
        for prompt, output, limit in zip(prompts.tolist(), outputs.tolist(), limits, strict=False):
            yield prompt, int(min(output, limit))


def _thinks_ns(settings: SessionSettings, generator: Generator, count: int) -> list[int]:
    """Lognormal think times with the mean and the coefficient of variation asked for."""
    sigma = math.sqrt(math.log1p(settings.think_s.cv**2))
    mu = math.log(settings.think_s.mean) - sigma**2 / 2
    drawn = generator.lognormal(mu, sigma, count) * NS_PER_S
    return [round(min(think, LONGEST_THINK_NS)) for think in drawn.tolist()]


def _cumulated(spoken: list[Turn], number: int, settings: SessionSettings) -> Iterator[Turn]:
    """Turns with whole prompts, up to the longest context; the first is always there."""
    longest = settings.max_context_tokens or math.inf
    context = settings.system_prompt_tokens
    for place, turn in enumerate(spoken):
        prompt = context + turn.prompt_tokens
        if place and prompt + turn.output_limit > longest:
            return
        content = _content(number, prompt + turn.output_limit, settings.system_prompt_tokens)
        yield turn._replace(prompt_tokens=prompt, content=content)
        context = prompt + turn.output_tokens


def _content(number: int, tokens: int, system_tokens: int) -> Content:
    """A conversation only ever grows, so a block's place in it names all up to its end."""
    blocks, common = -(-tokens // SPAN_TOKENS), system_tokens // SPAN_TOKENS
    own = (number + 1) * SESSION_IDS
    return Content((*range(common), *range(own + common, own + blocks)), SPAN_TOKENS, names_answer=True)


def first_requests(rows: Iterator[Arrival], count: int | None) -> Iterator[Arrival]:
    """Whole sessions as long as their turns number no more, the last of them cut short."""
    left = count
    for row in rows:
        if left is None:
            yield row
            continue
        if left <= 0:
            return
        yield row if len(row.later) < left else row._replace(later=row.later[: left - 1])
        left -= 1 + len(row.later)
