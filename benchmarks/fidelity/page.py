"""The fidelity page: what was promised, what was reached, and a table for each measurement set."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median

from benchmarks.fidelity.kernel_tables import TARGET, Held, Scatter
from benchmarks.fidelity.study import Row, Study, Target, grouped, tested, verdict

VERSIONS = ("servetwin", "numpy", "scipy", "simpy", "duckdb")
MOSTLY = 0.5  # share of the time outside the measured range from which a row counts as extrapolated
UNITS = {"requests/s": "", "output tokens/s": "", "batch latency": " s"}


def document(studies: Sequence[Study], tables: Sequence[Held], scatter: Sequence[Scatter] = ()) -> str:
    """The whole page."""
    return "\n\n".join(
        [
            INTRODUCTION,
            _machine(),
            "## Targets, on configurations that nothing was fitted to",
            _verdicts(studies, tables),
            *(_section(study) for study in studies),
            _tables(tables, scatter),
        ]
    )


def _machine() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    return (
        f"Written on {datetime.now().astimezone():%d %B %Y} on {processor()}, Python "
        f"{platform.python_version()}, {versions}. "
        "Predictions do not depend on the machine."
    )


def processor() -> str:
    """What kind of processor this is, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.machine()


def _verdicts(studies: Sequence[Study], tables: Sequence[Held]) -> str:
    lines = ["| set | figure | target | reached | rows | met |", "|---|---|---|---|---|---|"]
    for study in studies:
        lines += [_verdict(study, target) for target in study.targets]
    missing = [held for held in tables if held.median > TARGET]
    worst = max(held.median for held in tables)
    lines.append(
        f"| kernel tables | left-out grid points, each operator's median | {TARGET:.0%} | {worst:.1%} "
        "at worst; "
        f"{len(missing)} of {len(tables)} operators above | {len(tables)} | {_yes(not missing)} |"
    )
    return "\n".join(lines)


def _verdict(study: Study, target: Target) -> str:
    found = verdict(study, target)
    kind = "median absolute error" if target.of == "median" else "largest error"
    title = study.title.partition(",")[0]
    return (
        f"| {title} | {target.metric}, {kind} | {target.most:.0%} | {found.reached:.1%} | {found.rows} | "
        f"{_yes(found.met)} |"
    )


def _yes(met: bool) -> str:
    return "yes" if met else "**no**"


def _section(study: Study) -> str:
    table = _every_row(study.rows) if study.each_row else _groups(study.rows)
    parts = [f"## {study.title}", study.source, study.setting, table]
    return "\n\n".join([*parts, *filter(None, (_pooled(study), study.others, study.findings))])


def _every_row(rows: Iterable[Row]) -> str:
    head = (
        "| configuration | figure | measured | ours | error | other | split | |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *(_row(row) for row in rows)])


def _row(row: Row) -> str:
    other = "" if row.other is None else f"{row.other:+.1%}"
    return (
        f"| {row.configuration} | {row.metric} | {_figure(row, row.measured)} | "
        f"{_figure(row, row.predicted)} | "
        f"{row.error:+.1%} | {other} | {row.split} | {_mark([row])} |"
    )


def _figure(row: Row, value: float) -> str:
    unit = UNITS.get(row.metric, " ms")
    return f"{value:,.0f}{unit}" if value >= 1000 else f"{value:.3g}{unit}"


def _groups(rows: Sequence[Row]) -> str:
    head = (
        "| configuration | figure | rows | median absolute error | bias (median) | largest | split | |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *(_group(*key, group) for key, group in grouped(rows).items())])


def _group(configuration: str, metric: str, split: str, rows: Sequence[Row]) -> str:
    errors = [row.error for row in rows]
    return (
        f"| {configuration} | {metric} | {len(rows)} | {median(map(abs, errors)):.1%} | "
        f"{median(errors):+.1%} | "
        f"{max(errors, key=abs):+.0%} | {split} | {_mark(rows)} |"
    )


def _mark(rows: Sequence[Row]) -> str:
    share = mean(row.extrapolated for row in rows)
    return "extrapolated" if share > MOSTLY else ""


def _pooled(study: Study) -> str:
    """All test rows of each metric together."""
    metrics = dict.fromkeys(row.metric for row in study.rows)
    found = []
    for metric in metrics:
        errors = [row.error for row in tested(study.rows, metric)]
        if errors and not study.each_row:
            found.append(
                f"{metric} {median(map(abs, errors)):.1%} (bias {median(errors):+.1%}, {len(errors)} rows)"
            )
    return f"All test rows together, median absolute error: {'; '.join(found)}." if found else ""


def _tables(tables: Sequence[Held], scatter: Sequence[Scatter]) -> str:
    head = "| profile | operator | points | median | 95th percentile |\n|---|---|---|---|---|"
    lines = [
        f"| {held.profile} | {held.operator} | {held.points} | {_above(held.median)} | {held.p95:.1%} |"
        for held in tables
    ]
    apart = "; ".join(f"{each.median:.1%} on {each.hardware} ({each.pairs} pairs)" for each in scatter)
    return "\n".join([TABLES, "", f"{SCATTER} {apart}." if apart else "", "", head, *lines])


def _above(error: float) -> str:
    return f"**{error:.1%}**" if error > TARGET else f"{error:.1%}"


INTRODUCTION = """# How far the twin is from measured engines

    python -m benchmarks.fidelity ../shared/data

writes this page (`make fidelity`). Every figure is a prediction of the same simulator beside a public
measurement; errors are (ours - measured) / measured. Where anything was fitted to a set, its configurations
are split: rows marked *fit* were seen by a fit, rows marked *test* were not, and targets count *test* rows
only. Nothing is tuned per row. *Extrapolated* rows spent most of their time outside what their profile's
source measured, or rest on a profile that was scaled from other hardware. The form of the engine terms, and
what is assumed of clients and flags, was chosen with all rows in view: test errors are blind to the
coefficients, not to that choice."""
SCATTER = (
    "The LM head cannot be predicted to 3 % on Hopper: between 32 and 256 rows it does little but read "
    "its weights, yet timings of k and of k + 1 rows in the tables themselves differ by a median of"
)
TABLES = """## Kernel tables

Errors at grid points that an operator's fit was not shown, as the shipped profiles state them (bold: above
3 %). They come from `python -m calibration.regenerate ../shared/data` (`make profiles`)."""
