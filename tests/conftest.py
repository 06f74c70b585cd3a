"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture
def shared() -> Callable[..., Path]:
    """Reference data beside the checkout; a test that needs it is skipped where it is absent."""

    def path(*parts: str) -> Path:
        found = SHARED.joinpath(*parts)
        if not found.exists():
            pytest.skip(f"reference data {'/'.join(parts)} is not beside this checkout")
        return found

    return path
