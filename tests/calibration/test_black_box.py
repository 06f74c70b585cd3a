"""Whole iterations give back the engine that made them; logs of the wrong form are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.random import Generator

from calibration.black_box import Iteration, fit_iterations
from calibration.fit import as_profile, fit_profile
from calibration.imports import Subject, import_format
from calibration.iteration_logs import shape_of_rows
from simulator.cost_model import ProfileCostModel
from simulator.engine.plan import IterationShape
from simulator.errors import ProfileError, UserError
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.results import write_results
from simulator.roofline import Roofline
from simulator.scenario import Scenario
from simulator.simulation import simulate

SUBJECT = Subject(load_model("servetwin/llama-50m"), load_hardware("cpu"), "bfloat16", 1, "vllm")
TOKENS = (1.0, 64.0, 2048.0)
TOKENS_NS = (4e6, 9e6, 1e8)
ROW_NS, PAIR_NS, KEY_NS = 120e3, 30.0, 400.0


def truth(shape: IterationShape) -> float:
    tokens = shape.prefill_tokens + shape.decodes
    rows = shape.prefills + shape.decodes
    curve = float(np.interp(tokens, TOKENS, TOKENS_NS))
    return curve + ROW_NS * rows + PAIR_NS * shape.prefill_pairs + KEY_NS * shape.context_tokens


def shapes(generator: Generator, count: int = 400) -> list[IterationShape]:
    """Iterations of a chunked server: some with a prompt, most with decodes only."""
    found = [IterationShape(0, 0, 0, 1, 10), IterationShape(1, 2048, 2048 * 2049 // 2, 0, 0)]
    for _ in range(count):
        decodes = int(generator.integers(1, 65))
        context = int(decodes * generator.integers(10, 1000))
        prompt = int(generator.integers(16, 1985)) if generator.random() < 0.4 else 0
        pairs = prompt * (prompt + 1) // 2 + prompt * int(generator.integers(0, 1000))
        found.append(IterationShape(int(prompt > 0), prompt, pairs, decodes, context))
    return found


@pytest.mark.parametrize(("outliers", "within"), [(0.0, 0.01), (0.2, 0.03)])
def test_coefficients_are_recovered(outliers: float, within: float) -> None:
    generator = np.random.default_rng(3)
    log = [
        Iteration(shape, truth(shape) * (generator.uniform(1.5, 4) if generator.random() < outliers else 1))
        for shape in shapes(generator)
    ]
    fit = fit_iterations(log)
    assert fit.pair_ns == pytest.approx(PAIR_NS, rel=within)
    assert fit.key_ns == pytest.approx(KEY_NS, rel=within)
    unseen = shapes(np.random.default_rng(4))
    assert fit.predict(unseen) == pytest.approx([truth(shape) for shape in unseen], rel=0.06)


def test_an_iteration_cut_short_by_mistake_moves_nothing() -> None:
    generator = np.random.default_rng(5)
    log = [
        Iteration(shape, truth(shape) * (0.01 if index % 9 == 0 else 1))
        for index, shape in enumerate(shapes(generator))
    ]
    assert fit_iterations(log).key_ns == pytest.approx(KEY_NS, rel=0.03)


def test_rows_become_sums() -> None:
    assert shape_of_rows([1, 16, 1, 1], [55, 32, 0, 60]) == IterationShape(2, 17, 16 * 32 + 136 + 1, 2, 117)


def test_a_run_of_ours_gives_back_its_own_clock(tmp_path: Path) -> None:
    """A simulated run stands in for a live one: both leave the same tables."""
    scenario = Scenario.model_validate(
        {
            "model": "servetwin/llama-50m",
            "hardware": "cpu",
            "engine": {"policy": "vllm-v1", "max_num_seqs": 64},
            "workload": {
                "arrivals": {"process": "poisson", "rate_per_s": 40},
                "lengths": {"uniform": {"prompt": [16, 512], "output": [16, 256]}},
                "requests": 200,
            },
        }
    )
    done = simulate(scenario)
    write_results(tmp_path / "run", "", done.summary, done.tables)
    found = import_format("servetwin-run", tmp_path / "run", SUBJECT)
    profile = as_profile(fit_profile(found, found.header.host), "black box")
    bounds = Roofline(SUBJECT.model, SUBJECT.hardware, "bfloat16", 1)
    clock = ProfileCostModel(profile, bounds)
    table = done.tables.iterations
    errors = []
    for row in range(len(table["repeats"])):
        if table["repeats"][row] == 1:
            names = ("prefills", "prefill_tokens", "prefill_pairs", "decodes", "context_tokens")
            shape = IterationShape(*(int(table[name][row]) for name in names))
            measured = int(table["end_ns"][row] - table["start_ns"][row])
            errors.append(abs(clock.iteration_ns(shape) / measured - 1))
    assert np.median(errors) < 0.05
    assert found.header.checks["iteration"]["median"] < 0.05


def step_lines(rows: bool) -> list[str]:
    generator = np.random.default_rng(7)
    lines = []
    for shape in shapes(generator, 60):
        if rows and shape.prefills:
            continue
        given: dict[str, object] = {"duration_s": truth(shape) / 1e9}
        names = ("prefill_tokens", "prefill_pairs", "decodes", "context_tokens")
        given |= {name: int(getattr(shape, name)) for name in names}
        lines.append(json.dumps(given))
    return lines


def test_step_counters_are_read(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("\n".join(step_lines(rows=False)) + "\n")
    found = import_format("steps", path, SUBJECT)
    assert {sample.operator for sample in found.samples} == {
        "dense",
        "head",
        "prefill_attention",
        "decode_attention",
    }


def sums(**changed: object) -> str:
    whole = {"prefill_tokens": 8, "prefill_pairs": 36, "decodes": 1, "context_tokens": 50}
    return json.dumps({"duration_s": 1, **whole, **changed})


def test_a_request_of_which_nothing_was_computed_took_no_part() -> None:
    assert shape_of_rows([0, 1, 0, 4], [7, 9, 0, 0]) == IterationShape(1, 4, 10, 1, 10)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            '{"decodes": 1}',
            r"steps.jsonl:1: duration_s must be a number of seconds > 0 and below 1e\+06, not empty; ",
        ),
        ('{"duration_s": NaN}', r"steps.jsonl:1: holds NaN; every number must be finite"),
        ('{"duration_s": -1}', "duration_s must be a number of seconds > 0 and below .*, not -1"),
        ('{"duration_s": "0.1"}', "duration_s must be a number of seconds > 0 and below .*, not '0.1'"),
        ('{"duration_s": 1, "duration_s": 1}', "'duration_s' stands there twice; every key must be there"),
        (
            '{"duration_s": 1, "decodes": -1}',
            "prefill_tokens must be a whole number from 0 to .*, not empty",
        ),
        (f'{{"duration_s": 1, "prefill_tokens": {10**400}}}', "prefill_tokens must be .*, not 1e400"),
        ('{"duration_s": 1, "tokens": [1], "context": ["a"]}', "context must be a list of whole numbers"),
        (
            '{"duration_s": 1, "tokens": [1], "context": 5}',
            "context must be a list of whole numbers, not 5",
        ),
        ('{"duration_s": 1, "tokens": [1, 1], "context": [5]}', "not 2 tokens and 1 context"),
        (sums(prefills=None), "prefills must be a whole number from 0 to .*, not empty"),
        (sums(prefills="1"), "prefills must be a whole number from 0 to .*, not '1'"),
        (sums(prefills=0), "prefills 0, prefill_tokens 8 and prefill_pairs 36 do not go together"),
        (sums(context_tokens=0), "decodes 1 and context_tokens 0 do not go together"),
        ("[]", "must be a JSON object"),
        ('{"duration_s": 1, "tok', "not valid JSON: .*; every line must hold one whole JSON object"),
    ],
)
def test_a_wrong_step_is_named_by_its_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ProfileError, match=complaint):
        import_format("steps", path, SUBJECT)


def test_a_short_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("\n".join(step_lines(rows=False)[:9]) + "\n")
    with pytest.raises(ProfileError, match="a profile needs at least 30 timed iterations"):
        import_format("steps", path, SUBJECT)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no complete results here"):
        import_format("servetwin-run", tmp_path, SUBJECT)


def test_an_unknown_format_and_a_missing_source_say_what_is_right(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="FORMAT must be one of aiconfigurator, llmservingsim, vidur"):
        import_format("vllm", tmp_path, SUBJECT)
    with pytest.raises(
        ProfileError, match=r"no such file or folder; vllm-bench expects detailed result JSON"
    ):
        import_format("vllm-bench", tmp_path / "none.json", SUBJECT)
