"""ServeGen: clients are drawn with the rates, the burstiness and the lengths of their windows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces import servegen
from simulator.workloads.traces.trace import open_trace

SECOND = 1_000_000_000
POOL = ("data", "traces", "servegen-m-small")
LENGTHS = {"0": {"input_tokens": "{7: 0.25, 9: 0.75}", "output_tokens": "{3: 1.0}"}}


def client(folder: Path, rows: str, lengths: object = LENGTHS, number: int = 1) -> Path:
    path = folder / f"chunk-{number}-trace.csv"
    path.write_text(rows)
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(lengths))
    return path


def drawn(path: Path, seed: int = 0) -> list[Arrival]:
    return list(servegen.read(path, seed))


def test_each_seed_draws_its_own_requests_always_alike(shared: Callable[..., Path]) -> None:
    path = shared(*POOL, "chunk-12-trace.csv")
    first, again, other = (list(islice(servegen.read(path, seed), 200)) for seed in (1, 1, 2))
    assert first == again != other


def test_rates_are_those_of_the_windows(shared: Callable[..., Path]) -> None:
    """chunk-12 has 62.8, 62.9 and 62.7 requests/s in its first windows of 600 s, with cv near 1."""
    rows = islice(servegen.read(shared(*POOL, "chunk-12-trace.csv"), 3), 120_000)
    counts = Counter(row.arrival_ns // (600 * SECOND) for row in rows)
    for window, rate in enumerate((62.8317, 62.915, 62.6583)):
        assert counts[window] / 600 == pytest.approx(rate, rel=0.02)


def test_a_pool_is_its_clients_in_order_of_time(shared: Callable[..., Path]) -> None:
    rows = list(islice(servegen.read(shared(*POOL), 0), 50_000))
    times = [row.arrival_ns for row in rows]
    assert times == sorted(times)
    assert len(servegen.client_files(shared(*POOL))) == 16


@pytest.mark.parametrize("pattern", ["Gamma", "Weibull"])
def test_windows_keep_their_rate_and_burstiness(tmp_path: Path, pattern: str) -> None:
    """Shape 0.25 is cv 2 for gamma gaps and 8.3 for Weibull's, whose scale is not to be trusted."""
    path = client(tmp_path, f"0,20,2,{pattern},0.25,999\n20000,20,2,{pattern},0.25,999\n")
    times_s = np.array([row.arrival_ns for row in drawn(path)]) / SECOND
    gaps = np.diff(times_s)
    assert len(times_s) / 40_000 == pytest.approx(20, rel=0.1)
    cv = {"Gamma": 2.0, "Weibull": np.sqrt(69)}[pattern]  # Weibull: Gamma(9) / Gamma(5)^2 - 1 = 69
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.2)


def test_bursty_windows_do_not_all_begin_with_a_burst(tmp_path: Path) -> None:
    """Shape 0.01: drawn naively, the first of nearly all windows' gaps would be no gap at all."""
    windows = "".join(f"{600 * i},1,10,Gamma,0.01,1\n" for i in range(400))
    rows = drawn(client(tmp_path, windows))
    occupied = {row.arrival_ns // (600 * SECOND) for row in rows}
    early = {
        row.arrival_ns // (600 * SECOND) for row in rows if row.arrival_ns % (600 * SECOND) < 6 * SECOND
    }
    assert len(rows) / (400 * 600) == pytest.approx(1, rel=0.25)
    assert len(early) < 0.5 * len(occupied)


def test_idle_windows_are_empty(tmp_path: Path) -> None:
    rows = drawn(client(tmp_path, "0,5,1,Gamma,1,1\n600,0,0,,,\n1200,5,1,Gamma,1,1\n"))
    assert {row.arrival_ns // (600 * SECOND) for row in rows} == {0, 2}


def test_lengths_come_from_the_window_that_has_any_and_are_independent(tmp_path: Path) -> None:
    """Upstream draws one variate for all fields, so that long prompts always get long answers."""
    even = "{1: 0.5, 100: 0.5}"
    lengths = {
        "0": {"input_tokens": "{}", "output_tokens": "{}"},
        "21600": {"input_tokens": even, "output_tokens": even},
    }
    rows = drawn(client(tmp_path, "0,10,1,Gamma,1,1\n600,10,1,Gamma,1,1\n", lengths))
    pairs = np.array([(row.prompt_tokens, row.output_tokens) for row in rows])
    assert set(pairs.ravel().tolist()) == {1, 100}
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.05


def test_images_count_as_tokens_of_the_prompt_and_zero_becomes_one(tmp_path: Path) -> None:
    fields = {"text_tokens": "{0: 1.0}", "image_tokens": "{500: 1.0}", "audio_tokens": "{0: 1.0}"}
    lengths = {"0": {**fields, "image_count": "{9: 1.0}", "output_tokens": "{0: 1.0}"}}
    rows = drawn(client(tmp_path, "0,5,1,Gamma,1,1\n600,5,1,Gamma,1,1\n", lengths))
    assert {row[1:4] for row in rows} == {(500, 1, 1)}


def test_a_dict_is_data_and_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    lengths = {
        "0": {"input_tokens": f"__import__('pathlib').Path({str(marker)!r}).touch()", "output_tokens": "{}"}
    }
    path = client(tmp_path, "0,5,1,Gamma,1,1\n", lengths)
    with pytest.raises(TraceError, match="must be a dict of tokens and their shares"):
        drawn(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            "0,5,1,Gamma,1,1\n600,5,1,Gam",
            r"csv:2: must be start, rate, cv, pattern, shape, scale.*truncated",
        ),
        ("0,5,1,Pareto,1,1\n", r"csv:1: pattern must be Gamma or Weibull with a shape > 0, not Pareto 1"),
        ("0,5,1,Gamma,,\n", r"csv:1: pattern must be Gamma or Weibull with a shape > 0"),
        ("0,-5,1,Gamma,1,1\n", r"csv:1: start and rate must be >= 0, not 0 and -5"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, rows: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        drawn(client(tmp_path, rows))


def test_a_client_without_lengths_is_refused(tmp_path: Path) -> None:
    path = client(tmp_path, "0,5,1,Gamma,1,1\n")
    path.with_name("chunk-1-dataset.json").unlink()
    with pytest.raises(
        TraceError, match=r"its lengths are missing: chunk-1-dataset\.json must lie beside it"
    ):
        open_trace(path)
