"""What --vary accepts, the grid that it spans, and the exact words about what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.alternatives import parse_vary, read_alternatives
from simulator.errors import UserError

SCENARIO = """\
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
engine: {policy: vllm-v1, max_num_seqs: 64}
workload:
  arrivals: {process: poisson, rate_per_s: 8}
  lengths: {preset: sharegpt}
  requests: 10
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("x.yaml")
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1,2", ["1", "2"]),
        ("a= 1 , 2 ", ["1", "2"]),
        ("a={x: 1, y: [1,2]},{z: 3}", ["{x: 1, y: [1,2]}", "{z: 3}"]),
        ("a=[1,2],[3]", ["[1,2]", "[3]"]),
        ("a='x,y',z", ["'x,y'", "z"]),
        ('a={k: "}, {"},z', ['{k: "}, {"}', "z"]),
        ("a=it's,b", ["it's", "b"]),
        ("a=b=c,d", ["b=c", "d"]),
        ("a=1", ["1"]),
    ],
)
def test_values_are_parted_at_commas_outside_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert parse_vary(text) == ("a", tuple(values))


scalars = st.sampled_from(["1", "0.5", "x", "[1, 2]", "{a: 1, b: [2, 3]}", "'p, q'", '"]"', "null"])


@given(st.lists(scalars, min_size=1, max_size=6))
def test_values_come_back_as_they_were_written(values: list[str]) -> None:
    assert parse_vary(f"k={','.join(values)}").values == tuple(values)


WRONG = [
    (
        ["engine.policy"],
        "--vary engine.policy: must be KEY=V1,V2,..., such as engine.policy=static,vllm-v1",
    ),
    (["=1,2"], "--vary =1,2: must be KEY=V1,V2,..., such as engine.policy=static,vllm-v1"),
    (["replicas="], "--vary replicas=: must be KEY=V1,V2,..., such as engine.policy=static,vllm-v1"),
    (["replicas=1,,2"], "--vary replicas=1,,2: value 2 of 3 is empty; write null for none"),
    (["replicas=1,"], "--vary replicas=1,: value 2 of 2 is empty; write null for none"),
    (
        ["replicas=1"],
        "--vary replicas=1: one alternative compares with nothing; give two values or more, such as "
        "engine.policy=static,vllm-v1",
    ),
    (
        ["replicas=1,2", "replicas=3,4"],
        "--vary replicas: is varied twice; give all its values at once: replicas=V1,V2,...",
    ),
    (["seed=1,2"], "--vary seed: seeds are no alternatives; --repeat N runs each with N seeds"),
    (
        ["replicas=1,2,3,4,5,6,7,8,9", "engine.max_num_seqs=1,2,3,4,5,6,7,8"],
        "--vary: 9 x 8 values give 72 alternatives; at most 64 stand side by side",
    ),
    (
        [f"replicas={','.join(map(str, range(1, 66)))}"],
        "--vary: 65 alternatives; at most 64 stand side by side",
    ),
    (
        ["replica=1,2"],
        "--vary replica=1: replica is not a known key (did you mean replicas?)\n"
        "--vary replica=2: replica is not a known key (did you mean replicas?)",
    ),
    (["replicas=1,two,0"], None),
    (
        ["engine.max_num_seqs=8,[1"],
        "--vary engine.max_num_seqs=[1: not YAML: did not find expected ',' or ']'",
    ),
]


@pytest.mark.parametrize(("varied", "message"), WRONG)
def test_what_is_refused(scenario: Path, varied: list[str], message: str | None) -> None:
    with pytest.raises(UserError) as caught:
        read_alternatives(scenario, varied)
    assert message is None or str(caught.value) == message


def test_values_that_never_work_are_all_named(scenario: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_alternatives(scenario, ["replicas=1,two,0", "router=round-robin,least-outstanding"])
    assert str(caught.value).splitlines() == [
        "--vary replicas=two: replicas must be a whole number (copies of the model behind the router), "
        "not 'two'",
        "--vary replicas=0: replicas must be >= 1, not 0",
    ]


def test_a_mistake_in_the_file_is_told_once(scenario: Path) -> None:
    scenario.write_text(SCENARIO + "replica: 1\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_alternatives(scenario, ["engine.policy=static,orca,vllm-v1"])
    assert str(caught.value) == "x.yaml:8: replica is not a known key (did you mean replicas?)"


def test_values_that_do_not_go_together_are_an_alternative_with_a_reason(scenario: Path) -> None:
    found = read_alternatives(
        scenario, ["engine.max_num_seqs=64,512", "engine.max_num_batched_tokens=256,2048"]
    )
    assert [one.scenario is None for one in found] == [False, False, True, False]
    assert found[2].reason == (
        "--vary engine.max_num_seqs=512: engine.max_num_batched_tokens must be >= max_num_seqs "
        "(512), a token for each, not 256"
    )


@pytest.mark.parametrize(
    ("varied", "names"),
    [
        (["engine.policy=static,orca"], ["static", "orca"]),
        (["replicas=1,2"], ["replicas=1", "replicas=2"]),
        (["engine.prefix_caching=true,false"], ["prefix_caching=true", "prefix_caching=false"]),
        (
            ["engine.policy=static,orca", "replicas=1,2"],
            ["static replicas=1", "static replicas=2", "orca replicas=1", "orca replicas=2"],
        ),
        (
            ["slo.ttft_ms=1,2", "workload.lengths={fixed: {prompt: 1, output: 2}},{preset: lmsys}"],
            [
                "ttft_ms=1 lengths={fixed: {prompt: 1, output: 2}}",
                "ttft_ms=1 lengths={preset: lmsys}",
                "ttft_ms=2 lengths={fixed: {prompt: 1, output: 2}}",
                "ttft_ms=2 lengths={preset: lmsys}",
            ],
        ),
        (["profile=auto,roofline"], ["auto", "roofline"]),
        (["engine.policy=static,static"], ["static", "static"]),
    ],
)
def test_names_say_what_differs(scenario: Path, varied: list[str], names: list[str]) -> None:
    assert [one.name for one in read_alternatives(scenario, varied)] == names


def test_a_varied_value_lies_over_set_and_seed(scenario: Path) -> None:
    (first, second) = read_alternatives(
        scenario, ["engine.max_num_seqs=1,2"], ["engine.max_num_seqs=9", "seed=1"], seed=3
    )
    assert first.scenario is not None
    assert second.scenario is not None
    assert (first.scenario.engine.max_num_seqs, first.scenario.seed) == (1, 3)
    assert (second.scenario.engine.max_num_seqs, second.scenario.seed) == (2, 3)
    assert first.values == {"engine.max_num_seqs": "1"}
