"""A workload as a simulation takes it: a stream of requests that can be started afresh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, repeat, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.random import Generator, SeedSequence

from simulator.engine.request import ONE_SEQUENCE, Content, Decoding
from simulator.errors import ScenarioError
from simulator.workloads import lengths as length
from simulator.workloads.arrival import Arrival, Turn, whole_sessions
from simulator.workloads.arrivals import (
    NS_PER_S,
    ArrivalTimes,
    BurstTimes,
    ConstantTimes,
    RecordedTimes,
    gamma_times,
    poisson_times,
    rescale,
    spread_ticks,
    tick_length_ns,
)
from simulator.workloads.clients import FLAT, ClientTimes, Profile, client_rates
from simulator.workloads.presets import preset_descriptions, preset_sampler
from simulator.workloads.sessions import first_requests, sessions
from simulator.workloads.traces.trace import Trace, open_trace

if TYPE_CHECKING:
    from simulator.scenario import Arrivals, ClientArrivals, LengthSettings, TraceArrivals, WorkloadSettings

FIRST_CHUNK_REQUESTS = 64
CHUNK_REQUESTS = 8192
PROCESSES = {
    "poisson": "arrivals: exponential gaps at rate_per_s",
    "gamma": "arrivals: gamma-distributed gaps at rate_per_s with coefficient of variation cv",
    "constant": "arrivals: equal gaps at rate_per_s",
    "burst": "arrivals: every request at time 0",
    "closed": "arrivals: a closed loop of clients, each with one request in flight",
    "clients": "arrivals: many clients, each with its own rate and bursts",
    "trace": "arrivals: recorded times from a file, at rate_scale times their rate",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests on offer.

    Each call of `arrivals` starts the same stream again: in order of time, generated as it is consumed.
    With `concurrency` set, that many clients send the requests in a closed loop: arrival times are 0 and
    mean nothing, and the stream is endless unless `requests` bounds it. `requests` is their number where
    it is known beforehand. `decoding` is how each request is answered. `notes` say what the user should
    know of how the stream differs from its source. `sessions`: requests may have later turns.
    """

    arrivals: Callable[[], Iterator[Arrival]]
    concurrency: int | None = None
    requests: int | None = None
    notes: tuple[str, ...] = ()
    decoding: Decoding = ONE_SEQUENCE
    sessions: bool = False


class Seeds(NamedTuple):
    """One source of randomness per purpose, so that changing one stream leaves the others as they are."""

    arrivals: SeedSequence
    lengths: SeedSequence
    ticks: SeedSequence
    clients: SeedSequence
    sessions: SeedSequence


def workload_seeds(seed: int) -> Seeds:
    """The children of the scenario's first child: whatever else draws takes a child after the first."""
    return Seeds(*SeedSequence(seed, spawn_key=(0,)).spawn(5))


def workload_descriptions() -> dict[str, str]:
    """Names of the arrival processes and length presets, each with a line about it."""
    presets = {name: f"lengths: {about}" for name, about in preset_descriptions().items()}
    return PROCESSES | presets


def build_workload(settings: WorkloadSettings, seed: int, folder: Path) -> Workload:
    """The workload that a scenario describes; relative paths are taken from `folder`.

    Trace files are opened and their first rows checked at once; all others when the stream reaches them.
    """
    seeds = workload_seeds(seed)
    trace = _open_arrival_trace(settings.arrivals, seed, folder)
    if settings.lengths.trace:
        workload = _replayed(settings, trace, seeds)
    else:
        workload = _generated(settings, trace, seeds, folder)
    workload = replace(workload, decoding=settings.decoding)
    return workload if settings.timeout_ms is None else _impatient(workload, settings.timeout_ms)


def _impatient(workload: Workload, timeout_ms: float) -> Workload:
    """The same requests from clients who ask for a timeout."""
    timeout_ns = round(timeout_ms * NS_PER_S / 1000)
    return replace(
        workload, arrivals=lambda: (row._replace(timeout_ns=timeout_ns) for row in workload.arrivals())
    )


def _open_arrival_trace(arrivals: Arrivals, seed: int, folder: Path) -> Trace | None:
    if arrivals.process != "trace":
        return None
    trace = open_trace(folder / arrivals.file, arrivals.format, seed)
    if not trace.timed:
        raise ScenarioError(
            f"workload.arrivals.file {trace.path} has lengths but no times; take another arrival process "
            f"and lengths: {{empirical: {arrivals.file}}}"
        )
    return trace


# --- recorded requests ---


def _replayed(settings: WorkloadSettings, trace: Trace | None, seeds: Seeds) -> Workload:
    arrivals = settings.arrivals
    if trace is None or arrivals.process != "trace":
        raise ScenarioError("workload.lengths.trace needs arrivals with process: trace")

    def stream() -> Iterator[Arrival]:
        rows = _bounded(
            _retimed(trace, arrivals, seeds), settings.requests, settings.duration_s, trace.sessions
        )
        return _adjusted(rows, settings.lengths)

    notes = (*trace.notes, *_tick_notes(trace, arrivals), *_trace_cap_notes(trace, settings.lengths))
    return Workload(stream, notes=notes, sessions=trace.sessions)


def _retimed(trace: Trace, arrivals: TraceArrivals, seeds: Seeds) -> Iterator[Arrival]:
    rows = trace.rows()
    if arrivals.spread_ticks:
        rows = spread_ticks(rows, np.random.default_rng(seeds.ticks))
    return rows if arrivals.rate_scale == 1 else rescale(rows, arrivals.rate_scale)


def _bounded(
    rows: Iterator[Arrival], requests: int | None, duration_s: float | None, in_sessions: bool
) -> Iterator[Arrival]:
    if duration_s is not None:
        latest_ns = _latest_ns(duration_s)
        rows = takewhile(lambda row: row.arrival_ns <= latest_ns, rows)
    return first_requests(rows, requests) if in_sessions else islice(rows, requests)


def _latest_ns(duration_s: float) -> int:
    return round(duration_s * NS_PER_S)


def _adjusted(rows: Iterator[Arrival], settings: LengthSettings) -> Iterator[Arrival]:
    """The rows with caps and the declared limit applied; as they are where there is none."""
    caps = (settings.max_prompt_tokens, settings.max_output_tokens, settings.output_limit)
    if caps == (None, None, None):
        return rows
    return (_adjust(row, *caps) for row in rows)


def _adjust(
    row: Arrival, prompt_cap: int | None, output_cap: int | None, output_limit: int | None
) -> Arrival:
    """A request, and each later turn of its session, by the same rules."""

    def adjusted(
        prompt: int, output: int, limit: int, content: Content | None
    ) -> tuple[int, int, int, Content | None]:
        if prompt_cap is not None and prompt > prompt_cap:
            prompt, content = prompt_cap, _cut(content, prompt_cap)
        output = output if output_cap is None else min(output, output_cap)
        limit = min(limit, output) if output_limit is None else output_limit
        return prompt, min(output, limit), limit, content

    later = tuple(Turn(turn.think_ns, *adjusted(*turn[1:])) for turn in row.later)
    return Arrival(row.arrival_ns, *adjusted(*row[1:5]), row.priority, row.timeout_ns, later)


def _cut(content: Content | None, prompt_tokens: int) -> Content | None:
    if content is None:
        return None
    ids = -(-prompt_tokens // content.tokens_per_id)
    return Content(content.ids[:ids], content.tokens_per_id)


def _tick_notes(trace: Trace, arrivals: TraceArrivals) -> Iterator[str]:
    if arrivals.spread_ticks:
        tick_ns = tick_length_ns(trace.rows())
        yield (
            f"requests of {trace.path.name} that share a time are spread uniformly over its tick of "
            f"{tick_ns / NS_PER_S:g} s"
        )


def _trace_cap_notes(trace: Trace, settings: LengthSettings) -> Iterator[str]:
    """How many requests the caps cut, which takes a pass over the file, made only when there are caps."""
    if settings.max_prompt_tokens is not None or settings.max_output_tokens is not None:
        yield from _cap_notes(trace, _all_lengths(trace), settings)


# --- generated requests ---


def _generated(settings: WorkloadSettings, trace: Trace | None, seeds: Seeds, folder: Path) -> Workload:
    sampler, notes = _sampler(settings.lengths, folder)
    arrivals = settings.arrivals

    def stream() -> Iterator[Arrival]:
        times = _times(arrivals, trace, seeds)
        generator = np.random.default_rng(seeds.lengths)
        if settings.sessions is None:
            return generate(times, sampler, generator, settings)
        limit, turns = settings.lengths.output_limit, np.random.default_rng(seeds.sessions)
        begun = sessions(times, sampler, generator, settings.sessions, turns, limit)
        return _bounded(begun, settings.requests, settings.duration_s, in_sessions=True)

    if trace is not None and arrivals.process == "trace":
        notes = (*notes, *trace.notes, *_tick_notes(trace, arrivals))
    concurrency = arrivals.concurrency if arrivals.process == "closed" else None
    known = concurrency is not None or (trace is None and settings.duration_s is None)
    requests = settings.requests if known else None
    return Workload(stream, concurrency, requests, notes, sessions=settings.sessions is not None)


def _times(arrivals: Arrivals, trace: Trace | None, seeds: Seeds) -> ArrivalTimes:
    if arrivals.process == "poisson":
        return poisson_times(arrivals.rate_per_s, np.random.default_rng(seeds.arrivals))
    if arrivals.process == "gamma":
        return gamma_times(arrivals.rate_per_s, arrivals.cv, np.random.default_rng(seeds.arrivals))
    if arrivals.process == "constant":
        return ConstantTimes(arrivals.rate_per_s)
    if arrivals.process == "clients":
        return _client_times(arrivals, seeds)
    if arrivals.process == "trace" and trace is not None:
        return RecordedTimes(_retimed(trace, arrivals, seeds))
    return BurstTimes()


def _client_times(arrivals: ClientArrivals, seeds: Seeds) -> ClientTimes:
    traits = np.random.default_rng(seeds.clients)
    rates_per_s = client_rates(arrivals.clients, arrivals.rate_per_s, arrivals.rate_sigma, traits)
    cvs = arrivals.cv * np.exp(arrivals.cv_sigma * traits.standard_normal(arrivals.clients))
    profile = FLAT if arrivals.profile is None else Profile(arrivals.profile, arrivals.period_s)
    own = SeedSequence(seeds.arrivals.entropy, spawn_key=seeds.arrivals.spawn_key)
    return ClientTimes(rates_per_s, cvs, profile, own)


def generate(
    times: ArrivalTimes,
    sampler: length.Sampler,
    generator: Generator,
    settings: WorkloadSettings,
    chunk_requests: int = CHUNK_REQUESTS,
) -> Iterator[Arrival]:
    """Requests with drawn lengths, in growing chunks, until a bound or the end of the times is reached."""
    latest_ns = None if settings.duration_s is None else _latest_ns(settings.duration_s)
    remaining = settings.requests
    chunk = min(FIRST_CHUNK_REQUESTS, chunk_requests)
    while remaining is None or remaining > 0:
        prompts, outputs = sampler(generator, chunk if remaining is None else min(chunk, remaining))
        wanted = len(prompts)
        arrival_ns = times.take(wanted)
        if latest_ns is not None:
            arrival_ns = arrival_ns[: np.searchsorted(arrival_ns, latest_ns, side="right")]
        yield from _arrivals(arrival_ns, prompts, outputs, settings.lengths.output_limit)
        if len(arrival_ns) < wanted:
            return
        remaining = None if remaining is None else remaining - wanted
        chunk = min(2 * chunk, chunk_requests)


def _arrivals(
    arrival_ns: length.Counts, prompts: length.Counts, outputs: length.Counts, output_limit: int | None
) -> Iterator[Arrival]:
    """Records from columns. Built as bare tuples, in C: the named constructor takes twice as long."""
    limits = outputs
    if output_limit is not None:
        limits = np.full_like(outputs, output_limit)
        outputs = np.minimum(outputs, limits)
    columns = (arrival_ns.tolist(), prompts.tolist(), outputs.tolist(), limits.tolist())
    return map(
        partial(tuple.__new__, Arrival), zip(*columns, *map(repeat, Arrival(0, 1, 1, 1)[4:]), strict=False)
    )


def _sampler(settings: LengthSettings, folder: Path) -> tuple[length.Sampler, tuple[str, ...]]:
    if settings.empirical is not None:
        trace = open_trace(folder / settings.empirical)
        observed = _all_lengths(trace)
        sampler, notes = length.empirical_lengths(observed), tuple(_cap_notes(trace, observed, settings))
    else:
        sampler, notes = _distribution(settings), ()
    return length.capped(sampler, settings.max_prompt_tokens, settings.max_output_tokens), notes


def _distribution(settings: LengthSettings) -> length.Sampler:
    if settings.preset is not None:
        return preset_sampler(settings.preset)
    if settings.fixed is not None:
        return length.fixed_lengths(settings.fixed.prompt, settings.fixed.output)
    if settings.uniform is not None:
        return length.uniform_lengths(settings.uniform.prompt, settings.uniform.output)
    if settings.lognormal is not None:
        prompt, output = settings.lognormal.prompt, settings.lognormal.output
        return length.CopulaSampler(
            length.lognormal_marginal(prompt.mean, prompt.cv),
            length.lognormal_marginal(output.mean, output.cv),
        )
    raise ScenarioError("workload.lengths must give preset, fixed, uniform, lognormal, empirical or trace")


def _all_lengths(trace: Trace) -> length.Lengths:
    """Every row's lengths, 8 bytes a row while they are read."""
    rows = whole_sessions(trace.rows()) if trace.sessions else trace.rows()
    pairs = np.fromiter(((row.prompt_tokens, row.output_tokens) for row in rows), np.dtype("i4,i4"))
    return length.Lengths(pairs["f0"].astype(np.int64), pairs["f1"].astype(np.int64))


def _cap_notes(trace: Trace, observed: length.Lengths, settings: LengthSettings) -> Iterator[str]:
    sides = (
        ("prompts", observed.prompt_tokens, settings.max_prompt_tokens),
        ("outputs", observed.output_tokens, settings.max_output_tokens),
    )
    for side, tokens, cap in sides:
        above = 0 if cap is None else int(np.count_nonzero(tokens > cap))
        if above:
            yield f"{above:,} of {len(tokens):,} {side} in {trace.path.name} are cut to {cap:,} tokens"
