"""Measurement files survive a round trip, and a bad line is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.measurements import (
    FORMAT,
    Header,
    Measurements,
    Sample,
    merge,
    read_measurements,
    write_measurements,
)
from simulator.errors import ProfileError

HEADER = Header(
    model="meta-llama/Llama-3.1-8B",
    hardware="h100-sxm",
    device="NVIDIA H100 80GB HBM3",
    dtype="bfloat16",
    tensor_parallel=1,
    engine="vllm",
    engine_version="0.24.0",
    kind="imported",
    source="made up",
    licence="none",
    notes=["one"],
)
SAMPLES = (Sample("dense", (1.0,), 12.5), Sample("prefill_attention", (1.0, 16.0, 136.0), 7.0))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write_measurements(Measurements(HEADER, SAMPLES), path)
    found = read_measurements(path)
    assert found.samples == SAMPLES
    assert replace(found.header, limits=()) == HEADER
    assert [file.name for file in tmp_path.iterdir()] == ["m.jsonl"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"operator": "dense", "tokens": 1', "m.jsonl:2: not valid JSON"),
        ('{"operator": "magic", "ns": 1}', "m.jsonl:2: operator must be one of dense"),
        ('{"operator": "dense", "ns": 1}', "m.jsonl:2: tokens must be a number > 0, not empty"),
        ('{"operator": "dense", "tokens": 1, "ns": -4}', "m.jsonl:2: ns must be a number > 0, not -4"),
        ('{"operator": "dense", "tokens": 1, "ns": NaN}', "m.jsonl:2: holds NaN"),
        ("[1]", "m.jsonl:2: must be a JSON object"),
        ("", "has a header but no measurements"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "m.jsonl"
    write_measurements(Measurements(HEADER, ()), path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ProfileError) as caught:
        read_measurements(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    for header, message in (
        ({"format": "csv"}, "not a measurement file"),
        ({"format": FORMAT, "model": "m"}, "header field 'device' is missing"),
    ):
        path.write_text(json.dumps(header) + "\n")
        with pytest.raises(ProfileError, match=message):
            read_measurements(path)
    path.write_text("")
    with pytest.raises(ProfileError, match="is empty"):
        read_measurements(path)
    with pytest.raises(ProfileError, match="cannot be read"):
        read_measurements(tmp_path / "absent.jsonl")


def test_only_files_of_one_setting_are_merged() -> None:
    first = Measurements(HEADER, SAMPLES[:1])
    second = Measurements(HEADER, SAMPLES[1:])
    assert merge([first, second]).samples == SAMPLES
    with pytest.raises(ProfileError, match="hardware is h100-sxm in one file, a100-80-sxm in another"):
        merge([first, Measurements(replace(HEADER, hardware="a100-80-sxm"), SAMPLES)])
