"""A run's summary in plain words: the same sentences and units on the terminal and on the page."""

from __future__ import annotations

from simulator.metrics import Summary

LATENCIES = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "itl_ms": "ITL",
    "e2e_ms": "E2E",
    "queue_ms": "Queue",
}
MEANINGS = {
    "ttft_ms": "time to first token",
    "tpot_ms": "time per output token",
    "itl_ms": "inter-token latency, all tokens pooled",
    "e2e_ms": "end to end",
    "queue_ms": "waiting for the first iteration",
}
KINDS = {
    "measured": "measured on this hardware with ServeTwin's own kernels",
    "imported": "fitted to public measurements",
    "benchmark": "a load tool measured a real server",
    "live": "every time was measured in this run; nothing was simulated",
    "roofline": "UNCALIBRATED: a roofline of data-sheet numbers; absolute times may be far off",
}
DASH = "–"


def milliseconds(value: float | None) -> str:
    """Three significant digits, in the unit that a reader would choose."""
    if value is None:
        return DASH
    for limit, divisor, unit in ((0.9995, 1e-3, "µs"), (999.5, 1.0, "ms"), (599_500.0, 1e3, "s")):
        if value < limit or value == 0:
            return f"{three_digits(value / divisor)} {unit}" if value else "0 ms"
    return f"{three_digits(value / 60e3)} min"


def three_digits(value: float | None) -> str:
    """1234567 as 1,234,567; 123.4 as 123; 1.2345 as 1.23; 0.012345 as 0.0123."""
    if value is None:
        return DASH
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.995 or not value else f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share as a percentage that never rounds up to a perfect 100 % nor down to a perfect 0 %."""
    if share is None:
        return DASH
    hundred = 100 * share
    if 99.9 < hundred < 100:
        return f"{min(hundred, 99.99):.2f} %"
    if 0 < hundred < 0.1:
        return "< 0.1 %"
    return f"{hundred:.0f} %" if hundred in {0.0, 100.0} else f"{hundred:.1f} %"


def seconds(value: float | None) -> str:
    """A duration given in seconds."""
    return milliseconds(None if value is None else 1e3 * value)


def headline(summary: Summary) -> str:
    """The answer in a sentence or two: how much was served, how fast, and whether that was good enough."""
    requests, rates = summary["requests"], summary["throughput"]
    if not requests["completed"]:
        return f"None of {_plural(requests['offered'], 'request')} completed."
    served = (
        f"{requests['completed']:,} of {_plural(requests['offered'], 'request')} completed in "
        f"{seconds(summary['duration_s'])}: {three_digits(rates['requests_per_s'])} requests/s, "
        f"{three_digits(rates['output_tokens_per_s'])} output tokens/s."
    )
    return " ".join(part for part in (served, _tail(summary), _verdict(summary)) if part)


def _tail(summary: Summary) -> str:
    tails = [
        f"{LATENCIES[name]} p99 {milliseconds(summary[name]['p99'])}"
        for name in ("ttft_ms", "tpot_ms")
        if summary[name]["p99"]  # TPOT is 0 where answers come all at once: nothing to boast of
    ]
    return f"{', '.join(tails)}." if tails else ""


def _verdict(summary: Summary) -> str:
    attainment = summary["slo"]["attainment"]
    if attainment is None:
        return ""
    return f"{percent(attainment)} of the requests offered met the SLO ({slo_words(summary)})."


def slo_words(summary: Summary) -> str:
    """The promises in words: ``TTFT <= 200 ms, TPOT <= 50 ms``."""
    targets = summary["slo"]["targets"].items()
    return ", ".join(f"{LATENCIES[name]} ≤ {limit:,g} ms" for name, limit in targets)


def profile_words(summary: Summary) -> str:
    """A profile's name and kind, once where they are the same word."""
    name, kind = str(summary["profile"]["name"]), str(summary["profile"]["kind"])
    return name if name == kind else f"{name} ({kind})"


def calibration(summary: Summary) -> str:
    """What stands behind the times: measured, imported or roofline, and how far beyond its range."""
    kind, beyond = str(summary["profile"]["kind"]), summary["profile"]["extrapolated"]
    told = KINDS.get(kind, kind)
    if kind == "roofline" or not beyond:
        return told
    return f"{told}; {percent(beyond)} of the time EXTRAPOLATED beyond what was measured"


def trusted(summary: Summary) -> bool:
    """Whether the times rest on measurements throughout."""
    return summary["profile"]["kind"] != "roofline" and not summary["profile"]["extrapolated"]


def losses(summary: Summary) -> list[str]:
    """How the requests that did not complete ended: ``3 rejected: prompt too long``."""
    lines = []
    for status in ("rejected", "failed", "unfinished"):
        count = summary["requests"][status]
        reasons = [group for group in summary["requests"].get("reasons", []) if group["status"] == status]
        told = "; ".join(_reason(group, count) for group in reasons)
        lines += [f"{count:,} {status}" + (f": {told}" if told else "")] if count else []
    return lines


def _reason(group: Summary, count: int) -> str:
    example = str(group["example"])
    return example if group["count"] == count else f"{example} ({group['count']:,})"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
