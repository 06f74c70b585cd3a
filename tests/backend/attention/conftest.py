"""The kernels under test; where torch or a compiler is missing, tests are skipped and say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from backend.attention import Kernels

pytest.importorskip("torch", reason="the live backend needs torch (pip install servetwin[live])")


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The C kernel, built from this checkout."""
    from backend.attention import native
    from backend.attention.build import BuildError

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVETWIN_CACHE", str(tmp_path_factory.mktemp("kernels", numbered=True) / "cache"))
        try:
            return native.load()
        except BuildError as error:
            pytest.skip(f"the native kernel cannot be built here: {error}")


@pytest.fixture(scope="session", params=["native", "sdpa"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    from backend.attention import sdpa

    return request.getfixturevalue("native") if request.param == "native" else sdpa.KERNELS
