"""Switching the policy of a file from outside: which keys go, which stay, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from simulator.engine_settings import Engine
from simulator.errors import ScenarioError
from simulator.policies import POLICIES
from simulator.scenario_file import load_scenario, read_scenario, to_yaml
from simulator.scenario_lines import dump

SCENARIO = """\
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
{engine}
workload:
  arrivals: {{process: poisson, rate_per_s: 8}}
  lengths: {{preset: sharegpt}}
  requests: 10
"""
OWN_KEYS = "  max_num_seqs: 64\n  max_num_batched_tokens: 4096\n  watermark: 0.01\n  kv_blocks: 500"
LEFT_OUT = "the file's engine.{} is left out: no key of this policy"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(engine: str) -> Path:
    path = Path("x.yaml")
    path.write_text(SCENARIO.format(engine=f"engine:\n{engine}"), encoding="utf-8")
    return path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("named", ["  policy: vllm-v1\n", ""])
def test_keys_of_the_old_policy_go_with_a_note_and_shared_ones_stay(named: str) -> None:
    scenario, notes = read_scenario(write(named + OWN_KEYS), ["engine.policy=static"])
    assert (scenario.engine.policy, scenario.engine.max_num_seqs, scenario.engine.kv_blocks) == (
        "static",
        64,
        500,
    )
    assert notes == (LEFT_OUT.format("max_num_batched_tokens"), LEFT_OUT.format("watermark"))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("varied", [False, True])
def test_varied_values_switch_as_set_ones_do(varied: bool) -> None:
    options = ["engine.policy=orca"]
    path = write(OWN_KEYS)
    loaded = read_scenario(path, varied=options) if varied else read_scenario(path, options)
    assert loaded.scenario.engine.policy == "orca"
    assert len(loaded.notes) == 2


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_can_take_the_place_of_every_other(policy: str) -> None:
    path = Path("x.yaml")
    switched = [f"engine.policy={policy}", "engine.block_size=16"]
    for settings in get_args(Engine):
        written = settings().model_dump(exclude_none=True, mode="json")
        path.write_text(SCENARIO.format(engine="") + dump({"engine": written}), encoding="utf-8")
        scenario, notes = read_scenario(path, switched)
        assert scenario.engine.policy == policy
        assert {note.split()[2].removeprefix("engine.") for note in notes} == set(written) - set(
            type(scenario.engine).model_fields
        )
        Path("y.yaml").write_text(to_yaml(scenario), encoding="utf-8")
        assert read_scenario(Path("y.yaml")) == (scenario, ())


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "options",
    [
        ["engine.policy=vllm-v1"],
        [],
        ["engine={policy: static, max_num_seqs: 3}"],
        ["engine.policy=static", "engine.policy=vllm-v1"],
        ["engine.max_num_seqs=3"],
    ],
)
def test_nothing_is_said_where_nothing_is_left_out(options: list[str]) -> None:
    assert read_scenario(write(OWN_KEYS), options).notes == ()


def problems(engine: str, *options: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(write(engine), options)
    return str(caught.value).splitlines()


@pytest.mark.usefixtures("folder")
def test_a_key_that_an_option_sets_must_belong_to_the_new_policy() -> None:
    (problem,) = problems(OWN_KEYS, "engine.watermark=0.1", "engine.policy=static")
    assert problem.startswith(
        "--set engine.watermark=0.1: engine.watermark is not a key of static; it knows"
    )


@pytest.mark.usefixtures("folder")
def test_a_key_that_no_policy_of_the_file_knows_is_still_a_mistake() -> None:
    assert problems("  max_num_seq: 3", "engine.policy=static") == [
        "x.yaml:4: engine.max_num_seq is not a known key (did you mean max_num_seqs?)"
    ]


@pytest.mark.usefixtures("folder")
def test_a_policy_that_the_file_itself_names_keeps_its_keys_honest() -> None:
    (problem,) = problems("  policy: static\n  watermark: 0.1")
    assert problem.startswith("x.yaml:5: engine.watermark is not a key of static; it knows")


@pytest.mark.usefixtures("folder")
def test_an_unknown_policy_is_the_only_thing_said() -> None:
    (problem,) = problems(OWN_KEYS, "engine.policy=statik")
    assert problem.startswith("--set engine.policy=statik: engine.policy must be single, static, ")
    assert problem.endswith("not 'statik' (did you mean static?)")
