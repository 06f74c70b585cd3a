"""Files of lengths without times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces import lengths_csv
from simulator.workloads.traces.trace import open_trace


@pytest.mark.parametrize(
    "content",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\nXXX,10,3\nXXX,20,4\n",
        "ContextTokens,GeneratedTokens\n10,3\n20,4\n",
        "output_tokens,prompt_tokens\n3,10\n4,20\n",
    ],
)
def test_a_placeholder_or_no_time_at_all_means_lengths_only(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(content)
    trace = open_trace(path)
    assert (trace.format, trace.timed) == ("lengths", False)
    assert list(trace.rows()) == [Arrival(0, 10, 3, 3), Arrival(0, 20, 4, 4)]


def test_lengths_may_be_taken_from_a_file_with_times(tmp_path: Path) -> None:
    path = tmp_path / "vidur.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n5,10,3\n")
    assert list(open_trace(path, "lengths").rows()) == [Arrival(0, 10, 3, 3)]


def test_missing_columns_are_refused_with_those_found(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("in,out\n1,2\n")
    with pytest.raises(TraceError) as refused:
        next(lengths_csv.read(path))
    assert str(refused.value) == (
        f"{path}:1: must have the columns ContextTokens,GeneratedTokens or num_prefill_tokens,"
        "num_decode_tokens or prompt_tokens,output_tokens; found in, out"
    )


def test_the_sharegpt_lengths_are_read_whole_outliers_included(shared: Callable[..., Path]) -> None:
    trace = open_trace(shared("data", "traces", "nanoflow-lengths", "sharegpt.csv"))
    lengths = np.array([row[1:3] for row in trace.rows()])
    assert trace.format == "lengths"
    assert len(lengths) == 58_787
    assert lengths.mean(axis=0) == pytest.approx([299, 324], abs=0.5)
    assert lengths.max(axis=0).tolist() == [241_402, 37_622]
