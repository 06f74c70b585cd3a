"""The parts of a self-contained HTML page, and its writing: frame, sections, tables and charts.

The page's frame, style and script are in ``report.html``; everything that comes from the user
passes through ``html.escape`` or JSON on its way into it.
"""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from string import Template

from simulator.charts import Chart
from simulator.errors import UserError
from simulator.whole_files import write_whole

Row = Sequence[str]


def write_page(path: Path, text: str) -> None:
    """Write a page, aside first and then renamed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise UserError(f"{path}: the report cannot be written: {error.strerror}") from error


def page_of(title: str, headline: str, warnings: Iterable[str], body: Iterable[str]) -> str:
    """The whole page as text: the answer first, then the warnings and the sections of the body."""
    return Template(files("simulator").joinpath("report.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        headline=escape(headline),
        warning=_warning(warnings),
        body="\n".join(body),
        plotly=_packed_plotly(),
    )


def _warning(lines: Iterable[str]) -> str:
    told = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f'<div class="warning">{told}</div>' if told else ""


def _packed_plotly() -> str:
    """The drawing library, compressed to two fifths; every browser since 2023 unpacks it by itself."""
    from plotly.offline import get_plotlyjs

    return b64encode(gzip.compress(get_plotlyjs().encode(), 6, mtime=0)).decode("ascii")


def section(title: str, *parts: str) -> str:
    """Parts under a heading; the title is ours, the parts are HTML."""
    anchor = title.lower().replace(" ", "-")
    return (
        f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{title}</h2>\n'
        + "\n".join(parts)
        + "\n</section>"
    )


def card(content: str) -> str:
    """HTML in a frame."""
    return f'<div class="card">{content}</div>'


def noted(notes: Sequence[str]) -> list[str]:
    """Notes under a heading of their own, if there are any."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return [f"<h3>Notes</h3>\n<ul>{items}</ul>"] if notes else []


def definitions(rows: Iterable[Row]) -> str:
    """Terms and what is told about each; rows that follow each other with the same term share it."""
    items = (
        f"<dt>{escape(term)}</dt>" + "".join(f"<dd>{escape(told)}</dd>" for _, told in about)
        for term, about in groupby(rows, itemgetter(0))
    )
    return f"<dl>{''.join(items)}</dl>"


def listing(label: str, text: str) -> str:
    """Text as it stands, in a frame of its own that scrolls sideways."""
    return card(f'<pre role="group" aria-label="{escape(label)}" tabindex="0">{escape(text)}</pre>')


def grid(charts: Iterable[Chart], kind: str = "grid") -> str:
    """Charts side by side where there is room; ``grid tall`` leaves room for many names."""
    return f'<div class="{kind}">{"".join(_figure(chart) for chart in charts)}</div>'


def _figure(chart: Chart) -> str:
    """One chart: its heading, the drawing, and the same figures as a table for those who cannot see it."""
    name, title, told = chart.name, escape(chart.title), escape(chart.told)
    data = chart.figure_json.replace("<", "\\u003c")
    figures = table_of(chart.title, chart.columns, chart.rows)
    return f"""<figure aria-labelledby="{name}-title">
<figcaption><h3 id="{name}-title">{title}</h3><p>{told}</p></figcaption>
<div class="chart" role="img" aria-label="{title}: {told}" data-figure="{name}" data-title="{title}"></div>
<script type="application/json" id="{name}">{data}</script>
<details><summary>Figures of this chart</summary>{figures}</details>
</figure>"""


def table_of(caption: str, columns: Row, rows: Iterable[Row]) -> str:
    """A table that scrolls sideways, by keys too; the first cell of each row names it."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    lines = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    told = f"<caption><span>{escape(caption)}</span></caption>"
    table = f"{told}<thead><tr>{head}</tr></thead><tbody>{lines}</tbody>"
    name = f'role="group" aria-label="{escape(caption)}" tabindex="0"'
    return f'<div class="scroll" {name}><table class="wide">{table}</table></div>'


def _cells(row: Row) -> str:
    first, *others = row
    name = f'<th scope="row"><span>{escape(first)}</span></th>'
    return name + "".join(f"<td>{escape(cell)}</td>" for cell in others)
