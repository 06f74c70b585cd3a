"""Scenarios with more than one kind of replica, and what can be wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.disaggregation import Link
from simulator.errors import ScenarioError
from simulator.fleet import build_fleet, load_groups
from simulator.models import load_model
from simulator.scenario import Scenario
from simulator.scenario_file import Draft, load_scenario, read_draft, to_yaml
from simulator.simulation import simulate
from simulator.workloads.workload import build_workload

SCENARIOS = Path(__file__).parents[2] / "scenarios"
BASE = """\
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
workload:
  arrivals: {process: poisson, rate_per_s: 30}
  lengths: {fixed: {prompt: 500, output: 50}}
  requests: 200
"""


def read(text: str) -> Scenario:
    return read_draft(Draft("x.yaml", BASE + text, Path(), "x")).scenario


WRONG = [
    ("fleet: 3", "x.yaml:7: fleet must be a list of mappings, not 3"),
    ("fleet: []", "x.yaml:7: fleet must hold at least one group of replicas"),
    ("fleet: [{hardware: a100}]", "x.yaml:7: hardware: 'a100' is not known; did you mean 'a10g'?"),
    ("fleet: [{hardwar: x}]", "x.yaml:7: fleet[0].hardwar is not a known key (did you mean hardware?)"),
    ("fleet: [{replicas: 0}]", "x.yaml:7: fleet[0].replicas must be >= 1, not 0"),
    (
        "fleet: [{replicas: 1}]\nreplicas: 2",
        "x.yaml:7: fleet cannot stand beside replicas (2): it says how many there are",
    ),
    (
        "fleet: [{}, {hardware: h100-sxm/1g.10gb, parallel: {tensor: 2}}]",
        "x.yaml:7: fleet[1].parallel.tensor must be 1 on h100-sxm/1g.10gb, not 2: "
        "a process sees one MIG slice only",
    ),
    ("failures: [{replica: 0}]", "x.yaml:7: failures[0] must give either at_s or mtbf_s"),
    (
        "failures: [{replica: 1, at_s: 3}]",
        "x.yaml:7: failures[0].replica must be below the number of replicas, 1, not 1",
    ),
    ("failures: [{mtbf_s: 3}]", "x.yaml:7: failures[0].restart_s is required with mtbf_s"),
    ("failures: [{at_s: 3}]", "x.yaml:7: failures[0].replica is required: which one fails at at_s"),
    (
        "autoscaling: {min: 3, max: 2, target_outstanding: 4}",
        "x.yaml:7: autoscaling.min must be <= autoscaling.max, 2, not 3",
    ),
    ("replicas: 1000000", "x.yaml:7: replicas must come to 100,000 engines at most, not 1,000,000"),
    ("fleet: [{replicas: 1e9}]", "x.yaml:7: fleet must come to 100,000 engines at most, not 1,000,000,000"),
    (
        "autoscaling: {max: 2, target_outstanding: 4, interval_s: 1e-9}",
        "x.yaml:7: autoscaling.interval_s must be >= 0.001, not 1e-09",
    ),
    ("autoscaling: {max: 2}", "x.yaml:7: autoscaling.target_outstanding is required"),
    (
        "disaggregation: {prefill: {}, decode: {engine: {policy: orca}}}",
        "x.yaml:7: disaggregation.decode.engine.policy must be vllm-v1, not orca: "
        "no other policy is modelled with its two halves apart",
    ),
    (
        "disaggregation: {prefill: {}, decode: {}}\nfleet: [{}]",
        "x.yaml:7: disaggregation cannot stand beside fleet",
    ),
    (
        "disaggregation: {prefill: {}, decode: {}}\nfailures: [{mtbf_s: 9, restart_s: 1}]",
        "x.yaml:8: failures cannot stand beside disaggregation: not modelled together",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[text for text, _ in WRONG])
def test_what_is_wrong_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(text)
    assert str(caught.value) == message


RIGHT = [
    "fleet: [{replicas: 2}, {hardware: a100-80-sxm, engine: {max_num_seqs: 32}}]",
    "disaggregation: {prefill: {replicas: 2}, decode: {}, bandwidth_gb_per_s: 25}",
    "failures: [{replica: 0, at_s: 1, restart_s: 2}, {mtbf_s: 100, restart_s: 5}]",
    "autoscaling: {max: 3, target_outstanding: 8}\nrouter: power-of-two",
    "parallel: {pipeline: 2}\nreplicas: 2",
    "fleet: [{}]",
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_resolved_scenario_reads_back_equal_and_runs_to_the_same_figures(text: str) -> None:
    scenario = read(text)
    again = read_draft(Draft("y.yaml", to_yaml(scenario), Path(), "y")).scenario
    assert again == scenario
    first, second = simulate(scenario).summary, simulate(again).summary
    assert first["requests"]["completed"] == 200
    for summary in (first, second):
        del summary["simulation"]
    assert json.dumps(first) == json.dumps(second)


@pytest.mark.parametrize(
    "name", ["fleet-mixed", "disaggregated", "failures", "autoscaling", "mig-one-gpu", "mig-seven-slices"]
)
def test_the_examples_run(name: str) -> None:
    scenario = load_scenario(SCENARIOS / f"{name}.yaml", ["workload.requests=50"])
    assert simulate(scenario, folder=SCENARIOS).summary["requests"]["completed"] == 50


def test_groups_inherit_what_they_do_not_say() -> None:
    scenario = read(
        "dtype: float16\nengine: {max_num_seqs: 100}\n"
        "fleet: [{replicas: 2}, {hardware: a100-80-sxm, engine: {max_num_seqs: 32}}]"
    )
    model = load_model(scenario.model)
    groups = load_groups(scenario, model, Path())
    fleet = build_fleet(scenario, model, groups, build_workload(scenario.workload, 0, Path()))
    assert [group.scenario.hardware for group in groups] == ["h100-sxm", "a100-80-sxm"]
    assert {group.scenario.dtype for group in groups} == {"float16"}
    assert [server.scheduler.max_num_seqs for server in fleet.servers] == [100, 100, 32]
    assert [server.group for server in fleet.servers] == [0, 0, 1]


def test_load_of_each_group_adds_up_to_the_whole() -> None:
    summary = simulate(read(RIGHT[0])).summary
    groups = summary["groups"]
    assert sum(group["requests"] for group in groups) == 200
    assert sum(group["prompt_tokens"] for group in groups) == 200 * 500
    assert sum(group["output_tokens"] for group in groups) == 200 * 50
    assert [group["gpus"] for group in groups] == [2, 1]
    assert summary["gpus"] == 3
    assert summary["hardware"] == "h100-sxm + a100-80-sxm"


def test_stages_share_seats_and_blocks_and_come_replica_by_replica_in_turn() -> None:
    scenario = read("parallel: {pipeline: 2}\nreplicas: 2\nengine: {max_num_seqs: 9, kv_blocks: 101}")
    model = load_model(scenario.model)
    groups = load_groups(scenario, model, Path())
    servers = build_fleet(scenario, model, groups, build_workload(scenario.workload, 0, Path())).servers
    assert [server.kv_blocks for server in servers] == [50] * 4
    assert [server.scheduler.max_num_seqs for server in servers] == [5] * 4
    assert servers[0].pipeline is servers[2].pipeline
    assert servers[1].pipeline is servers[3].pipeline
    assert servers[0].pipeline is not servers[1].pipeline


def test_the_kv_of_512_tokens_of_opt_66b_is_what_distserve_says() -> None:
    """DistServe (OSDI 2024), section 3.3: about 1.13 GB, in GiB; at 25 Gbit/s 0.39 s."""
    kv_bytes = 512 * load_model("facebook/opt-66b").kv_bytes_per_token("float16")
    assert kv_bytes / 2**30 == pytest.approx(1.13, abs=0.005)
    assert Link(0, 1e9 * 2_359_296 / (25e9 / 8)).transfer_ns(512) == pytest.approx(0.386e9, rel=0.01)


def test_a_lone_request_takes_its_prompt_the_transfer_and_its_decodes() -> None:
    sides = "disaggregation: {prefill: {}, decode: {}, bandwidth_gb_per_s: 10, latency_ms: 2}"
    once = read("").workload.model_copy(update={"requests": 1})
    apart = read(f"{sides}\nserver_overhead_ms: 0").model_copy(update={"workload": once})
    together = apart.model_copy(update={"disaggregation": None})
    split, whole = simulate(apart), simulate(together)
    assert split.summary["ttft_ms"]["max"] == whole.summary["ttft_ms"]["max"]
    kv_bytes = 500 * load_model(apart.model).kv_bytes_per_token("bfloat16")
    travelled_ms = 2 + kv_bytes / 10e9 * 1000
    waited_ms = split.summary["e2e_ms"]["max"] - whole.summary["e2e_ms"]["max"]
    assert waited_ms == pytest.approx(travelled_ms, abs=1e-3)
    assert split.summary["itl_ms"]["max"] == pytest.approx(
        travelled_ms + whole.summary["itl_ms"]["p50"], rel=0.01
    )


def test_prompts_no_longer_hold_up_the_tokens_of_others() -> None:
    """What DistServe and Splitwise are for: the slowest tokens come much faster on as many GPUs."""
    name = SCENARIOS / "disaggregated.yaml"
    apart = load_scenario(name, ["workload.requests=600"])
    together = apart.model_copy(update={"disaggregation": None, "replicas": 4})
    split, whole = simulate(apart).summary, simulate(together).summary
    assert split["gpus"] == whole["gpus"] == 4
    assert 2 * split["itl_ms"]["p99"] < whole["itl_ms"]["p99"]
