"""What ``--vary`` spans."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import UserError
from simulator.sweeps.axes import MOST_POINTS, Axis, Span, axes_from, axes_of, combinations, parse_axis


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("1:16:5", ("1", "6", "11", "16")),
        ("1:4", ("1", "2", "3", "4")),
        ("0.1:0.5:0.1", ("0.1", "0.2", "0.3", "0.4", "0.5")),
        ("8:100:x2", ("8", "16", "32", "64")),
        ("8:64:log", ("8", "16", "32", "64")),
        ("1:2:x1.25", ("1", "1.25", "1.5625", "1.953125")),
        ("1e2:3e2:1e2", ("100", "200", "300")),
        ("1:2,8,16:32:x2", ("1", "2", "8", "16", "32")),
        ("vllm-v1,static", ("vllm-v1", "static")),
        ("{preset: sharegpt},{fixed: {prompt: 1, output: 2}}", None),
    ],
)
def test_values_and_ranges(written: str, values: tuple[str, ...] | None) -> None:
    expected = values or ("{preset: sharegpt}", "{fixed: {prompt: 1, output: 2}}")
    assert parse_axis(f"key={written}") == Axis("key", expected)


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 9), st.integers(0, 3))
def test_a_range_is_exact_decimal_arithmetic(low: int, width: int, step: int, places: int) -> None:
    """0.1 steps do not pile up binary errors, and the end belongs to the range when a step reaches it."""
    scale = Decimal(10) ** -places
    start, end, size = low * scale, (low + width) * scale, step * scale
    found = [Decimal(value) for value in parse_axis(f"key={start}:{end}:{size}").values]
    assert found == [start + index * size for index in range(width // step + 1)]


@pytest.mark.parametrize(
    ("written", "span"),
    [
        ("1:64", Span(1, 64, True, False)),
        ("1:64:log", Span(1, 64, True, True)),
        ("0.5:2", Span(0.5, 2, False, False)),
    ],
)
def test_a_search_takes_ranges_without_a_step_as_spans(written: str, span: Span) -> None:
    assert parse_axis(f"key={written}", search=True) == Axis("key", (), span)
    assert parse_axis("key=1:3:1", search=True) == Axis("key", ("1", "2", "3"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replicas", "--vary replicas: must be KEY=V1,V2,..., such as engine.policy=static,vllm-v1"),
        ("replicas=4:1", "--vary replicas=4:1: a range goes upwards, not from 4 to 1"),
        ("replicas=1:4:up", "'up' is no step; a range is LOW:HIGH:STEP, LOW:HIGH:xFACTOR or LOW:HIGH:log"),
        ("replicas=0:4:x2", "0:4:x2 never gets from 0 to 4"),
        ("replicas=1:4:x1", "1:4:x1 never gets from 1 to 4"),
        ("replicas=1:4:0", "1:4:0 never gets from 1 to 4"),
        ("replicas=1:1e9", f"holds more than {MOST_POINTS:,} values"),
        ("replicas=1:4,2", "2 is given twice"),
    ],
)
def test_a_wrong_range_is_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_axis(text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_grid_is_every_combination_and_bounded() -> None:
    axes = axes_of(["a=1,2", "b=x,y"])
    assert list(combinations(axes)) == [
        {"a": "1", "b": "x"},
        {"a": "1", "b": "y"},
        {"a": "2", "b": "x"},
        {"a": "2", "b": "y"},
    ]
    with pytest.raises(UserError, match="1000 x 1000 values give 1,000,000 points"):
        combinations(axes_of(["a=1:1000", "b=1:1000"]))
    with pytest.raises(UserError, match="a: is varied twice"):
        axes_of(["a=1", "a=2"])


def test_a_program_varies_lists_or_the_same_texts() -> None:
    axes = axes_from({"replicas": [1, 2], "engine.policy": "static,vllm-v1", "engine.kv_blocks": "8:32:x2"})
    assert [axis.values for axis in axes] == [("1", "2"), ("static", "vllm-v1"), ("8", "16", "32")]
    (lengths,) = axes_from({"workload.lengths": [{"fixed": {"prompt": 1, "output": 2}}, None]})
    assert lengths.values == ("{fixed: {prompt: 1, output: 2}}", "null")
