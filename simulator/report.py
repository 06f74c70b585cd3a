"""A run as one HTML file that explains itself and opens anywhere, offline: the answer first, then why.

The page's frame, style and script are in ``report.html``; everything that comes from the user
passes through ``html.escape`` or JSON on its way into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from simulator.charts import Chart, latency_charts, time_charts
from simulator.errors import UserError
from simulator.metrics import STATUSES, Summary
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
Row = Sequence[str]


def write_report(
    path: Path,
    scenario_yaml: str,
    summary: Summary,
    tables: RunTables,
    notes: Sequence[str] = (),
    *,
    replicas: int | None = None,
) -> None:
    """Write the page, aside first and then renamed. ``replicas``: as in ``metrics.summarise``."""
    text = page(scenario_yaml, summary, tables, notes, replicas=replicas)
    temporary = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path}: the report cannot be written: {error.strerror}") from error


def page(
    scenario_yaml: str,
    summary: Summary,
    tables: RunTables,
    notes: Sequence[str] = (),
    *,
    replicas: int | None = None,
) -> str:
    """The whole page as text."""
    from plotly.offline import get_plotlyjs

    body = (
        _section("Service level objectives", _slo_table(summary)) if summary["slo"]["targets"] else "",
        _section("Latency", _latency_table(summary), _grid(latency_charts(tables, summary))),
        _section("Over time", _grid(time_charts(tables, replicas))),
        _section("Figures of the run", _card(_definitions(_figures(summary)))),
        _section("Where the answer comes from", _card(_definitions(_provenance(summary))), *_notes(notes)),
        _section("Scenario", _card(f"<pre>{escape(scenario_yaml)}</pre>")),
    )
    return Template(files("simulator").joinpath("report.html").read_text(encoding="utf-8")).substitute(
        title=escape(str(summary["scenario"])),
        headline=escape(headline(summary)),
        warning=_warning(summary),
        body="\n".join(body),
        plotly=get_plotlyjs(),
    )


def _warning(summary: Summary) -> str:
    lines = losses(summary)
    if not trusted(summary):
        lines = [f"Profile {profile_words(summary)}: {calibration(summary)}.", *lines]
    return "\n".join(f'<p class="warning">{escape(line)}</p>' for line in lines)


def _section(title: str, *parts: str) -> str:
    anchor = title.lower().replace(" ", "-")
    return (
        f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{title}</h2>\n'
        + "\n".join(parts)
        + "\n</section>"
    )


def _card(content: str) -> str:
    return f'<div class="card">{content}</div>'


def _latency_table(summary: Summary) -> str:
    rows = [
        (word, *(milliseconds(summary[name][statistic]) for statistic in STATISTICS))
        for name, word in LATENCIES.items()
    ]
    caption = f"Latency as the client sees it; queue: {MEANINGS['queue_ms']}."
    return _card(_table(caption, ("", *STATISTICS), rows))


def _slo_table(summary: Summary) -> str:
    slo = summary["slo"]
    rows = [
        (LATENCIES[name], f"≤ {limit:,g} ms", percent(slo["met"][name]), milliseconds(summary[name]["p99"]))
        for name, limit in slo["targets"].items()
    ]
    rows.append(("All of them", "", percent(slo["attainment"]), ""))
    goodput = f"{three_digits(slo['goodput_requests_per_s'])} requests/s keep every promise"
    caption = f"Shares are of all requests offered; what did not complete is a miss. {goodput}."
    return _card(_table(caption, ("", "promised", "kept by", "p99"), rows))


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


def _notes(notes: Sequence[str]) -> list[str]:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return [f"<h3>Notes</h3>\n<ul>{items}</ul>"] if notes else []


def _definitions(rows: Iterable[Row]) -> str:
    return (
        "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(told)}</dd>" for term, told in rows) + "</dl>"
    )


def _grid(charts: Iterable[Chart]) -> str:
    return f'<div class="grid">{"".join(_figure(chart) for chart in charts)}</div>'


def _figure(chart: Chart) -> str:
    """One chart: its heading, the drawing, and the same figures as a table for those who cannot see it."""
    name, title, told = chart.name, escape(chart.title), escape(chart.told)
    data = chart.figure_json.replace("<", "\\u003c")
    return f"""<figure aria-labelledby="{name}-title">
<figcaption><h3 id="{name}-title">{title}</h3><p>{told}</p></figcaption>
<div class="chart" role="img" aria-label="{title}: {told}" data-figure="{name}"></div>
<script type="application/json" id="{name}">{data}</script>
<details><summary>Figures of this chart</summary>{_table(chart.title, chart.columns, chart.rows)}</details>
</figure>"""


def _table(caption: str, columns: Row, rows: Iterable[Row]) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    lines = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    told = f"<caption>{escape(caption)}</caption>" if caption else ""
    table = f"{told}<thead><tr>{head}</tr></thead><tbody>{lines}</tbody>"
    return f'<div class="scroll"><table class="wide">{table}</table></div>'


def _cells(row: Row) -> str:
    first, *others = row
    return f'<th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in others)
