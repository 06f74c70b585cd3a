from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from simulator.errors import UserError
from simulator.report import page, write_report
from simulator.run_tables import RunTables
from tests.simulator.run_examples import NEVER, Profile, Slo, random_run, run_of, summary_of

ATTACK = "<script>alert('owned')</script><img src=x onerror=alert(1)>"


def page_of(
    tables: RunTables, yaml: str = "name: chat\n", notes: tuple[str, ...] = (), **facts: object
) -> str:
    """The page without plotly's own code, so that what is looked for is ours."""
    text = page(yaml, summary_of(tables, **facts), tables, notes)
    before, packed, after = re.split(r'(?<=id="plotly">)([^<]*)', text, maxsplit=1)
    assert gzip.decompress(b64decode(packed)).decode() == get_plotlyjs()
    return before + after


class Reader(HTMLParser):
    """Collects tags with their attributes, and insists that they are balanced."""

    void = ("meta", "br", "img", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_nothing_is_fetched() -> None:
    text = page_of(random_run(200), slo=Slo(200, 50))
    for tag, attributes in Reader(text).tags:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert name not in attributes, (tag, name)
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src 'none'" in text  # and a browser would refuse to


def test_what_the_user_wrote_is_text() -> None:
    tables = run_of([NEVER | {"status": 1}], reasons={0: ATTACK})
    harmless = Reader(page_of(run_of([NEVER | {"status": 1}], reasons={0: "no"}), notes=("no",)))
    text = page_of(
        tables,
        yaml=ATTACK,
        notes=(ATTACK,),
        scenario_name=ATTACK,
        model=ATTACK,
        hardware=ATTACK,
        policy=ATTACK,
        profile=Profile(ATTACK, ATTACK),
    )
    attacked = Reader(text)
    assert [tag for tag, _ in attacked.tags] == [tag for tag, _ in harmless.tags]
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_a_dollar_in_a_name_is_not_a_placeholder() -> None:
    assert "$plotly $ ${title}" in page_of(run_of(), scenario_name="$plotly $ ${title}")


def test_every_chart_has_a_heading_a_label_and_a_table() -> None:
    reader = Reader(page_of(random_run(300)))
    charts = [attributes for attributes in reader.named("div") if attributes.get("class") == "chart"]
    names = " ".join(str(chart["data-figure"]) for chart in charts)
    assert names == "ttft tpot itl e2e tokens rates batch kv queue ttft-over-time replicas"
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
    assert len(reader.named("details")) == len(charts)
    ids = [str(attributes["id"]) for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = [attributes.get("aria-labelledby") for _, attributes in reader.tags]
    assert {name for name in labelled if name} <= set(ids)
    assert reader.named("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in reader.named("meta")


def test_the_promise_is_drawn_and_tabled() -> None:
    text = page_of(random_run(300), slo=Slo(ttft_ms=1234))
    assert "Service level objectives" in text
    assert "≤ 1,234 ms" in text
    assert figures(text)["ttft"]["data"][1]["x"] == [1234, 1234, 1234]
    assert len(figures(text)["tpot"]["data"]) == 1
    assert "Service level objectives" not in page_of(random_run(300))


def figures(text: str) -> dict[str, dict]:  # type: ignore[type-arg]
    found = re.findall(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', text, re.S)
    return {name: json.loads(data) for name, data in found}


@pytest.mark.parametrize("tables", [run_of(), run_of([NEVER | {"status": 1}], kv_blocks=0), run_of([{}])])
def test_a_run_with_next_to_nothing_still_has_a_page(tables: RunTables) -> None:
    text = page_of(tables, slo=Slo(ttft_ms=100))
    assert "NaN" not in text
    assert "nan" not in re.sub(r"\w*nan\w+|\w+nan\w*", "", text)
    assert list(figures(text))[-1] == "queue"


def test_answers_that_come_all_at_once_have_no_token_times_to_draw() -> None:
    at_once = {"output_tokens": 5, "first_token_ns": 9, "finished_ns": 9}
    text = page_of(run_of([at_once, at_once]))
    assert list(figures(text))[:3] == ["ttft", "e2e", "tokens"]
    assert "TPOT p99" not in text


def test_uncalibrated_times_are_announced() -> None:
    text = page_of(random_run(20), profile=Profile("roofline", "roofline"), extrapolated=1.0)
    assert '<div class="warning"><p>Profile roofline: UNCALIBRATED' in text
    assert "EXTRAPOLATED" in page_of(random_run(20), extrapolated=0.5)
    assert "EXTRAPOLATED" not in page_of(random_run(20))


def test_the_page_stays_small_however_long_the_run(tmp_path: Path) -> None:
    tables = random_run(20_000)
    write_report(tmp_path / "new" / "report.html", "name: chat\n", summary_of(tables), tables)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]
    assert (tmp_path / "new" / "report.html").stat().st_size < 2_500_000
    assert len(page_of(tables)) < 200_000


def test_a_page_that_cannot_be_written_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match="the report cannot be written"):
        write_report(tmp_path / "taken" / "report.html", "", summary_of(run_of()), run_of())
