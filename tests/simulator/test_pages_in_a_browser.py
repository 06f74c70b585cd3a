"""Every kind of page holds on a phone and for those who have no mouse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.compare_report import write_compare_report
from simulator.comparison import Comparison
from simulator.page import page_of, write_page
from simulator.report import write_report
from simulator.sweeps.front import objectives_of
from simulator.sweeps.report import write_sweep_report
from simulator.sweeps.sweep import Sweep
from simulator.sweeps.table import Row, flat
from simulator.validation_errors import errors
from simulator.validation_report import write_validation_report
from tests.simulator.browser import look_at
from tests.simulator.run_examples import Slo, random_run, summary_of
from tests.simulator.test_compare_report import outcome_of
from tests.simulator.test_report import ATTACK
from tests.simulator.validation_examples import POISSON, validated

LONG = "a-name-without-any-space-in-it-that-is-longer-than-a-phone-is-wide " + ATTACK
SCENARIO = f"name: {LONG}\n"


def run_page(path: Path) -> None:
    tables = random_run(200)
    summary = summary_of(tables, slo=Slo(200, 50), scenario_name=LONG)
    write_report(path, SCENARIO, summary, tables, (LONG,), command=f"servetwin simulate {LONG}")


def compare_page(path: Path) -> None:
    names = [LONG, *(f"alternative {number}" for number in range(6))]
    outcomes = tuple(outcome_of(name, seed) for seed, name in enumerate(names))
    write_compare_report(path, Comparison(LONG, outcomes, 1, 0), [(name, SCENARIO) for name in names])


def sweep_page(path: Path) -> None:
    rows = []
    for number in range(24):
        tables = random_run(100, number)
        figures = {"gpus": 1 + number % 3, **dict(flat(summary_of(tables)))}
        values = {"engine.max_num_seqs": number, "hardware": f"{LONG}{number}"}
        rows.append(Row(number, values, number % 5 == 0, figures, (LONG,), "", ""))
    objectives = tuple(objectives_of("e2e_ms.p99", None))
    keys = ("engine.max_num_seqs", "hardware")
    write_sweep_report(path, Sweep(LONG, keys, objectives, tuple(rows), len(rows), 0), SCENARIO)


def validation_page(path: Path) -> None:
    validation = validated(path.parent, [POISSON], predicted=1.1)
    write_validation_report(path, validation, errors(validation, 0.05), 0.05, [LONG])


@pytest.mark.parametrize("write", [run_page, compare_page, sweep_page, validation_page])
def test_a_page_fits_and_everything_on_it_has_a_name_and_can_be_reached(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path / "page.html")
    looks, complaints = look_at(tmp_path / "page.html")
    assert complaints == []
    assert looks[0].scrolling, "at a phone's width something has to scroll"
    for look in looks:
        assert look.content_px <= look.width_px
        assert look.titles == 1
        assert look.drawn == look.charts > 0
        assert look.buttons == 2 * look.charts
        assert (look.nameless, look.unreachable, look.inside_images) == ([], [], 0)


def test_looking_finds_what_is_wrong(tmp_path: Path) -> None:
    """Each fault once, so that a page without any says something."""
    wrong = (
        '<div style="width: 700px">wide</div><a href="#"></a><script>console.error("broken")</script>'
        '<div style="overflow-x: auto; width: 90px"><p style="width: 200px">lost</p></div>'
        '<div class="chart" role="img"><button>inside</button></div><div class="save"></div>'
    )
    write_page(tmp_path / "page.html", page_of("wrong", "", (), (wrong,)).replace("\nstart();", ""))
    (phone, desk), complaints = look_at(tmp_path / "page.html")
    assert phone.content_px > phone.width_px
    assert desk.content_px <= desk.width_px
    assert (len(phone.nameless), len(phone.unreachable), phone.inside_images) == (1, 1, 1)
    assert phone.drawn < phone.charts
    assert any("broken" in line for line in complaints)
