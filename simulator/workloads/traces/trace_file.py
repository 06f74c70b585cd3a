"""Opens a trace file as text, whatever it was packed in, and reads it row by row."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, NoReturn, TextIO, cast

from simulator.errors import TraceError

GZIP_MAGIC = b"\x1f\x8b"
LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
LONGEST_TOKENS = 2**31
NS_PER_S = 1_000_000_000
LATEST_S = 10**12  # thirty thousand years: no time is later
LONGEST_TRACE_NS = 10 * 366 * 86_400 * NS_PER_S
DAMAGED_ARCHIVE = (EOFError, gzip.BadGzipFile, zlib.error)


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The file as text: gzip is told by its first bytes, a byte order mark is dropped.

    Whatever is wrong with the bytes, then or while they are read, becomes one `TraceError`.
    """
    try:
        with path.open("rb") as raw, _unpacked(path, raw) as data:
            yield TextIOWrapper(data, encoding="utf-8-sig", newline="")
    except DAMAGED_ARCHIVE as error:
        raise TraceError(f"{path}: the gzip archive is damaged or truncated ({error})") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: must be UTF-8 text; byte {error.start} of a block is not") from error
    except csv.Error as error:
        raise TraceError(f"{path}: cannot be read as CSV: {error}") from error
    except FileNotFoundError as error:
        raise TraceError(f"{path}: there is no such trace file") from error
    except IsADirectoryError as error:
        raise TraceError(f"{path}: is a folder; this format is one file") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _unpacked(path: Path, raw: BinaryIO) -> BinaryIO:
    start = raw.read(len(LFS_MAGIC))
    raw.seek(0)
    if not start:
        raise TraceError(f"{path}: is empty (0 bytes)")
    if start == LFS_MAGIC:
        raise TraceError(f"{path}: is a Git LFS pointer, not the data; fetch it with: git lfs pull")
    return cast(BinaryIO, gzip.open(raw)) if start.startswith(GZIP_MAGIC) else raw


class CsvTable:
    """The rows of a CSV file under its header; columns are found by name, never by position."""

    def __init__(self, path: Path, text: TextIO) -> None:
        self.path = path
        self._rows = csv.reader(text, skipinitialspace=True)
        self.header = [name.strip() for name in next(self._rows, [])]
        if not self.header:
            raise TraceError(f"{path}:1: must start with a header, the names of its columns")
        twice = [name for name in self.header if self.header.count(name) > 1]
        if twice:
            raise TraceError(f"{path}:1: column {twice[0]} stands there twice; keep the one that is meant")

    def position(self, column: str) -> int:
        """Where a column stands; refuses a file without it."""
        if column not in self.header:
            found = ", ".join(self.header)
            raise TraceError(f"{self.path}:1: column {column} is missing; found {shortened(found)}")
        return self.header.index(column)

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and cells of every row that is not blank."""
        rows = self._rows
        columns = len(self.header)
        for row in rows:
            if len(row) == columns:
                yield rows.line_num, row
            elif row:
                raise TraceError(
                    f"{self.path}:{rows.line_num}: must have {columns} columns like the header, "
                    f"not {len(row)}; is the file truncated?"
                )


def json_records(path: Path, text: TextIO) -> Iterator[tuple[int, dict[str, object]]]:
    """Line number and object of every line of a JSON Lines file that is not blank."""
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    for line, source in enumerate(text, start=1):
        stripped = source.strip()
        if stripped:
            yield line, _json_object(path, line, stripped, decoder)


def _json_object(path: Path, line: int, source: str, decoder: json.JSONDecoder) -> dict[str, object]:
    try:
        record = decoder.decode(source)
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{path}:{line}: must be one complete JSON object ({error.msg}); is the file truncated?"
        ) from error
    except RecursionError:
        raise TraceError(f"{path}:{line}: is nested too deeply for a trace row") from None
    except ValueError as error:
        number = "a number of thousands of digits" if "digits" in str(error) else error
        raise TraceError(f"{path}:{line}: numbers must be finite, not {number}") from error
    if not isinstance(record, dict):
        raise TraceError(f"{path}:{line}: must be a JSON object, not {shortened(source)}")
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def token_count(cell: str, path: Path, line: int, column: str) -> int:
    """A length in tokens as written in a CSV cell."""
    if cell.isdecimal() and len(cell) < 20 and 0 < (tokens := int(cell)) < LONGEST_TOKENS:
        return tokens
    raise wrong_count(cell, f"{path}:{line}", column)


def seconds_ns(cell: str, path: Path, line: int, column: str) -> int:
    """A time in seconds as written in a CSV cell, in ns."""
    try:
        seconds = float(cell)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < LATEST_S:
        raise TraceError(f"{path}:{line}: {column} must be seconds >= 0, not {cell!r}")
    return round(seconds * NS_PER_S)


def wrong_count(found: object, place: str, column: str) -> TraceError:
    """The error for what should have been a length in tokens."""
    return TraceError(
        f"{place}: {column} must be a whole number from 1 to {LONGEST_TOKENS - 1}, "
        f"not {shortened(repr(found))}"
    )


class RowClock:
    """Turns the times of rows into ns since the first row, and refuses rows that go back in time.

    A reader with bounded memory cannot sort, so an unsorted file is the user's to sort.
    """

    def __init__(self, path: Path, column: str) -> None:
        self._path = path
        self._column = column
        self._first_ns: int | None = None
        self._latest_ns = 0

    def since_first(self, time_ns: int, line: int) -> int:
        """Time since the first row, ns."""
        if self._first_ns is None:
            self._first_ns = time_ns
        elapsed_ns = time_ns - self._first_ns
        if not self._latest_ns <= elapsed_ns < LONGEST_TRACE_NS:
            raise self._wrong_time(elapsed_ns, line)
        self._latest_ns = elapsed_ns
        return elapsed_ns

    def _wrong_time(self, elapsed_ns: int, line: int) -> TraceError:
        where = f"{self._path}:{line}: {self._column}"
        if elapsed_ns < self._latest_ns:
            back_s = (self._latest_ns - elapsed_ns) / NS_PER_S
            return TraceError(
                f"{where} goes back by {back_s:.9g} s; rows must be in order of time, so sort the file"
            )
        years = elapsed_ns / NS_PER_S / 86_400 / 365.25
        return TraceError(
            f"{where} must lie within 10 years of the first row, not {years:.1f} years after it; "
            "is it in the unit of its format?"
        )


def shortened(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
