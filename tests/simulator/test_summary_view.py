from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from simulator.metrics import Summary
from simulator.summary_view import summary_view
from simulator.summary_words import headline, milliseconds, percent, three_digits
from tests.simulator.run_examples import MS, NEVER, SECOND, Profile, Slo, random_run, run_of, summary_of


def shown(summary: Summary, *notes: str, width: int = 80, colour: bool = False) -> str:
    screen = StringIO()
    system = "standard" if colour else None
    console = Console(file=screen, width=width, force_terminal=colour, color_system=system)
    console.print(summary_view(summary, notes))
    return screen.getvalue()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.0423, "42.3 µs"),
        (0.9996, "1.00 ms"),
        (1.234, "1.23 ms"),
        (99.96, "100 ms"),
        (999.6, "1.00 s"),
        (12_345.0, "12.3 s"),
        (3_600_000.0, "60.0 min"),
    ],
)
def test_a_time_is_told_in_three_digits_and_a_fitting_unit(value: float | None, told: str) -> None:
    assert milliseconds(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [(1234567.0, "1,234,567"), (123.4, "123"), (9.996, "10.0"), (0.012345, "0.0123"), (0.0, "0.00")],
)
def test_three_digits(value: float, told: str) -> None:
    assert three_digits(value) == told


def test_a_percentage_never_rounds_to_perfection() -> None:
    assert percent(1.0) == "100 %"
    assert percent(0.999999) == "99.99 %"
    assert percent(0.99951) == "99.95 %"
    assert percent(0.0001) == "< 0.1 %"
    assert percent(0.0) == "0 %"
    assert percent(0.123) == "12.3 %"


def test_the_headline_answers_in_two_sentences() -> None:
    request = {"first_token_ns": 60 * MS, "finished_ns": 140 * MS, "output_tokens": 5}
    late = {"arrival_ns": SECOND, "first_token_ns": 3 * SECOND, "finished_ns": 3 * SECOND}
    summary = summary_of(run_of([request, late]), slo=Slo(ttft_ms=100, tpot_ms=20.5))
    assert headline(summary) == (
        "2 of 2 requests completed in 3.00 s: 0.667 requests/s, 2.00 output tokens/s. TTFT p99 1.98 s, "
        "TPOT p99 20.0 ms. 50.0 % of the requests offered met the SLO (TTFT ≤ 100 ms, TPOT ≤ 20.5 ms)."
    )


def test_nothing_completed_is_said_so() -> None:
    summary = summary_of(run_of([NEVER | {"status": 1}], reasons={0: "needs 9 blocks"}))
    assert headline(summary) == "None of 1 request completed."
    assert "1 rejected: needs 9 blocks" in shown(summary)


def test_it_fits_80_columns_without_colour() -> None:
    text = shown(summary_of(random_run(500), slo=Slo(200, 50, 5000)), "a note " * 20)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for word in ("TTFT", "TPOT", "ITL", "E2E", "Queue", "mean", "p50", "p99", "max"):
        assert word in text
    assert "…" not in text  # nothing is cut off


def test_losses_stand_out_in_colour() -> None:
    text = shown(summary_of(random_run(500)), colour=True)
    assert "\x1b[31m" in text


@pytest.mark.parametrize(
    ("profile", "extrapolated", "said", "unsaid"),
    [
        (Profile("roofline", "roofline"), 1.0, "UNCALIBRATED", "EXTRAPOLATED"),
        (Profile("p", "imported"), 0.123, "12.3 % of the time EXTRAPOLATED", "UNCALIBRATED"),
        (Profile("p", "imported"), 0.0, "p (imported)", "EXTRAPOLATED"),
        (Profile("p", "measured"), 0.0, "p (measured)", "UNCALIBRATED"),
    ],
)
def test_what_stands_behind_the_times_is_said(
    profile: Profile, extrapolated: float, said: str, unsaid: str
) -> None:
    text = " ".join(
        shown(summary_of(random_run(50), profile=profile, extrapolated=extrapolated), width=200).split()
    )
    assert said in text
    assert unsaid not in text


def test_markup_in_a_name_is_text() -> None:
    assert "[red]chat[/red]" in shown(summary_of(run_of(), scenario_name="[red]chat[/red]"))


def test_a_live_run_says_that_it_was_one() -> None:
    told = shown(summary_of(random_run(50), profile=Profile("cpu, attention sdpa", "live")))
    assert "Ran live" in told
    assert "Simulated" not in told
    assert "every time was measured" in told
    assert "Simulated" in shown(summary_of(random_run(50)))
