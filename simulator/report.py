"""A run as one HTML file that explains itself and opens anywhere, offline: the answer first, then why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from simulator.charts import latency_charts, time_charts
from simulator.fleet_words import fleet_lines, fleet_size
from simulator.limits import COLUMNS, Phase
from simulator.load_charts import load_charts
from simulator.metrics import STATUSES, Summary, replicas_seen
from simulator.page import (
    Row,
    card,
    definitions,
    grid,
    listing,
    noted,
    page_of,
    section,
    table_of,
    write_page,
)
from simulator.run_tables import RunTables
from simulator.summary_words import (
    DASH,
    LATENCIES,
    MEANINGS,
    calibration,
    headline,
    losses,
    milliseconds,
    percent,
    profile_words,
    seconds,
    three_digits,
    trusted,
)

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")


def write_report(
    path: Path,
    scenario_yaml: str,
    summary: Summary,
    tables: RunTables,
    notes: Sequence[str] = (),
    *,
    replicas: int | None = None,
    found: Sequence[Phase] = (),
    command: str = "",
) -> None:
    """Write the page, aside first and then renamed.

    ``replicas``: as in ``metrics.summarise``. ``found``: what limited the run, phase by phase.
    """
    write_page(
        path, page(scenario_yaml, summary, tables, notes, replicas=replicas, found=found, command=command)
    )


def page(
    scenario_yaml: str,
    summary: Summary,
    tables: RunTables,
    notes: Sequence[str] = (),
    *,
    replicas: int | None = None,
    found: Sequence[Phase] = (),
    command: str = "",
) -> str:
    """The whole page as text."""
    fleet = replicas or replicas_seen(tables)
    body = (
        section("Service level objectives", _slo_table(summary)) if summary["slo"]["targets"] else "",
        section("Latency", _latency_table(summary), grid(latency_charts(tables, summary))),
        section("Over time", grid((*time_charts(tables, replicas), *load_charts(tables, fleet)))),
        section("What limited it", _limits_table(found)) if found else "",
        section("Figures of the run", card(definitions(_figures(summary)))),
        section("Where the answer comes from", card(definitions(_provenance(summary))), *noted(notes)),
        section("Scenario", *_command(command), listing("Scenario", scenario_yaml)),
    )
    return page_of(str(summary["scenario"]), headline(summary), _warnings(summary), body)


def _warnings(summary: Summary) -> list[str]:
    lines = losses(summary)
    if not trusted(summary):
        lines = [f"Profile {profile_words(summary)}: {calibration(summary)}.", *lines]
    return lines


def _latency_table(summary: Summary) -> str:
    rows = [
        (word, *(milliseconds(summary[name][statistic]) for statistic in STATISTICS))
        for name, word in LATENCIES.items()
    ]
    caption = f"Latency as the client sees it; queue: {MEANINGS['queue_ms']}."
    return card(table_of(caption, ("", *STATISTICS), rows))


def _slo_table(summary: Summary) -> str:
    slo = summary["slo"]
    rows = [
        (LATENCIES[name], f"≤ {limit:,g} ms", percent(slo["met"][name]), milliseconds(summary[name]["p99"]))
        for name, limit in slo["targets"].items()
    ]
    rows.append(("All of them", "", percent(slo["attainment"]), ""))
    goodput = f"{three_digits(slo['goodput_requests_per_s'])} requests/s keep every promise"
    caption = f"Shares are of all requests offered; what did not complete is a miss. {goodput}."
    return card(table_of(caption, ("", "promised", "kept by", "p99"), rows))


def _limits_table(found: Iterable[Phase]) -> str:
    caption = (
        "By quarters of the time in which requests arrived, and after it. Rows, step and KV are means over "
        "the busy time; waiting is the mean queue of a replica; reading is the share of the busy time in "
        "iterations that move bytes for longer than they calculate, by data sheet."
    )
    return card(table_of(caption, COLUMNS, (phase.row for phase in found)))


def _command(command: str) -> Iterable[str]:
    if command:
        yield listing("Command", command)


def _figures(summary: Summary) -> Iterable[Row]:
    requests, rates, batch, kv = (summary[name] for name in ("requests", "throughput", "batch", "kv"))
    yield (
        "Requests",
        ", ".join(
            f"{requests[name]:,} {name}" for name in STATUSES if requests[name] or not requests["offered"]
        ),
    )
    yield "Duration", f"{seconds(summary['duration_s'])}, first arrival to last completion"
    yield (
        "Throughput",
        (
            f"{three_digits(rates['requests_per_s'])} requests/s, "
            f"{three_digits(rates['output_tokens_per_s'])} output tokens/s, "
            f"{three_digits(rates['total_tokens_per_s'])} tokens/s with prompts"
        ),
    )
    yield (
        "Batch",
        f"{three_digits(batch['mean_rows'])} rows on average, {batch['max_rows'] or DASH} at most",
    )
    yield "Iterations", f"{summary['iterations']:,}"
    yield from (("Replicas", line) for line in (*fleet_size(summary), *fleet_lines(summary)))
    yield "Preemptions", f"{requests['preemptions']:,}"
    used = (
        f"{percent(kv['mean_utilisation'])} used on average, {percent(kv['peak_utilisation'])} at the peak"
    )
    yield "KV cache", f"{kv['blocks']:,} blocks, {used}" if kv["blocks"] else "none modelled"
    yield "Prompt tokens reused", f"{summary['tokens']['cached']:,} of {summary['tokens']['prompt']:,}"
    waste = {name: percent(share) for name, share in summary["padding_waste"].items()}
    yield "Padding", f"{waste['total']} of the work (prompts {waste['prefill']}, decodes {waste['decode']})"


def _provenance(summary: Summary) -> Iterable[Row]:
    yield "Model", str(summary["model"])
    yield "Hardware", str(summary["hardware"])
    yield "Policy", str(summary["policy"])
    yield "Profile", f"{profile_words(summary)}: {calibration(summary)}"
    yield "Seed", str(summary["seed"])
