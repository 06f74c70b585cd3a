"""Several sequences per request, from a scenario to its summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.beams import chosen_parents
from simulator.errors import ScenarioError
from simulator.scenario_file import load_scenario
from simulator.simulation import simulate

PAPERS = Path(__file__).parents[2] / "scenarios" / "papers"
ALPACA = PAPERS / "vllm-paper-alpaca.yaml"
VLLM = ("engine.policy=vllm-0.1", "engine.max_model_len=2048")
SCENARIO = """\
model: facebook/opt-13b
hardware: a100-40-sxm
profile: roofline
engine: {policy: vllm-0.1, max_model_len: 2048}
workload:
  arrivals: {process: burst}
  lengths: {fixed: {prompt: 20, output: 50}}
  requests: 30
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "many.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            ["workload.samples=4", "engine={policy: sarathi}"],
            "workload.samples must be 1 with policy sarathi, not 4; vllm-0.1, vllm-v0, vllm-v1 can do more",
        ),
        (
            ["workload.beams=4", "engine={policy: vllm-v1}"],
            "workload.beams must be 1 with policy vllm-v1, not 4; vllm-0.1, vllm-v0 can do more",
        ),
        (
            ["workload.samples=2", "workload.beams=2"],
            "workload.beams cannot stand beside samples: a search has one answer",
        ),
        (
            ["workload.samples=9", "engine.max_num_seqs=8"],
            r"workload.samples must be <= engine.max_num_seqs \(8\), not 9",
        ),
    ],
)
def test_what_a_policy_cannot_do_is_one_line(scenario: Path, overrides: list[str], complaint: str) -> None:
    with pytest.raises(ScenarioError, match=complaint) as caught:
        load_scenario(scenario, overrides)
    assert "\n" not in str(caught.value)


def test_samples_share_their_prompts_first_block(scenario: Path) -> None:
    """By hand: 20 + 49 stored tokens take 5 blocks of 16 in the end, of which the first is shared by three.

    Room for all, so savings are those of one request: two blocks in every iteration but that of its prompt,
    where one sequence stands for all.
    """
    run = simulate(load_scenario(scenario, ["workload.samples=3"]))
    table = run.tables
    assert table.iterations["decodes"].max() == 90
    held = [-(-(20 + step) // 16) for step in range(1, 50)]
    assert run.summary["sharing"]["saved"] == pytest.approx(2 * 49 / (2 + 3 * sum(held)))
    assert run.summary["sharing"]["copies"] == 30 * 2
    assert table.gap_rows.sum() == 30 * 3 * 49
    assert run.summary["tokens"]["output"] == 30 * 50


def test_one_sequence_says_nothing_of_sharing(scenario: Path) -> None:
    assert "sharing" not in simulate(load_scenario(scenario)).summary


def test_v1_samples_are_requests_that_share_through_the_cache(scenario: Path) -> None:
    """Rows as in a gang, the prompt computed once but for the last, partial block of each sample."""
    run = simulate(load_scenario(scenario, ["engine={policy: vllm-v1}", "workload.samples=3"]))
    table = run.tables
    assert (table.iterations["prefill_tokens"] * table.iterations["repeats"]).sum() == 30 * (20 + 4 + 4)
    assert table.gap_rows.sum() == 30 * 3 * 49
    assert len(table.requests["id"]) == 30
    assert run.summary["requests"]["completed"] == 30


def test_parents_are_uniform_and_depend_on_nothing_but_request_and_step() -> None:
    drawn = [chosen_parents(request, step, 4) for request in range(100) for step in range(50)]
    assert drawn == [chosen_parents(request, step, 4) for request in range(100) for step in range(50)]
    counts = [sum(parents.count(beam) for parents in drawn) for beam in range(4)]
    assert sum(counts) == 20_000
    assert all(abs(count - 5000) < 4 * (20_000 * 0.25 * 0.75) ** 0.5 for count in counts)


@pytest.mark.parametrize(
    ("key", "count", "published", "tolerance"),
    [("samples", 2, 6.09, 2), ("samples", 6, 9.79, 3), ("beams", 2, 37.56, 4), ("beams", 4, 53.13, 8)],
)
def test_sharing_saves_what_the_paper_measured(
    key: str, count: int, published: float, tolerance: float
) -> None:
    """arXiv:2309.06180, figure 15a (Alpaca), percentage points; its lengths' shape is our assumption."""
    overrides = [*VLLM, f"workload.{key}={count}", "workload.requests=600"]
    run = simulate(load_scenario(ALPACA, overrides), folder=PAPERS)
    assert 100 * run.summary["sharing"]["saved"] == pytest.approx(published, abs=tolerance)
