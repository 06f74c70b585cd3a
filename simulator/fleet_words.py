"""A fleet in words: how each kind of replica was loaded, and what became of replicas."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.metrics import Summary
from simulator.summary_words import LATENCIES, milliseconds, percent

TOKENS = ("prompt", "output")


def fleet_lines(summary: Summary) -> Iterator[str]:
    """Nothing for a plain run."""
    for group in summary.get("groups", ()):
        yield _group(group)
    if "kv_transfer" in summary:
        moved = summary["kv_transfer"]
        prompts, tokens = moved["requests"], moved["tokens"]
        yield f"KV of {prompts:,} prompts ({tokens:,} tokens) sent from prefill to decode"
    if "availability" in summary:
        yield _availability(summary["availability"])


def fleet_size(summary: Summary) -> Iterator[str]:
    """How many replicas of what there were, unless there was one throughout."""
    count = replica_count(summary)
    if count != "1":
        yield f"{count} x {summary['model']} on {summary['hardware']}"


def replica_count(summary: Summary) -> str:
    """How many replicas served: ``8``, or ``1 to 8`` where they were started and stopped by load."""
    happened = summary.get("availability", {})
    fewest, most = (happened.get(f"{which}_replicas") for which in ("fewest", "most"))
    return f"{summary['replicas']:,}" if fewest == most else f"{fewest:,} to {most:,}"


def _group(group: Summary) -> str:
    """A request counts for who completed it, so prefill replicas have neither requests nor latencies."""
    facts = [
        f"{percent(group['request_share'])} of the requests" if "role" not in group else "",
        *(f"{count:,} {kind} tokens" for kind in TOKENS if (count := group[f"{kind}_tokens"])),
        f"busy {percent(group['busy_share'])}",
        f"KV {percent(group['kv']['mean_utilisation'])}",
        *_latencies(group),
    ]
    role = f"{group['role']}, " if "role" in group else ""
    return f"{role}{group['replicas']:,} x {group['hardware']}: {', '.join(filter(None, facts))}"


def _latencies(group: Summary) -> Iterator[str]:
    """TTFT of those that do everything; with prefill and decode apart it belongs to both, TPOT to one."""
    name = "tpot_ms" if "role" in group else "ttft_ms"
    p99 = group[name]["p99"]
    if p99 is not None:
        yield f"{LATENCIES[name]} p99 {milliseconds(p99)}"


def _availability(happened: Summary) -> str:
    told = f"{happened['mean_replicas']:.2f} replicas on average"
    for key, one, several in (
        ("failures", "failure", "failures"),
        ("retries", "request sent again", "requests sent again"),
        ("replicas_started", "started", "started"),
        ("replicas_stopped", "stopped", "stopped"),
    ):
        count = happened[key]
        if count:
            told += f", {count:,} {one if count == 1 else several}"
    return told
