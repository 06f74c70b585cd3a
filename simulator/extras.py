"""Libraries that only some commands need, and what to say where they are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from simulator.errors import UserError

LIVE_LIBRARIES = ("torch", "transformers", "safetensors")


@contextmanager
def needing(libraries: Collection[str], told: str) -> Iterator[None]:
    """A `UserError` where one of these libraries is missing: ``told``, its name in place of ``{}``."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in libraries:
            raise
        raise UserError(told.format(error.name)) from None
