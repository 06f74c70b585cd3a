"""A validation as people read it: on an 80-column terminal and as a page."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from simulator.errors import UserError
from simulator.validation import Validation
from simulator.validation_errors import as_json, errors
from simulator.validation_report import validation_page, write_validation_report
from simulator.validation_view import validation_view
from simulator.validation_words import share, signed
from tests.simulator.test_report import ATTACK, Reader
from tests.simulator.validation_examples import POISSON, validated


def shown(validation: Validation, max_error: float | None = None) -> str:
    console = Console(file=StringIO(), width=80)
    console.print(validation_view(validation, errors(validation, max_error), max_error, ["a note"]))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_table_holds_at_80_columns(tmp_path: Path) -> None:
    text = shown(validated(tmp_path, predicted=40.0, drifts=[0.25, 1.0, 7.0]), 0.05)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_what_a_wrong_profile_looks_like(tmp_path: Path) -> None:
    text = flat(shown(validated(tmp_path, predicted=1.1), 0.05))
    assert re.search(r"TPOT mean \S+ \S+ 0.0 % \S+ \S+ \+10.0 % \+10.0 % ! 0.0 %", text)
    assert "Machine took 1.00, 1.00, 1.00 times as long for the reference iterations as when" in text
    assert "Cost +10.0 % without drift (+10.0 % with it)" in text
    assert "Composition every run: identical in all" in text
    assert "FAILED: 11 of 14 checked figures are off by more than 5 %" in text
    assert "TPOT mean +10.0 % without drift, allowed are 5.0 %" in text
    assert "note: a note" in text


def test_what_a_slow_machine_looks_like(tmp_path: Path) -> None:
    text = flat(shown(validated(tmp_path, drifts=[1.5] * 3), 0.05))
    assert "Machine took 1.50, 1.50, 1.50 times as long" in text
    assert "Cost 0.0 % without drift (-33.3 % with it)" in text
    assert "PASSED: all 14 checked figures" in text


def test_a_restless_machine_stretches_the_limits_and_it_says_so(tmp_path: Path) -> None:
    text = flat(shown(validated(tmp_path, drifts=[1.0, 1.0, 1.5]), 0.05))
    assert re.search(
        r"spread without drift, which is the limit of 1[0-4] of them: at most \d\d.\d %, of", text
    )
    calm = flat(shown(validated(tmp_path), 0.05))
    assert "which is the limit" not in calm


def test_without_recorded_times_it_says_what_is_not_known(tmp_path: Path) -> None:
    text = flat(shown(validated(tmp_path, recorded=())))
    assert "took 1.00, 1.00, 1.00 times this session's median" in text
    assert "the profile holds no time of them" in text
    assert "Nothing was checked" in text


def test_the_first_difference_is_told(tmp_path: Path) -> None:
    text = flat(shown(validated(tmp_path, [POISSON], predicted=2.0)))
    assert re.search(
        r"iteration \d+ \(live at \d\.\d{4} s, twin at \d\.\d{4} s\) is the first to differ", text
    )
    assert re.search(r"requests seen by then: \d+ live, \d+ twin", text)
    assert "timing does not explain" not in text


def test_a_scenario_that_nobody_can_serve_is_still_told(tmp_path: Path) -> None:
    lengths = "workload.lengths={fixed: {prompt: 120, output: 20}}"
    validation = validated(tmp_path, [lengths])
    assert "live: 40 rejected" in flat(shown(validation, 0.05))
    assert json.dumps(as_json(validation, errors(validation, 0.05), 0.05), allow_nan=False)


def test_the_page_fetches_nothing_and_lays_the_runs_over_each_other(tmp_path: Path) -> None:
    validation = validated(tmp_path, [POISSON, f"name={json.dumps(ATTACK)}"], predicted=1.1)
    text = validation_page(validation, errors(validation, 0.05), 0.05, [ATTACK])
    assert ATTACK not in text
    for _, attributes in Reader(text).tags:
        assert not {"src", "href"} & attributes.keys()
    drawn = re.findall(r'<script type="application/json" id="(\w+)">(.*?)</script>', text, re.S)
    assert [name for name, _ in drawn] == ["ttft", "tpot", "itl", "e2e"]
    for _, data in drawn:
        names = [line["name"] for line in json.loads(data)["data"]]
        assert names == ["twin", "live 1", "live 2", "live 3", "twin at machine speed"]


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    validation = validated(tmp_path)
    with pytest.raises(UserError, match="the report cannot be written"):
        write_validation_report(tmp_path / "fake.yaml" / "page.html", validation, errors(validation), None)


@pytest.mark.parametrize(
    ("error", "word"),
    [(None, "–"), (0.0, "0 %"), (-0.0312, "-3.1 %"), (0.9996, "+100 %"), (1.2, "+120 %")],
)
def test_errors_in_words(error: float | None, word: str) -> None:
    assert signed(error) == word
    if error is not None and error > 0:
        assert share(error) == word[1:]


def keys_of(data: object) -> set[str]:
    """Every name in a document, but those of figures, of iteration fields and of a run's own summary."""
    if isinstance(data, list):
        return {key for item in data for key in keys_of(item)}
    if not isinstance(data, dict):
        return set()
    own = {key for key in data if "." not in key}
    deeper = [value for key, value in data.items() if key not in ("summaries", "metrics", "fields")]
    return own | {key for value in deeper for key in keys_of(value)}


def test_every_key_of_the_json_is_documented(tmp_path: Path) -> None:
    validation = validated(tmp_path, [POISSON], predicted=2.0)
    told = as_json(validation, errors(validation, 0.05), 0.05)
    page = (Path(__file__).resolve().parents[2] / "docs" / "validate.md").read_text()
    documented = set(re.findall(r'"(\w+)"', page.partition("## JSON")[2]))
    assert keys_of(told) | keys_of(told["metrics"]["ttft_ms.mean"]) <= documented
