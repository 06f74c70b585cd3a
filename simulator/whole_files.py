"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Where to write a file, beside its place; flushed to the disk and renamed at the end, or gone.

    The name aside is this process's own. Raises `OSError`.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file. Raises `OSError`."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
