from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.columns import CompactColumns, matrix, narrow

LIMITS = st.sampled_from([1 << bits for bits in (7, 15, 31, 63)])
WHOLE = LIMITS.flatmap(lambda most: st.integers(-most, most - 1))
PIECES = st.lists(st.lists(st.tuples(WHOLE, WHOLE), max_size=6), max_size=5)


def column(rows: list[tuple[int, int]], place: int) -> np.ndarray:
    return np.array([row[place] for row in rows], np.int64)


def filled(pieces: list[list[tuple[int, int]]]) -> CompactColumns:
    table = CompactColumns(("a", "b"))
    for rows in pieces:
        table.append(np.array(rows, np.int64).reshape(-1, 2))
    return table


@pytest.mark.parametrize(
    ("values", "width"),
    [([127], 1), ([-128], 1), ([128], 2), ([1, -129], 2), ([1 << 15], 4), ([1 << 31], 8), ([], 1)],
)
def test_numbers_take_the_fewest_bytes_that_hold_them(values: list[int], width: int) -> None:
    found = narrow(np.array(values, np.int64))
    assert found.itemsize == width
    assert found.tolist() == values


@given(PIECES)
def test_columns_read_as_they_were_written(pieces: list[list[tuple[int, int]]]) -> None:
    table, rows = filled(pieces), [row for piece in pieces for row in piece]
    assert list(table) == ["a", "b"]
    for place, name in enumerate(table):
        assert table[name].dtype == np.int64
        assert table[name].tolist() == table.narrow(name).tolist() == column(rows, place).tolist()


@given(PIECES, PIECES)
def test_rows_stay_together_when_joined_and_sorted(
    one: list[list[tuple[int, int]]], two: list[list[tuple[int, int]]]
) -> None:
    table = CompactColumns.joined(("a", "b"), [filled(one), filled(two)]).ordered_by("a")
    rows = sorted((row for piece in one + two for row in piece), key=lambda row: row[0])
    assert list(zip(table["a"].tolist(), table["b"].tolist(), strict=True)) == rows


def test_a_column_that_is_set_is_the_table_s() -> None:
    table = filled([[(1, 2)], [(3, 4)]])
    table["a"] += 1 << 40
    assert table["a"].tolist() == [1 + (1 << 40), 3 + (1 << 40)]
    assert table["b"].tolist() == [2, 4]


def test_what_is_joined_does_not_grow_with_its_parts() -> None:
    part = filled([[(1, 2)]])
    whole = CompactColumns.joined(("a", "b"), [part])
    part.append(np.array([[3, 4]]))
    assert whole["a"].tolist() == [1]


def test_rows_in_a_line_become_a_matrix() -> None:
    assert matrix(array("q", [1, 2, 3, 4, 5, 6]), 3).tolist() == [[1, 2, 3], [4, 5, 6]]
