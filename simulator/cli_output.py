"""What the command line writes: data to standard output, talk to standard error, files once checked."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias

from simulator.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

Progress: TypeAlias = Callable[[int, int | None], None]

COMPARISON = "comparison.json"
VALIDATION = "validation.json"
RESULT_SIGNS = ("summary.json", "requests.parquet", "scenario.yaml.part", COMPARISON, VALIDATION)
PAGE_SUFFIXES = (".html", ".htm")
REFRESH_S = 0.1
PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))


def emit(text: str) -> None:
    """Data to standard output; a reader that has seen enough, as ``head`` has, is no error."""
    try:
        sys.stdout.write(_writable(text if text.endswith("\n") else f"{text}\n", sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered would raise once more when the interpreter closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _writable(text: str, stream: TextIO) -> str:
    """The text with a question mark for whatever the stream's encoding lacks, as in a bare C locale."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def emit_json(data: object) -> None:
    """One JSON document to standard output."""
    import json

    emit(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def emit_view(view: RenderableType) -> None:
    """A rich view to standard output; plain text when that is no terminal."""
    from rich.console import Console

    console = Console(file=sys.stdout)
    with console.capture() as captured:
        console.print(view)
    emit("\n".join(line.rstrip() for line in captured.get().splitlines()))


def emit_rows(rows: Sequence[Mapping[str, object]]) -> None:
    """Rows as aligned columns, with a header; numbers to the right."""
    if not rows:
        return
    names = sorted(rows[0], key=lambda name: name == "description")  # the widest column last
    columns = [[name, *(_cell(row[name]) for row in rows)] for name in names]
    numeric = [all(isinstance(row[name], (int, float)) for row in rows) for name in names]
    widths = [max(map(len, column)) for column in columns]
    lines = (
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ).rstrip()
        for cells in zip(*columns, strict=True)
    )
    emit("\n".join(lines))


def _cell(value: object) -> str:
    """Short for people: 131,072 and 8.03 G; JSON has every digit."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return str(value)
    if value < 1e6:
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    prefix, size = next((prefix, size) for prefix, size in PREFIXES if value >= size)
    return f"{value / size:.3g} {prefix}"


def talk(text: str) -> None:
    """A line for the person at the terminal, on standard error."""
    sys.stderr.write(_writable(f"{text}\n", sys.stderr))


def check_output(directory: Path | None) -> None:
    """Refuse, before any work, a results directory that could not be written or holds something else."""
    if directory is None:
        return
    if not directory.exists():
        parent = next(parent for parent in directory.absolute().parents if parent.exists())
        _check_folder(parent, f"--output {directory}")
        return
    _check_folder(directory, f"--output {directory}")
    found = sorted(entry.name for entry in directory.iterdir())
    if found and not any(sign in found for sign in RESULT_SIGNS):
        raise UserError(
            f"--output {directory}: holds {found[0]}, which is no result of ServeTwin; "
            "name a new or an empty folder"
        )


def check_file(
    option: str,
    path: Path | None,
    output: Path | None = None,
    suffixes: tuple[str, ...] = PAGE_SUFFIXES,
) -> None:
    """Refuse, before any work, a file that could not be written; ``output`` will exist by then."""
    if path is None:
        return
    label, folder = f"{option} {path}", path.absolute().parent
    if path.is_dir() or path == output:
        raise UserError(f"{label}: is a folder; name a file in it")
    if path.suffix not in suffixes:
        raise UserError(f"{label}: must end with {suffixes[0]}; nothing else is ever replaced")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"{label}: is not an ordinary file")
    if output is not None and folder == output.absolute():
        return
    if not folder.exists():
        raise UserError(f"{label}: folder {folder} does not exist")
    _check_folder(folder, label)
    if path.exists() and not os.access(path, os.W_OK):
        raise UserError(f"{label}: is not writable")


def _check_folder(folder: Path, label: str) -> None:
    if not folder.is_dir():
        raise UserError(f"{label}: {folder} is a file, not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{label}: folder {folder} is not writable")


@contextmanager
def progress_on(stream: TextIO, title: str) -> Iterator[Progress | None]:
    """A progress bar on a terminal, refreshed at most ten times a second; nothing elsewhere."""
    if not stream.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(file=stream), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(title, total=None)
        shown_s = 0.0

        def advance(done: int, total: int | None) -> None:
            nonlocal shown_s
            now_s = time.monotonic()
            if now_s - shown_s >= REFRESH_S:
                shown_s = now_s
                bar.update(task, completed=done, total=total, refresh=True)

        yield advance
