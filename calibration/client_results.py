"""Black-box calibration from a benchmark client: the detailed result JSON of ``vllm bench serve``.

All requests that run together get their tokens in the same step of the engine, so tokens that arrive
together mark the end of a step. A step's duration is the time since the step before, its work follows from
the lengths. The client sees every end equally late, so durations are the engine's own.

The server's overhead (HTTP, tokenisation, queue hand-off) is what the client adds before and after: a
request joins the first step that begins after it has arrived, so for each of them its first token tells
between which bounds the overhead must lie. The value within most of these bounds is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from calibration.black_box import LIMITS, Iteration, as_measurements, left_out_errors, refuse_thin_log
from calibration.iteration_logs import UNTIMED
from calibration.measurements import Header, Measurements
from simulator.engine.plan import IterationShape
from simulator.errors import ProfileError
from simulator.scenario_messages import shown

LISTS = ("input_lens", "ttfts", "itls", "start_times")
HINT = "expected the result of vllm bench serve --save-result --save-detailed"
TOGETHER = 0.5  # share of the usual time between tokens that may lie between tokens of one step
NS_PER_S = 1e9
LATEST_S = 1e10  # clients count from 1970, or from when their machine was started
LONGEST_PROMPT = 10**9
LEAST_BOUNDS = 8  # requests that must bound the overhead
LEAST_AGREEING = 0.5  # share of them that must agree


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One completed request as its client saw it: when sent, how long, when its tokens came (s)."""

    sent_s: float
    prompt_tokens: int
    token_s: tuple[float, ...]


class Step(NamedTuple):
    """A step of the engine: when the client saw its end; of each request how many tokens it had before."""

    end_s: float
    tokens: tuple[tuple[int, int], ...]


def import_client_result(source: Path, header: Header) -> Measurements:
    """Operator measurements and the server overhead from one detailed result."""
    requests = read_requests(source)
    steps = engine_steps(requests)
    iterations = list(timed_steps(requests, steps))
    refuse_thin_log(iterations)
    overhead = server_overhead(requests, steps)
    described = replace(
        header,
        source=f"{header.source}: {source.name}",
        checks={"iteration": left_out_errors(iterations)},
        limits=(*LIMITS, "steps were told apart by the arrival of their tokens at the client"),
        host=UNTIMED,
        server=overhead,
    )
    return as_measurements(iterations, described)


def read_requests(path: Path) -> list[ClientRequest]:
    """The completed requests of a result, or of the last of several that were appended to one file."""
    values = _result(path)
    columns = [_column(path, values, name) for name in LISTS]
    if len({len(column) for column in columns}) > 1:
        raise ProfileError(f"{path}: {', '.join(LISTS)} must be equally long; {HINT}")
    errors = values.get("errors") or [""] * len(columns[0])
    if not isinstance(errors, list) or len(errors) != len(columns[0]):
        raise ProfileError(f"{path}: errors must be a list as long as {LISTS[0]}; {HINT}")
    found = [
        request
        for number, (row, error) in enumerate(zip(zip(*columns, strict=True), errors, strict=True))
        if not error and (request := _request(f"{path}: request {number}", *row))
    ]
    if not found:
        raise ProfileError(f"{path}: no request was completed")
    return found


def _column(path: Path, values: Mapping[str, Any], name: str) -> list[Any]:
    column = values.get(name)
    if not isinstance(column, list):
        raise ProfileError(f"{path}: has no list {name!r}; {HINT}")
    return column


def _request(where: str, prompt: object, ttft: object, gaps: object, start: object) -> ClientRequest | None:
    """One request of the lists; none where no token came."""
    if not (ttft_s := _seconds(where, "ttfts", ttft)):
        return None
    if not isinstance(prompt, int) or isinstance(prompt, bool) or not 1 <= prompt <= LONGEST_PROMPT:
        bounds = f"a whole number from 1 to {LONGEST_PROMPT:.0e}"
        raise ProfileError(f"{where}: input_lens must be {bounds}, not {shown(prompt)}")
    if not isinstance(gaps, list):
        raise ProfileError(f"{where}: itls must be a list of seconds, not {shown(gaps)}")
    gaps_s = [_seconds(where, "itls", gap) for gap in gaps]
    sent_s = _seconds(where, "start_times", start)
    return ClientRequest(sent_s, prompt, tuple(np.cumsum([sent_s + ttft_s, *gaps_s]).tolist()))


def _seconds(where: str, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LATEST_S:
        raise ProfileError(f"{where}: {name} must be seconds from 0 to {LATEST_S:.0e}, not {shown(value)}")
    return float(value)


def _result(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProfileError(f"{path}: is not a text file; {HINT}") from None
    value = _loaded(text)
    if value is None:
        value = _loaded(text.rstrip().rpartition("\n")[2])
    if not isinstance(value, dict):
        raise ProfileError(f"{path}: is not a JSON object, nor is its last line; {HINT}")
    return value


def _loaded(text: str) -> object:
    """What a JSON document holds; nothing where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def engine_steps(requests: Sequence[ClientRequest]) -> list[Step]:
    """Steps in order of time: tokens that come together, at most one of each request."""
    tokens = sorted(
        (time, index, before)
        for index, request in enumerate(requests)
        for before, time in enumerate(request.token_s)
    )
    gaps = [later - earlier for request in requests for earlier, later in pairwise(request.token_s)]
    together = TOGETHER * median(gaps) if gaps else 0.0
    steps: list[Step] = []
    group: dict[int, tuple[float, int]] = {}
    last = tokens[0][0]
    for time, index, before in tokens:
        if index in group or time - last > together:
            steps.append(_step(group))
            group = {}
        group[index] = (time, before)
        last = time
    return [*steps, _step(group)]


def _step(group: Mapping[int, tuple[float, int]]) -> Step:
    return Step(
        median(time for time, _ in group.values()),
        tuple((index, before) for index, (_, before) in group.items()),
    )


def timed_steps(requests: Sequence[ClientRequest], steps: Sequence[Step]) -> Iterator[Iteration]:
    """Steps that began when the one before them ended, since a request took part in both.

    A prompt counts where its first token came: of one that was split over steps, the last has it all.
    """
    for before, step in pairwise(steps):
        continued = any(held for _, held in step.tokens)
        if continued and step.end_s > before.end_s:
            yield Iteration(_shape(requests, step), (step.end_s - before.end_s) * NS_PER_S)


def _shape(requests: Sequence[ClientRequest], step: Step) -> IterationShape:
    prompts = [requests[index].prompt_tokens for index, held in step.tokens if not held]
    contexts = [requests[index].prompt_tokens + held for index, held in step.tokens if held]
    return IterationShape(
        len(prompts),
        sum(prompts),
        sum(tokens * (tokens + 1) // 2 for tokens in prompts),
        len(contexts),
        sum(contexts),
    )


def server_overhead(requests: Sequence[ClientRequest], steps: Sequence[Step]) -> dict[str, Any]:
    """The overhead in ns that agrees with most requests, as a profile's ``server`` field; or nothing."""
    bounds = list(_bounds(requests, steps))
    best, agreeing = most_agreed(bounds) if bounds else (0.0, 0)
    if len(bounds) < LEAST_BOUNDS or agreeing < LEAST_AGREEING * len(bounds):
        return {}
    return {
        "overhead_ns": round(best * NS_PER_S),
        "requests": len(bounds),
        "agreeing": round(agreeing / len(bounds), 3),
        "derivation": "time before the first step that each request could join, as its client saw it",
    }


def _bounds(requests: Sequence[ClientRequest], steps: Sequence[Step]) -> Iterator[tuple[float, float]]:
    """Between which seconds the overhead must lie, by each request that found the engine busy.

    It missed the step before its own because it came too late, unless that step was full of other prompts.
    """
    for first, second, step in zip(steps, steps[1:], steps[2:], strict=False):
        continued = {index for index, held in second.tokens if held} & {index for index, _ in step.tokens}
        if continued and all(held for _, held in second.tokens):
            for sent in (requests[index].sent_s for index, held in step.tokens if not held):
                if sent < second.end_s:
                    yield max(0.0, first.end_s - sent), second.end_s - sent


def most_agreed(bounds: Sequence[tuple[float, float]]) -> tuple[float, int]:
    """The middle of the stretch that lies within most of the bounds, and within how many."""
    edges = sorted({edge for pair in bounds for edge in pair})
    middles = [(low + high) / 2 for low, high in pairwise(edges)] or edges
    counts = [sum(low <= middle < high for low, high in bounds) for middle in middles]
    most = max(counts)
    chosen = [middle for middle, count in zip(middles, counts, strict=True) if count == most]
    return float(median(chosen)), most
