"""Which figures of a summary are worth comparing, in which order, and which way is better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from simulator.metrics import Summary
from simulator.paired import Difference
from simulator.summary_words import DASH, milliseconds, percent, three_digits

FACTOR = 10  # from this many times the first on, a difference is told as a factor


class Measure(NamedTuple):
    """One figure. ``key``: its place in the summary; shares differ by points, others by per cent."""

    key: str
    label: str
    better: Literal["higher", "lower", "neither"]
    words: Callable[[float | None], str]

    def best(self, values: Sequence[float | None]) -> float | None:
        """The best of several values; None where all are equal, or where no way is better.

        A latency of zero is none: it is what TPOT and ITL become where an answer comes all at once.
        """
        latency = self.words is milliseconds
        known = [value for value in values if value is not None and (value or not latency)]
        if self.better == "neither" or len(set(known)) < 2:
            return None
        return max(known) if self.better == "higher" else min(known)

    def difference_words(self, difference: Difference | None, first: float | None) -> str:
        """A difference as people compare: ``+12.3 ±0.8 %``, ``x17.5``, ``+1.5 pt`` or ``=``."""
        if difference is None or first is None:
            return ""
        if not any(difference):
            return "="
        share = self.words is percent
        if not (share or first):
            return ""
        if share:
            return _plus_minus(difference, 100, "pt")
        if first > 0 and difference.mean / first > FACTOR - 1:
            return _times(difference, first)
        return _plus_minus(difference, 100 / first, "%")


def _plus_minus(difference: Difference, scale: float, unit: str) -> str:
    half = "" if difference.half_width is None else f" ±{_digits(scale * difference.half_width)}"
    return f"{_digits(scale * difference.mean, '+')}{half} {unit}"


def _times(difference: Difference, first: float) -> str:
    """A large difference as a multiple of the first."""
    half = "" if difference.half_width is None else f" ±{_digits(difference.half_width / first)}"
    return f"x{_digits(1 + difference.mean / first)}{half}"


def _digits(value: float, sign: str = "") -> str:
    return f"{value:{sign},.0f}" if abs(value) >= 99.95 else f"{value:{sign}.1f}"


def whole(value: float | None) -> str:
    """A count, or a mean of counts."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


MEASURES = (
    Measure("throughput.requests_per_s", "Requests/s", "higher", three_digits),
    Measure("throughput.output_tokens_per_s", "Output tokens/s", "higher", three_digits),
    Measure("ttft_ms.p50", "TTFT p50", "lower", milliseconds),
    Measure("ttft_ms.p99", "TTFT p99", "lower", milliseconds),
    Measure("tpot_ms.p50", "TPOT p50", "lower", milliseconds),
    Measure("tpot_ms.p99", "TPOT p99", "lower", milliseconds),
    Measure("itl_ms.p99", "ITL p99", "lower", milliseconds),
    Measure("e2e_ms.p50", "E2E p50", "lower", milliseconds),
    Measure("e2e_ms.p99", "E2E p99", "lower", milliseconds),
    Measure("normalized_ms_per_token.mean", "E2E per token", "lower", milliseconds),
    Measure("queue_ms.p99", "Queue p99", "lower", milliseconds),
    Measure("slo.attainment", "SLO met", "higher", percent),
    Measure("slo.goodput_requests_per_s", "Goodput/s", "higher", three_digits),
    Measure("requests.completed", "Completed", "higher", whole),
    Measure("requests.preemptions", "Preemptions", "lower", whole),
    Measure("padding_waste.total", "Padding waste", "lower", percent),
    Measure("batch.mean_rows", "Batch, mean", "neither", three_digits),
    Measure("kv.mean_utilisation", "KV cache used", "neither", percent),
    Measure("profile.extrapolated", "Extrapolated", "lower", percent),
)


def measured(summary: Summary, key: str) -> float | None:
    """A figure of a summary by its dotted key; None where it is undefined or missing."""
    value: object = summary
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return float(value) if isinstance(value, (int, float)) else None
