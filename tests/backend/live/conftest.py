"""Models and oracles, made once per session; one thread, since tiny products only lose by more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="live execution needs torch: pip install 'servetwin[live]'")
pytest.importorskip(
    "transformers", reason="live execution needs transformers: pip install 'servetwin[live]'"
)

from backend.models import LiveModel, load_live_model  # noqa: E402
from simulator import policies  # noqa: E402
from simulator.policies import POLICIES  # noqa: E402
from tests.backend.live.tiny import Oracle, save_model  # noqa: E402


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's tiny model."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = save_model(family, tmp_path_factory.mktemp(family))
        return made[family]

    return folder


@pytest.fixture(scope="session")
def model_of(folder_of: Callable[[str], Path]) -> Callable[[str, str], LiveModel]:
    """A family's tiny model in float32 by path, loaded from its folder as a user's would be."""
    made: dict[tuple[str, str], LiveModel] = {}

    def model(family: str, path: str = "auto") -> LiveModel:
        if (family, path) not in made:
            made[family, path] = load_live_model(str(folder_of(family)), "float32", path=path)
        return made[family, path]

    return model


@pytest.fixture(scope="session")
def oracle_of(folder_of: Callable[[str], Path]) -> Callable[[str], Oracle]:
    """A family's tiny model as transformers runs it."""
    made: dict[str, Oracle] = {}

    def oracle(family: str) -> Oracle:
        if family not in made:
            made[family] = Oracle(folder_of(family))
        return made[family]

    return oracle


@pytest.fixture
def constructions(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each scheduler class is constructed, whoever does it."""
    counts: Counter[str] = Counter()
    classes = [
        thing for thing in vars(policies).values() if isinstance(thing, type) and hasattr(thing, "commit")
    ]
    assert len(classes) >= len(POLICIES)
    for kind in classes:

        def counted(self, *args, _first=kind.__init__, _name=kind.__name__, **options):
            counts[_name] += 1
            _first(self, *args, **options)

        monkeypatch.setattr(kind, "__init__", counted)
    return counts
