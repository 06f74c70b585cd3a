"""Servers for the tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.backend.serve.running import Running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server over a small simulated engine, shared by a module's tests."""
    from tests.backend.serve.running import running

    with running() as found:
        yield found


@pytest.fixture
def fresh_server() -> Iterator[Running]:
    """A server that nobody has used."""
    from tests.backend.serve.running import running

    with running() as found:
        yield found
