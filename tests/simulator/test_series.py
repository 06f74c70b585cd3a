from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.metrics import departures_ns
from simulator.run_tables import RunTables
from simulator.series import bin_edges_ns, over_time
from tests.simulator.run_examples import SECOND, random_run, run_of


@given(st.integers(1, 400), st.integers(0, 99), st.integers(1, 400))
def test_bins_cover_the_run_and_stay_few(requests: int, seed: int, most: int) -> None:
    tables = random_run(requests, seed)
    edges = bin_edges_ns(tables, most)
    assert edges[0] == tables.requests["arrival_ns"].min()
    ends = (tables.iterations["end_ns"].max(), tables.requests["finished_ns"].max())
    assert edges[-2] <= max(ends) < edges[-1]
    assert len(edges) - 1 <= max(20, most) + 1
    assert str(edges[1] - edges[0]).rstrip("0") in {"1", "2", "5"}


@given(st.integers(1, 200), st.integers(0, 99))
def test_nothing_is_lost_between_bins(requests: int, seed: int) -> None:
    """Means over bins, summed up again, are the totals of the run."""
    tables = random_run(requests, seed)
    decoded = (tables.iterations["decodes"] * tables.iterations["repeats"]).sum()
    series = over_time(tables, replicas=2)
    wanted = {
        "arrived_per_s": requests,
        "completed_per_s": (tables.requests["status"] == 0).sum(),
        "output_tokens_per_s": decoded + (tables.requests["first_token_ns"] >= 0).sum(),
        "waiting": _time_between("arrival_ns", "scheduled_ns", tables) / SECOND,
        "in_progress": _time_between("scheduled_ns", "departure_ns", tables) / SECOND,
    }
    for name, total in wanted.items():
        assert getattr(series, name).sum() * series.width_s == pytest.approx(total, rel=1e-9, abs=1e-5), (
            name
        )


def _time_between(begin: str, end: str, tables: RunTables) -> float:
    times = tables.requests | {"departure_ns": departures_ns(tables)}
    seen = tables.requests["scheduled_ns"] >= 0
    return float((times[end] - times[begin])[seen].sum())


def test_rows_and_blocks_by_hand() -> None:
    """Bins of 0.5 s: one replica of two has 10 rows and 80 of 100 blocks for 2 s, then rests for 8 s."""
    steps = [{"end_ns": 2 * SECOND, "decodes": 10, "kv_blocks_used": 80, "repeats": 100}]
    series = over_time(
        run_of([{"finished_ns": 10 * SECOND, "scheduled_ns": 4 * SECOND}], steps), replicas=2
    )
    assert series.width_s == 0.5
    np.testing.assert_allclose(series.rows[:4], 10)
    np.testing.assert_allclose(series.kv_share[:4], 0.4)
    np.testing.assert_allclose(series.rows[4:], 0)
    np.testing.assert_allclose(series.waiting[:8], 1)
    np.testing.assert_allclose(series.in_progress[8:20], 1)
    np.testing.assert_allclose(series.output_tokens_per_s[1:4], 500)


@given(st.integers(1, 60), st.integers(0, 99), st.integers(1, 9))
def test_work_falls_into_the_bins_in_which_it_was_done(requests: int, seed: int, replicas: int) -> None:
    """Against a plain sum over rows and bins; some rows take no time, and fall where they are."""
    tables = random_run(requests, seed, replicas)
    iterations = tables.iterations
    iterations["end_ns"][::5] = iterations["start_ns"][::5]
    edges = bin_edges_ns(tables, 400)
    start, end = iterations["start_ns"][:, None], iterations["end_ns"][:, None]
    overlap = np.minimum(end, edges[1:]) - np.maximum(start, edges[:-1])
    share = np.clip(overlap, 0, None) / np.maximum(end - start, 1)
    share[::5] = (start[::5] >= edges[:-1]) & (start[::5] < edges[1:])
    positions = iterations["repeats"] * (iterations["prefill_tokens"] + iterations["decodes"])
    wasted = iterations["repeats"] * np.minimum(7, iterations["decodes"])
    iterations["padding_tokens"] = np.minimum(7, iterations["decodes"])
    found = over_time(tables, replicas)
    wanted = (wasted @ share) / np.maximum(positions @ share, 1)
    np.testing.assert_allclose(found.padding_share, wanted, rtol=1e-6, atol=1e-7)
    iterations["preempted"] = np.arange(len(start))
    evicted = iterations["preempted"] @ share / found.width_s
    np.testing.assert_allclose(over_time(tables, replicas).preempted_per_s, evicted, rtol=1e-6, atol=1e-4)


def test_an_empty_run_has_a_series_too() -> None:
    assert over_time(run_of(), replicas=1).rows.sum() == 0
