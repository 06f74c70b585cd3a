"""The one place that says what TTFT, TPOT, throughput, SLO attainment, waste and all other figures mean.

Latencies are the client's: from sending a request to receiving tokens, queueing included. Percentiles
interpolate linearly between order statistics, as numpy does. An undefined figure is NaN in arrays and None
in a summary, never zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy import float64, int64
from numpy.typing import NDArray

from simulator.run_tables import RunTables

Columns = Mapping[str, NDArray[int64]]
Summary = dict[str, Any]

STATUSES = ("completed", "rejected", "failed", "unfinished")  # 0, 1, 2, 3 in the status column
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "max": 1.0}
NS_PER_MS = 1e6
NS_PER_S = 1e9


class SloTargets(Protocol):
    """The longest latencies that still count as good; None: no promise on this one."""

    @property
    def ttft_ms(self) -> float | None: ...
    @property
    def tpot_ms(self) -> float | None: ...
    @property
    def e2e_ms(self) -> float | None: ...


class ProfileName(Protocol):
    """Which cost model timed the run, and what stands behind it: measured, imported or roofline."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Latencies of each request in ns, in the order of the request table; NaN where undefined.

    - ``ttft_ns``: first token - arrival
    - ``tpot_ns``: (last token - first token) / (tokens - 1), of completed requests with two tokens or more
    - ``e2e_ns``: last token - arrival, of completed requests
    - ``normalized_ns``: E2E per output token
    - ``queue_ns``: start of the first iteration - arrival
    """

    ttft_ns: NDArray[float64]
    tpot_ns: NDArray[float64]
    e2e_ns: NDArray[float64]
    normalized_ns: NDArray[float64]
    queue_ns: NDArray[float64]


def request_metrics(requests: Columns) -> RequestMetrics:
    """Every latency of every request, vectorised."""
    arrival, first = requests["arrival_ns"], requests["first_token_ns"]
    scheduled, finished = requests["scheduled_ns"], requests["finished_ns"]
    tokens, done = requests["output_tokens"], requests["status"] == 0
    e2e = _where(done, finished - arrival)
    return RequestMetrics(
        ttft_ns=_where(first >= 0, first - arrival),
        tpot_ns=_where(done & (tokens > 1), finished - first) / np.maximum(tokens - 1, 1),
        e2e_ns=e2e,
        normalized_ns=e2e / np.maximum(tokens, 1),
        queue_ns=_where(scheduled >= 0, scheduled - arrival),
    )


def _where(defined: NDArray[np.bool_], values: NDArray[int64]) -> NDArray[float64]:
    return np.where(defined, values, np.nan)


def distribution_ms(values_ns: NDArray[float64]) -> dict[str, float | None]:
    """Mean, percentiles and maximum in ms of the defined values; all None when there is none."""
    defined = values_ns[~np.isnan(values_ns)]
    if not defined.size:
        return dict.fromkeys(("mean", *QUANTILES))
    found = np.quantile(defined, list(QUANTILES.values())) / NS_PER_MS
    return {"mean": float(defined.mean()) / NS_PER_MS, **dict(zip(QUANTILES, found.tolist(), strict=True))}


def pooled_itl_ms(gap_ns: NDArray[int64], gap_rows: NDArray[int64]) -> dict[str, float | None]:
    """Distribution in ms of the time between consecutive tokens of a request, pooled over all tokens."""
    total = int(gap_rows.sum())
    if not total:
        return dict.fromkeys(("mean", *QUANTILES))
    mean = float(_dot(gap_ns.astype(float64), gap_rows)) / total / NS_PER_MS
    found = weighted_quantiles(gap_ns, gap_rows, list(QUANTILES.values())) / NS_PER_MS
    return {"mean": mean, **dict(zip(QUANTILES, found.tolist(), strict=True))}


def weighted_quantiles(
    values: NDArray[int64], counts: NDArray[int64], quantiles: list[float]
) -> NDArray[float64]:
    """Quantiles of the multiset that holds ``values[i]`` ``counts[i]`` times, without writing it out.

    Equal to ``np.quantile(np.repeat(values, counts), quantiles)``. The counts must not all be zero.
    """
    order = np.argsort(values)
    upto = np.cumsum(counts[order])
    ranks = np.asarray(quantiles, dtype=float64) * (upto[-1] - 1)
    below = np.floor(ranks).astype(int64)
    lower = values[order[np.searchsorted(upto, below, side="right")]].astype(float64)
    above = np.minimum(below + 1, upto[-1] - 1)
    upper = values[order[np.searchsorted(upto, above, side="right")]].astype(float64)
    interpolated: NDArray[float64] = lower + (upper - lower) * (ranks - below)
    return interpolated


class LittlesLaw(NamedTuple):
    """Both sides of L = lambda W over a whole run, as exact fractions: equal in every sound run."""

    number_in_system: Fraction
    rate_times_sojourn: Fraction


def littles_law(tables: RunTables) -> LittlesLaw:
    """Time average of the number in the system, and arrival rate times mean sojourn.

    The first from walking through the events in order, the second from a sum over requests.
    A rejected request leaves on arrival; one without an end stays until the end of the run.
    """
    arrival, departure = tables.requests["arrival_ns"], departures_ns(tables)
    span_ns = run_end_ns(tables) - first_arrival_ns(tables)
    if not span_ns:
        return LittlesLaw(Fraction(0), Fraction(0))
    sides = (_population_integral(arrival, departure), _exact_sum(departure - arrival))
    return LittlesLaw(*(Fraction(side, span_ns) for side in sides))


def departures_ns(tables: RunTables) -> NDArray[int64]:
    """When each request left, whatever the reason."""
    requests = tables.requests
    last_seen = np.where(requests["status"] == 1, requests["arrival_ns"], run_end_ns(tables))
    return np.where(requests["finished_ns"] >= 0, requests["finished_ns"], last_seen)


def _population_integral(arrival: NDArray[int64], departure: NDArray[int64]) -> int:
    """Integral over time of the number present, walking through the arrivals and departures in order."""
    times = np.concatenate((arrival, departure))
    steps = np.repeat(np.array([1, -1], dtype=int64), len(arrival))
    order = np.argsort(times)
    present = np.cumsum(steps[order])[:-1]
    waits = np.diff(times[order])
    # Halves of 31 bits: a product of two int64 could overflow within a long run.
    return (_exact_sum(present * (waits >> 31)) << 31) + _exact_sum(present * (waits & 0x7FFF_FFFF))


def _exact_sum(values: NDArray[int64]) -> int:
    """Sum without overflow: a million waits of an hour exceed int64."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFF_FFFF).sum())


def first_arrival_ns(tables: RunTables) -> int:
    """When the run begins: its first arrival; 0 when nothing was offered."""
    arrivals = tables.requests["arrival_ns"]
    return int(arrivals.min()) if arrivals.size else 0


def run_end_ns(tables: RunTables) -> int:
    """The last thing that happened: an arrival, a completion or the end of an iteration."""
    requests = tables.requests
    columns = (requests["arrival_ns"], requests["finished_ns"], tables.iterations["end_ns"])
    return max((int(column.max()) for column in columns if column.size), default=0)


def duration_ns(tables: RunTables) -> int:
    """First arrival to last completion, which throughput divides by; without one, to the run's end."""
    finished = tables.requests["finished_ns"][tables.requests["status"] == 0]
    end_ns = int(finished.max()) if finished.size else run_end_ns(tables)
    return end_ns - first_arrival_ns(tables)


def throughput(tables: RunTables) -> dict[str, float | None]:
    """Completed requests and their tokens per second; total counts prompt tokens too.

    The time runs to the last completion, so a queue that is worked off at the end lowers the rate below
    the one at which requests were offered: that one runs from the first arrival to the last.
    """
    requests, seconds = tables.requests, duration_ns(tables) / NS_PER_S
    done = requests["status"] == 0
    output = int(requests["output_tokens"][done].sum())
    prompt = int(requests["prompt_tokens"][done].sum())
    return {
        "requests_per_s": _ratio(int(done.sum()), seconds) or 0.0,
        "output_tokens_per_s": _ratio(output, seconds) or 0.0,
        "total_tokens_per_s": _ratio(output + prompt, seconds) or 0.0,
        "offered_requests_per_s": _offered_per_s(requests["arrival_ns"]),
    }


def _offered_per_s(arrival_ns: NDArray[int64]) -> float | None:
    gaps = len(arrival_ns) - 1
    return _ratio(gaps * NS_PER_S, float(arrival_ns.max() - arrival_ns.min())) if gaps > 0 else None


def slo_met(requests: Columns, slo: SloTargets) -> dict[str, NDArray[np.bool_]]:
    """For each promise made, which of the offered requests completed and kept it.

    A single token keeps any TPOT, as in vLLM's benchmark; DistServe and AIPerf differ there.
    """
    metrics, done = request_metrics(requests), requests["status"] == 0
    tpot_ns = np.where(requests["output_tokens"] == 1, 0.0, metrics.tpot_ns)
    latencies = {"ttft_ms": metrics.ttft_ns, "tpot_ms": tpot_ns, "e2e_ms": metrics.e2e_ns}
    targets = slo_targets(slo)
    return {name: done & (latencies[name] <= limit * NS_PER_MS) for name, limit in targets.items()}


def slo_targets(slo: SloTargets) -> dict[str, float]:
    """The promises made, by name, in ms."""
    targets = {"ttft_ms": slo.ttft_ms, "tpot_ms": slo.tpot_ms, "e2e_ms": slo.e2e_ms}
    return {name: limit for name, limit in targets.items() if limit is not None}


def slo_summary(tables: RunTables, slo: SloTargets) -> Summary:
    """Share of the offered requests that keep every promise, and how many good ones per second.

    Rejected, failed and unfinished requests are misses. ``met``: the share that keeps each promise.
    """
    met = slo_met(tables.requests, slo)
    offered = len(tables.requests["id"])
    summary: Summary = {"attainment": None, "goodput_requests_per_s": None}
    if met and offered:
        good = int(np.logical_and.reduce(list(met.values())).sum())
        summary["attainment"] = good / offered
        summary["goodput_requests_per_s"] = _ratio(good, duration_ns(tables) / NS_PER_S) or 0.0
    shares = {name: _ratio(int(kept.sum()), offered) for name, kept in met.items()}
    return summary | {"targets": slo_targets(slo), "met": shares}


def batch_summary(iterations: Columns) -> dict[str, float | None]:
    """Rows per iteration: prompt chunks and decodes, seats of finished rows included; mean by busy time."""
    rows = iterations["prefills"] + iterations["decodes"]
    busy_ns = iterations["end_ns"] - iterations["start_ns"]
    return {
        "mean_rows": _ratio(float(_dot(rows.astype(float64), busy_ns)), int(busy_ns.sum())),
        "max_rows": int(rows.max()) if rows.size else None,
    }


def padding_summary(iterations: Columns) -> dict[str, float | None]:
    """How much of the work is padding.

    ``prefill``, ``decode``: share of the positions computed. ``total``: the two combined by device time,
    each iteration's share weighted by its duration. Policies that pad never mix prompts and decodes in an
    iteration; were one to do so, its padding would count as prompt padding first.
    """
    repeats, padding = iterations["repeats"], iterations["padding_tokens"]
    prefill, decode = iterations["prefill_tokens"], iterations["decodes"]
    in_prefill = np.minimum(padding, prefill)
    busy_ns = (iterations["end_ns"] - iterations["start_ns"]).astype(float64)
    share = padding / np.maximum(prefill + decode, 1)
    return {
        "prefill": _ratio(int(_dot(in_prefill, repeats)), int(_dot(prefill, repeats))),
        "decode": _ratio(int(_dot(padding - in_prefill, repeats)), int(_dot(decode, repeats))),
        "total": _ratio(float(_dot(share, busy_ns)), float(busy_ns.sum())),
    }


def kv_summary(tables: RunTables, replicas: int | None = None) -> dict[str, float | None]:
    """Share of the KV blocks in use: the mean over the whole run and all replicas, idle time as zero.

    ``replicas``: how many there were; None: as many as the tables mention.
    """
    iterations, blocks = tables.iterations, tables.kv_blocks
    used, busy_ns = iterations["kv_blocks_used"], iterations["end_ns"] - iterations["start_ns"]
    capacity = tables.total_kv_blocks(replicas or replicas_seen(tables))
    span_ns = run_end_ns(tables) - first_arrival_ns(tables)
    return {
        "blocks": blocks,
        "mean_utilisation": _ratio(float(_dot(used.astype(float64), busy_ns)), capacity * span_ns),
        "peak_utilisation": _peak_share(tables),
    }


def _peak_share(tables: RunTables) -> float | None:
    used = tables.iterations["kv_blocks_used"]
    if not used.size or not tables.replica_blocks:
        return _ratio(int(used.max()) if used.size else 0, tables.kv_blocks)
    blocks = np.array(tables.replica_blocks, int64)[tables.iterations["replica"]]
    return float((used / np.maximum(blocks, 1)).max())


def sharing_summary(tables: RunTables) -> dict[str, dict[str, float | None]]:
    """What the sequences of requests share, where there is anything.

    ``saved``: KV blocks saved by sharing over those that would be held without, both averaged over
    iterations, as in the vLLM paper's figure 15 (arXiv:2309.06180). ``copies``: blocks copied on write.
    """
    held, saved, copies = tables.sharing
    return {"sharing": {"saved": _ratio(saved, held + saved), "copies": copies}} if saved else {}


def replicas_seen(tables: RunTables) -> int:
    columns = (tables.requests["replica"], tables.iterations["replica"])
    return 1 + max((int(column.max()) for column in columns if column.size), default=0)


def counts(tables: RunTables) -> Summary:
    """Requests by how they ended, preemptions, and the commonest reasons for not completing."""
    status = np.bincount(tables.requests["status"], minlength=len(STATUSES)).tolist()
    return {
        "offered": len(tables.requests["id"]),
        **dict(zip(STATUSES, status, strict=True)),
        "preemptions": int(tables.requests["preemptions"].sum()),
        "reasons": _reasons(tables),
    }


def _reasons(tables: RunTables, most: int = 5) -> list[Summary]:
    """Reasons that differ only in their numbers are one, told by the first example; commonest first."""
    rows = np.searchsorted(tables.requests["id"], np.fromiter(tables.reasons, dtype=int64))
    groups: dict[tuple[str, str], Summary] = {}
    codes = tables.requests["status"][rows].tolist()
    for code, reason in zip(codes, tables.reasons.values(), strict=True):
        alike = (STATUSES[code], re.sub(r"\d+", "#", reason))
        group = groups.setdefault(alike, {"status": alike[0], "example": reason, "count": 0})
        group["count"] += 1
    return sorted(groups.values(), key=lambda group: -int(group["count"]))[:most]


def _dot(values: NDArray[Any], weights: NDArray[Any]) -> Any:
    """Weighted sum, without BLAS, whose threads would spin for longer than a run takes."""
    return (values * weights).sum()


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def summarise(
    tables: RunTables,
    *,
    scenario_name: str,
    seed: int,
    policy: str,
    model: str,
    hardware: str,
    profile: ProfileName,
    extrapolated: float,
    slo: SloTargets,
    wall_s: float,
    replicas: int | None = None,
    seats: int | None = None,
) -> Summary:
    """The content of ``summary.json``: every figure of a run, ready for JSON without NaN or infinity.

    ``extrapolated``: share of the iteration time that the profile's measurements do not cover.
    ``wall_s``: how long the run itself took on this machine. ``seats``: most requests that one replica
    runs at once.
    """
    metrics = request_metrics(tables.requests)
    return {
        "scenario": scenario_name,
        "seed": seed,
        "policy": policy,
        "model": model,
        "hardware": hardware,
        "replicas": replicas_seen(tables) if replicas is None else replicas,
        "profile": {"name": profile.name, "kind": profile.kind, "extrapolated": float(extrapolated)},
        "requests": counts(tables),
        "duration_s": duration_ns(tables) / NS_PER_S,
        "iterations": int(tables.iterations["repeats"].sum()),
        "throughput": throughput(tables),
        "ttft_ms": distribution_ms(metrics.ttft_ns),
        "tpot_ms": distribution_ms(metrics.tpot_ns),
        "itl_ms": pooled_itl_ms(tables.gap_ns, tables.gap_rows),
        "e2e_ms": distribution_ms(metrics.e2e_ns),
        "normalized_ms_per_token": distribution_ms(metrics.normalized_ns),
        "queue_ms": distribution_ms(metrics.queue_ns),
        "slo": slo_summary(tables, slo),
        "batch": batch_summary(tables.iterations) | {"seats": seats},
        "padding_waste": padding_summary(tables.iterations),
        "kv": kv_summary(tables, replicas),
        "tokens": token_counts(tables.requests),
        **sharing_summary(tables),
        "simulation": {"wall_s": wall_s, "requests_per_wall_s": _ratio(len(metrics.ttft_ns), wall_s)},
    }


def token_counts(requests: Columns) -> dict[str, int]:
    """Tokens over all offered requests: of the prompts, generated, and taken from the prefix cache."""
    names = {"prompt": "prompt_tokens", "output": "output_tokens", "cached": "cached_tokens"}
    return {name: int(requests[column].sum()) for name, column in names.items()}
