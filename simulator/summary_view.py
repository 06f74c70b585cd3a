"""The summary of a run on the terminal: complete at 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.fleet_words import fleet_lines, replica_count
from simulator.metrics import Summary
from simulator.summary_words import (
    LATENCIES,
    calibration,
    headline,
    losses,
    milliseconds,
    percent,
    profile_words,
    seconds,
    slo_words,
    three_digits,
    trusted,
)

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")


def summary_view(summary: Summary, notes: Sequence[str] = ()) -> RenderableType:
    """The answer in a sentence, the latencies, the other figures, and what stands behind them."""
    return Group(
        Text(str(summary["scenario"]), style="bold"),
        Text(headline(summary)),
        _latencies(summary),
        _figures(summary),
        *_notes(notes),
    )


def _latencies(summary: Summary) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("Latency")
    for statistic in STATISTICS:
        table.add_column(statistic, justify="right", no_wrap=True)
    for name, word in LATENCIES.items():
        table.add_row(word, *(milliseconds(summary[name][statistic]) for statistic in STATISTICS))
    return table


def _figures(summary: Summary) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, told in _lines(summary):
        table.add_row(Text(label, style="bold"), told)
    return table


def _lines(summary: Summary) -> Iterable[tuple[str, Text]]:
    yield "Throughput", Text(_throughput(summary))
    yield "Requests", Text(_requests(summary))
    yield from (("", Text(line, style="red")) for line in losses(summary))
    if summary["slo"]["targets"]:
        yield "SLO", Text(_slo(summary))
    yield "Batch", Text(_batch(summary))
    if summary["padding_waste"]["total"]:
        yield "Padding", Text(_padding(summary))
    yield "KV cache", Text(_kv(summary))
    yield "Served by", Text(_served_by(summary))
    yield from (("", Text(line)) for line in fleet_lines(summary))
    style = "" if trusted(summary) else "bold yellow"
    yield "Profile", Text(f"{profile_words(summary)}: {calibration(summary)}", style=style)
    yield "Ran live" if summary["profile"]["kind"] == "live" else "Simulated", Text(_speed(summary))


def _throughput(summary: Summary) -> str:
    rates = {name: three_digits(rate) for name, rate in summary["throughput"].items()}
    tokens = f"{rates['output_tokens_per_s']} output tokens/s, {rates['total_tokens_per_s']} with prompts"
    return f"{rates['requests_per_s']} requests/s{_offered(summary)}, {tokens}"


def _offered(summary: Summary) -> str:
    """Where requests were offered faster than they were answered: the end of the run is the queue's."""
    offered, answered = (
        summary["throughput"]["offered_requests_per_s"],
        summary["throughput"]["requests_per_s"],
    )
    if offered is None or offered <= answered * 1.01:
        return ""
    return f" (arrived at {three_digits(offered)}, then worked off)"


def _served_by(summary: Summary) -> str:
    count = replica_count(summary)
    copies = f"{count} x " if count != "1" else ""
    return f"{copies}{summary['model']} on {summary['hardware']}, {summary['policy']}"


def _requests(summary: Summary) -> str:
    requests = summary["requests"]
    told = f"{requests['completed']:,} completed of {requests['offered']:,}"
    preemptions = requests["preemptions"]
    return told + (f", {preemptions:,} preemptions" if preemptions else "")


def _slo(summary: Summary) -> str:
    slo = summary["slo"]
    goodput = three_digits(slo["goodput_requests_per_s"])
    return f"{slo_words(summary)}: met by {percent(slo['attainment'])}, goodput {goodput} requests/s"


def _batch(summary: Summary) -> str:
    batch = summary["batch"]
    most = "" if batch["max_rows"] is None else f", at most {batch['max_rows']:,}"
    most += f" of {batch['seats']:,} seats" if batch["seats"] else ""
    return f"{three_digits(batch['mean_rows'])} rows on average{most}; {summary['iterations']:,} iterations"


def _padding(summary: Summary) -> str:
    waste = {name: percent(share) for name, share in summary["padding_waste"].items()}
    return f"{waste['total']} of the work (prompts {waste['prefill']}, decodes {waste['decode']})"


def _kv(summary: Summary) -> str:
    kv, cached = summary["kv"], summary["tokens"]["cached"]
    if not kv["blocks"]:
        return "none modelled"
    told = (
        f"{percent(kv['mean_utilisation'])} used on average, {percent(kv['peak_utilisation'])} at the peak"
    )
    each = " each" if summary["replicas"] > 1 else ""
    return f"{told}, of {kv['blocks']:,} blocks{each}" + (
        f"; {cached:,} prompt tokens reused" if cached else ""
    )


def _speed(summary: Summary) -> str:
    simulation = summary["simulation"]
    rate = simulation["requests_per_wall_s"]
    speed = "" if rate is None else f", {three_digits(rate)} requests per second"
    return f"in {seconds(simulation['wall_s'])}{speed}; seed {summary['seed']}"


def _notes(notes: Sequence[str]) -> Iterable[Text]:
    return [Text(f"note: {note}", style="yellow") for note in notes]
