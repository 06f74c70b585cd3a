from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.recorder import IterationLog, pooled
from simulator.scenario import Scenario
from simulator.simulation import run
from tests.laws.test_leap import gap_counts
from tests.laws.worlds import World, worlds
from tests.simulator.run_examples import MS

PARTS = st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=12), max_size=6)


@settings(max_examples=200, deadline=None)
@given(world=worlds(clusters=True), full=st.sampled_from([1, 2, 5]))
def test_packing_as_it_goes_changes_nothing(world: World, full: int) -> None:
    """Of a run that fits into memory as it was written, and one that is packed every few iterations."""
    whole = world.run()
    with patch("simulator.recorder.FULL", full):
        packed = world.run()
    for wide, narrow in ((whole.requests, packed.requests), (whole.iterations, packed.iterations)):
        assert list(wide) == list(narrow)
        for name, column in wide.items():
            assert narrow[name].tolist() == column.tolist(), name
    assert gap_counts(packed) == gap_counts(whole)


@given(parts=PARTS, most=st.integers(0, 30))
def test_pooled_gaps_are_all_the_gaps(parts: list[list[tuple[int, int]]], most: int) -> None:
    columns = [np.array(part, np.int64).reshape(-1, 2).T for part in parts]
    with patch("simulator.recorder.POOLED_GAPS", most):
        lengths, rows = pooled((column[0], column[1]) for column in columns)
    wanted: Counter[int] = Counter()
    for length, count in (gap for part in parts for gap in part):
        wanted[length] += count
    found: Counter[int] = Counter()
    for length, count in zip(lengths.tolist(), rows.tolist(), strict=True):
        found[length] += count
    assert found == wanted
    different = len({length for part in parts for length, _ in part})
    assert len(lengths) <= most + 3 * different  # however many there were


def test_gaps_of_a_window_are_those_that_ended_in_it() -> None:
    """Both halves of a run, cut anywhere, have the gaps of the whole between them."""
    logs = _logs()
    ends = np.concatenate([log.columns()["end_ns"] for log in logs])
    whole = _tokens(logs, 0, int(ends.max()))
    assert whole.total() == sum(log.gaps()[1].sum() for log in logs)
    for cut in np.quantile(ends, (0.1, 0.5, 0.9)).astype(int).tolist():
        assert _tokens(logs, 0, cut) + _tokens(logs, cut + 1, int(ends.max())) == whole
        assert 0 < _tokens(logs, 0, cut).total() < whole.total()


def _logs() -> list[IterationLog]:
    workload = {
        "arrivals": {"process": "poisson", "rate_per_s": 16},
        "lengths": {"preset": "azure-conv"},
        "requests": 300,
    }
    made = {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": "h100-sxm",
        "engine": {"policy": "vllm-v1"},
        "replicas": 2,
        "workload": workload,
    }
    with patch("simulator.recorder.FULL", 64):
        return list(run(Scenario.model_validate(made)).logs)


def _tokens(logs: list[IterationLog], since_ns: int, until_ns: int) -> Counter[int]:
    found: Counter[int] = Counter()
    for log in logs:
        lengths, rows = log.gaps(since_ns, until_ns)
        assert (lengths < 1000 * MS).all()
        for length, count in zip(lengths.tolist(), rows.tolist(), strict=True):
            found[length] += count
    return found
