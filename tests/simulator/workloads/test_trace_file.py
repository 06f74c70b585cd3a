"""Trace files as they come: packed, truncated, empty, mistaken, each with one line that says so."""

from __future__ import annotations

import gzip
import re
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces import azure, lengths_csv, mooncake, vidur
from simulator.workloads.traces.trace import open_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n2023-11-16 18:15:47.5,396,109\n"
)
MOONCAKE = '{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]}\n'
EXPECTED = [Arrival(0, 374, 44, 44), Arrival(1_000_000_000, 396, 109, 109)]
Reader = Callable[[Path], Iterator[Arrival]]
READERS = [azure.read, mooncake.read, vidur.read, lengths_csv.read]


def written(tmp_path: Path, content: str | bytes, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path, format: str = "auto") -> str:  # noqa: A002
    """The one line with which a file is refused, without the path before it."""
    with pytest.raises(TraceError) as refused:
        list(open_trace(path, format).rows())
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


@pytest.mark.parametrize("ending", ["", "\r\n", "\n\n\n", "\r\n\r\n"])
def test_line_ends_and_blank_lines_do_not_matter(tmp_path: Path, ending: str) -> None:
    content = AZURE.rstrip().replace("\n", "\r\n" if "\r" in ending else "\n") + ending
    assert list(open_trace(written(tmp_path, content)).rows()) == EXPECTED


def test_a_byte_order_mark_does_not_hide_the_first_column(tmp_path: Path) -> None:
    assert list(open_trace(written(tmp_path, b"\xef\xbb\xbf" + AZURE.encode())).rows()) == EXPECTED


@pytest.mark.parametrize("name", ["trace.csv.gz", "trace.csv"])
def test_gzip_is_read_with_and_without_its_suffix(tmp_path: Path, name: str) -> None:
    assert list(open_trace(written(tmp_path, gzip.compress(AZURE.encode()), name)).rows()) == EXPECTED


def test_a_gz_suffix_on_plain_text_is_only_a_name(tmp_path: Path) -> None:
    assert list(open_trace(written(tmp_path, AZURE, "trace.csv.gz")).rows()) == EXPECTED


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    rows = AZURE + "2023-11-16 18:15:48,1,1\n" * 50_000
    packed = gzip.compress(rows.encode())
    assert "gzip archive is damaged or truncated" in refusal(written(tmp_path, packed[: len(packed) // 2]))


@pytest.mark.parametrize("read", READERS)
def test_no_reader_takes_a_file_that_is_not_there(tmp_path: Path, read: Reader) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.csv: there is no such trace file$"):
        next(read(tmp_path / "nowhere.csv"))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        ": is a folder; a trace is one file, or a folder of ServeGen clients (chunk-N-trace.csv) "
        "or of WEKA sessions (JSON)"
    )


@pytest.mark.parametrize("read", READERS)
def test_no_reader_takes_an_empty_file(tmp_path: Path, read: Reader) -> None:
    with pytest.raises(TraceError, match=r"is empty \(0 bytes\)$"):
        next(read(written(tmp_path, "")))


def test_the_empty_file_of_a_public_data_set_is_refused(shared: Callable[..., Path]) -> None:
    path = shared("data", "traces", "lmcache-agent-taubench", "ea09a0dc475dbe00b56101ef665b8c03.jsonl")
    assert refusal(path) == ": is empty (0 bytes)"


@pytest.mark.parametrize("content", ["\n\n", gzip.compress(b"", mtime=0)])
def test_a_file_of_blank_lines_is_refused(tmp_path: Path, content: str | bytes) -> None:
    assert refusal(written(tmp_path, content)) == ": holds only blank lines"


def test_a_lone_header_is_refused(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, AZURE.splitlines()[0])) == ": holds no requests, only a header"


def test_a_git_lfs_pointer_is_named_as_one(shared: Callable[..., Path]) -> None:
    for folder, name in (
        ("burstgpt-excerpt", "BurstGPT_1.csv.lfs-pointer"),
        ("qwen-bailian-excerpt", "qwen_coder_blksz_16.jsonl.lfs-pointer"),
    ):
        path = shared("data", "traces", folder, name)
        assert refusal(path) == ": is a Git LFS pointer, not the data; fetch it with: git lfs pull"


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    assert "must be UTF-8 text" in refusal(written(tmp_path, AZURE.encode() + b"\xff\xfe\x00"))


def test_a_row_cut_short_is_refused_with_its_line(tmp_path: Path) -> None:
    found = refusal(written(tmp_path, AZURE + "2023-11-16 18:15:48.5,3"))
    assert found == ":4: must have 3 columns like the header, not 2; is the file truncated?"


def test_json_cut_short_is_refused_with_its_line(tmp_path: Path) -> None:
    found = refusal(written(tmp_path, MOONCAKE + MOONCAKE[:40]))
    assert re.match(r":2: must be one complete JSON object \(.*\); is the file truncated\?$", found)


def test_json_that_is_no_object_is_refused(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, MOONCAKE + "[1, 2]\n")) == ":2: must be a JSON object, not [1, 2]"


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_json_numbers_must_be_finite(tmp_path: Path, name: str) -> None:
    content = MOONCAKE + MOONCAKE.replace('"timestamp": 0', f'"timestamp": {name}')
    assert refusal(written(tmp_path, content)) == f":2: numbers must be finite, not {name}"


@pytest.mark.parametrize("cell", ["0", "-5", "nan", "inf", "1.5", "1_000", "", "12x", "2147483648"])
@pytest.mark.parametrize("column", ["ContextTokens", "GeneratedTokens"])
def test_csv_lengths_are_whole_and_positive(tmp_path: Path, column: str, cell: str) -> None:
    row = {"ContextTokens": "9", "GeneratedTokens": "9"} | {column: cell}
    content = AZURE + f"2023-11-16 18:15:48.5,{row['ContextTokens']},{row['GeneratedTokens']}\n"
    expected = f":4: {column} must be a whole number from 1 to 2147483647, not {cell!r}"
    assert refusal(written(tmp_path, content)) == expected


@pytest.mark.parametrize("value", ["0", "-5", "1.5", "true", '"9"', "null", "2147483648"])
@pytest.mark.parametrize("key", ["input_length", "output_length"])
def test_json_lengths_are_whole_and_positive(tmp_path: Path, key: str, value: str) -> None:
    fields = {"timestamp": "0", "input_length": "9", "output_length": "9"} | {key: value}
    line = "{" + ", ".join(f'"{name}": {field}' for name, field in fields.items()) + "}"
    found = refusal(written(tmp_path, MOONCAKE + line))
    assert found.startswith(f":2: {key} must be a whole number from 1 to 2147483647, not ")


def test_time_that_goes_back_is_refused_with_its_line(tmp_path: Path) -> None:
    found = refusal(written(tmp_path, AZURE + "2023-11-16 18:15:47.25,1,1\n"))
    assert found == ":4: TIMESTAMP goes back by 0.25 s; rows must be in order of time, so sort the file"


def test_a_trace_longer_than_ten_years_is_taken_for_a_mistaken_unit(tmp_path: Path) -> None:
    content = MOONCAKE + MOONCAKE.replace('"timestamp": 0', '"timestamp": 1731585600000')
    assert ":2: timestamp must lie within 10 years of the first row, not 54.9 years" in refusal(
        written(tmp_path, content)
    )


def test_equal_times_and_duplicate_rows_are_kept(tmp_path: Path) -> None:
    assert len(list(open_trace(written(tmp_path, MOONCAKE * 3)).rows())) == 3


def test_a_quote_that_never_closes_is_refused(tmp_path: Path) -> None:
    content = AZURE + '"' + "2023-11-16 18:15:48.5,1,1\n" * 10_000
    assert refusal(written(tmp_path, content)).startswith(": cannot be read as CSV: field larger than")


def test_what_the_system_refuses_is_passed_on_in_its_words(tmp_path: Path) -> None:
    assert refusal(tmp_path / ("x" * 300)) == ": cannot be read: File name too long"


def test_a_csv_file_starts_with_its_header(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r":1: must start with a header, the names of its columns$"):
        next(azure.read(written(tmp_path, "\n" + AZURE)))


def test_a_missing_column_is_named_beside_those_found(tmp_path: Path) -> None:
    found = refusal(written(tmp_path, AZURE.replace("GeneratedTokens", "Output")), "azure")
    assert found == ":1: column GeneratedTokens is missing; found TIMESTAMP, ContextTokens, Output"


def test_a_missing_key_is_named_beside_those_found(tmp_path: Path) -> None:
    found = refusal(written(tmp_path, MOONCAKE + MOONCAKE.replace("timestamp", "time")))
    assert found == ":2: key timestamp is missing; found time, input_length, output_length, hash_ids"


@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_a_long_trace_is_streamed_in_bounded_memory(tmp_path: Path, name: str) -> None:
    """Ten thousand rows of a 30 MB file are read in less than 1 MB."""
    head, row = (AZURE, "2023-11-16 18:15:48.5,1000,100\n") if name == "csv" else (MOONCAKE, MOONCAKE)
    path = tmp_path / name
    with path.open("w") as file:
        file.write(head)
        for _ in range(30):
            file.write(row * (1_000_000 // len(row)))
    rows = open_trace(path).rows()
    tracemalloc.start()
    next(rows)
    for _ in islice(rows, 10_000):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 29_000_000
    assert peak < 1_000_000
