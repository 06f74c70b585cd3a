"""Tables of whole numbers that take little memory: long runs have tens of millions of rows."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
from numpy import int64
from numpy.typing import NDArray

WIDTHS = tuple(
    (kind, -(1 << bits), (1 << bits) - 1) for kind, bits in ((np.int8, 7), (np.int16, 15), (np.int32, 31))
)


class CompactColumns(MutableMapping[str, NDArray[int64]]):
    """Columns of int64, held in pieces of the narrowest integers in which each piece fits.

    A column is widened whenever it is asked for. What comes out is a copy: to change the table, set it.
    """

    __slots__ = ("_pieces",)

    def __init__(self, names: Sequence[str]) -> None:
        self._pieces: dict[str, list[NDArray[Any]]] = {name: [] for name in names}

    def append(self, rows: NDArray[int64]) -> None:
        """More rows, as a matrix."""
        if not len(rows):
            return
        limits = zip(rows.min(axis=0).tolist(), rows.max(axis=0).tolist(), strict=True)
        for pieces, column, (least, most) in zip(self._pieces.values(), rows.T, limits, strict=True):
            pieces.append(column.astype(_width(least, most)))

    def narrow(self, name: str) -> NDArray[Any]:
        """A column as integers no wider than its widest piece."""
        pieces = self._pieces[name]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int8)

    def ordered_by(self, name: str) -> CompactColumns:
        """The same rows in the order of one column, equals as they are."""
        order = np.argsort(self[name], kind="stable")
        ordered = CompactColumns(tuple(self))
        for each, pieces in ordered._pieces.items():
            pieces.append(self.narrow(each)[order])
        return ordered

    @staticmethod
    def joined(names: Sequence[str], tables: Iterable[CompactColumns]) -> CompactColumns:
        """The rows of one table after those of another; nothing is copied."""
        whole = CompactColumns(names)
        for table in tables:
            for name, pieces in whole._pieces.items():
                pieces.extend(table._pieces[name])
        return whole

    def __getitem__(self, name: str) -> NDArray[int64]:
        pieces = self._pieces[name]
        return np.concatenate(pieces, dtype=int64) if pieces else np.empty(0, int64)

    def __setitem__(self, name: str, column: NDArray[int64]) -> None:
        self._pieces[name] = [narrow(column)]

    def __delitem__(self, name: str) -> None:
        del self._pieces[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)


def narrow(values: NDArray[int64]) -> NDArray[Any]:
    """The same whole numbers in as few bytes each as all of them fit in."""
    return values.astype(_width(int(values.min()), int(values.max())) if values.size else np.int8)


def _width(least: int, most: int) -> type[np.signedinteger[Any]]:
    for kind, lowest, highest in WIDTHS:
        if lowest <= least and most <= highest:
            return kind
    return int64


def matrix(rows: array[int], columns: int) -> NDArray[int64]:
    """Rows that were written one after the other."""
    return np.array(rows, int64).reshape(-1, columns)
