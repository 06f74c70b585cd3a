"""The Vidur reader, and the exact agreement of its copy of the Azure trace with the original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces import azure, vidur
from simulator.workloads.traces.trace import open_trace

ARXIV = ("data", "traces", "vidur-processed", "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv")


def test_times_are_seconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n2.5,10,3\n5.8926549999999995,20,4\n")
    assert list(vidur.read(path)) == [Arrival(0, 10, 3, 3), Arrival(3_392_655_000, 20, 4, 4)]
    assert open_trace(path).timed


@pytest.mark.parametrize("time", ["-0.5", "nan", "inf", "", "soon"])
def test_times_must_be_finite_seconds_from_zero(tmp_path: Path, time: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{time},10,3\n")
    with pytest.raises(TraceError) as refused:
        list(vidur.read(path))
    assert str(refused.value) == f"{path}:2: arrived_at must be seconds >= 0, not {time!r}"


def test_the_ratio_column_is_never_read(tmp_path: Path) -> None:
    """A fork writes decode/prefill where Vidur writes prefill/decode, with CRLF."""
    path = tmp_path / "trace.csv"
    path.write_bytes(
        b"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\r\n10,5,15,0.5\r\n10,5,15,nonsense\r\n"
    )
    trace = open_trace(path)
    assert (trace.format, trace.timed) == ("vidur", False)
    assert list(trace.rows()) == [Arrival(0, 10, 5, 5)] * 2


def test_the_same_requests_in_two_formats_are_the_same(shared: Callable[..., Path]) -> None:
    """Vidur's splitwise_conv.csv was made from Azure's file: equal lengths, times within 0.3 us."""
    ours = list(vidur.read(shared("data", "traces", "vidur-processed", "splitwise_conv.csv")))
    original = list(
        azure.read(shared("data", "traces", "azure-llm-2023", "AzureLLMInferenceTrace_conv.csv"))
    )
    assert [row[1:] for row in ours] == [row[1:] for row in original]
    differences_ns = [
        abs(row.arrival_ns - other.arrival_ns) for row, other in zip(ours, original, strict=True)
    ]
    assert max(differences_ns) < 300


def test_the_arxiv_file_is_read_whole(shared: Callable[..., Path]) -> None:
    trace = open_trace(shared(*ARXIV))
    lengths = np.array([row[1:3] for row in trace.rows()])
    assert not trace.timed
    assert len(lengths) == 28_257
    assert lengths.mean(axis=0) == pytest.approx([2588, 291], abs=0.5)
    assert lengths.max(axis=0).tolist() == [4054, 4056]
    assert lengths.sum(axis=1).max() <= 4096
