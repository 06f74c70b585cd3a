"""The page of a comparison: complete and harmless."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from plotly.offline import get_plotlyjs

from simulator.charts import log_axis
from simulator.compare import curves_of
from simulator.compare_report import compare_page
from simulator.comparison import Comparison, Outcome
from tests.simulator.run_examples import NEVER, random_run, run_of, summary_of
from tests.simulator.test_report import ATTACK, Reader


def outcome_of(name: str, seed: int = 1, **values: str) -> Outcome:
    tables = random_run(200, seed)
    return Outcome(name, values, (summary_of(tables, policy=name),), curves_of(tables))


def page_of(*outcomes: Outcome, title: str = "chat") -> str:
    """The page without plotly's own code, so that what is looked for is ours."""
    comparison = Comparison(title, outcomes, 1, 0)
    text = compare_page(comparison, [(outcome.name, f"name: {outcome.name}") for outcome in outcomes])
    return text.replace(get_plotlyjs(), "")


def figures(text: str) -> dict[str, dict]:  # type: ignore[type-arg]
    found = re.findall(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', text, re.S)
    return {name: json.loads(data) for name, data in found}


def test_every_alternative_is_drawn_over_the_others() -> None:
    drawn = figures(page_of(outcome_of("a", 1), outcome_of("b", 2), outcome_of("c", 3)))
    assert list(drawn) == ["frontier", "frontier-per-token", "ttft", "tpot", "itl", "e2e"]
    for name in ("ttft", "tpot", "itl", "e2e"):
        lines = drawn[name]["data"]
        assert [line["name"] for line in lines] == ["a", "b", "c"]
        assert len({json.dumps(line["line"]) for line in lines}) == 3


def test_many_alternatives_still_look_different() -> None:
    outcomes = [replace(outcome_of("a"), name=f"alternative {number}") for number in range(64)]
    lines = figures(page_of(*outcomes))["ttft"]["data"]
    assert len({(line["line"]["color"], line["line"]["dash"]) for line in lines}) == 64


def test_alternatives_that_differ_only_in_load_are_joined() -> None:
    rate = "workload.arrivals.rate_per_s"
    outcomes = [
        outcome_of(f"{policy} {load}", **{"engine.policy": policy, rate: load})
        for policy in ("static", "orca")
        for load in ("1", "2", "4")
    ]
    *_, lowest, highest, _frontier = lines = figures(page_of(*outcomes))["frontier-per-token"]["data"]
    assert [line["name"] for line in lines] == ["static", "orca", "frontier (mean)"]
    assert lowest["text"] == ["static 1", "static 2", "static 4"]
    assert len(highest["x"]) == 3


def test_what_the_user_wrote_is_text() -> None:
    attacked = Reader(
        page_of(
            replace(outcome_of(ATTACK), notes=(ATTACK,)),
            outcome_of("b"),
            Outcome("c", reason=ATTACK),
            title=ATTACK,
        )
    )
    text = page_of(
        replace(outcome_of("a"), notes=("no",)), outcome_of("b"), Outcome("c", reason="no"), title="no"
    )
    assert [tag for tag, _ in attacked.tags] == [tag for tag, _ in Reader(text).tags]
    page = page_of(outcome_of(ATTACK), outcome_of("b"))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    for figure in figures(page).values():
        for trace in figure["data"]:
            assert "<" not in trace["name"]
            assert "<script" not in json.dumps(trace)


def test_nothing_is_fetched_and_every_chart_has_a_label_and_a_table() -> None:
    text = page_of(outcome_of("a", 1), outcome_of("b", 2), Outcome("c", reason="does not fit"))
    reader = Reader(text)
    assert not any(name in attributes for _, attributes in reader.tags for name in ("src", "href", "data"))
    charts = [attributes for attributes in reader.named("div") if attributes.get("class") == "chart"]
    assert len(charts) == 6
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
    ids = [str(attributes["id"]) for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert "c cannot run: does not fit" in text


def test_alternatives_that_answer_nobody_still_have_a_page() -> None:
    tables = run_of([NEVER | {"status": 1}], kv_blocks=0)
    outcome = Outcome("a", summaries=(summary_of(tables),), curves=curves_of(tables))
    text = page_of(outcome, outcome)
    assert figures(text) == {}
    ours = re.sub(r'(?<=id="plotly">)[^<]*', "", text)
    assert "NaN" not in ours


@pytest.mark.parametrize(
    ("lowest", "highest", "axis"),
    [
        (7.0, 8.0, {"type": "linear"}),
        (2.0, 9.0, {"type": "log", "dtick": "D1"}),
        (1.0, 1000.0, {"type": "log", "dtick": "D2"}),
        (1.0, 1e5, {"type": "log", "dtick": 1}),
        (0.0, 5.0, {"type": "log", "dtick": 1}),
    ],
)
def test_an_axis_has_several_numbers_but_no_crowd(
    lowest: float, highest: float, axis: dict[str, object]
) -> None:
    assert log_axis(lowest, highest) == axis
