"""The first scenario must be one that loads, says what it means, and hides no key."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.errors import UserError
from simulator.scenario import Scenario, WorkloadSettings
from simulator.scenario_file import load_scenario
from simulator.starter import EXAMPLE, starter, write_starter


def test_it_loads_as_the_example(tmp_path: Path) -> None:
    write_starter(tmp_path / "chat.yaml")
    assert load_scenario(tmp_path / "chat.yaml") == Scenario.model_validate(EXAMPLE)


def test_every_key_is_there_with_its_meaning() -> None:
    lines = starter("chat.yaml").splitlines()
    for settings in (Scenario, WorkloadSettings):
        for key, field in settings.model_fields.items():
            assert field.description is not None, key
            found = [line for line in lines if line.strip().removeprefix("# ").startswith(f"{key}:")]
            assert any(field.description.split()[0] in line for line in found), key


def test_alternatives_of_a_key_are_listed() -> None:
    text = " ".join(line.partition("#")[2].strip(" #") for line in starter("chat.yaml").splitlines())
    for words in ("poisson | gamma | constant", "single | static", "bfloat16 | float16"):
        assert words in text


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"chat\.yaml: exists already"):
        write_starter(path)
    assert path.read_text(encoding="utf-8") == "mine"
