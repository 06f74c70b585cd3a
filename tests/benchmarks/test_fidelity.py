"""The fidelity page: its figures follow from its rows, and one small set gives the printed ones again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from benchmarks.fidelity import vllm_cpu
from benchmarks.fidelity.__main__ import joined
from benchmarks.fidelity.engine_terms import EngineTerms, fit_terms
from benchmarks.fidelity.fit import read_terms
from benchmarks.fidelity.kernel_tables import Held
from benchmarks.fidelity.page import document
from benchmarks.fidelity.study import Row, Study, Target, verdict
from benchmarks.fidelity.trtllm_online import Run, arrivals
from simulator.profile import find_profile

Shared = Callable[..., Path]
PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"
HEAD = Held("some profile", "head", 9, 0.04, 0.08)
ROWS = (
    Row("a", "TTFT", 100, 110, "test"),
    Row("b", "TTFT", 100, 80, "test"),
    Row("c", "TTFT", 100, 500, "fit"),
    Row("a", "TPOT", 10, 10, "fit"),
)


def test_targets_count_test_rows_only() -> None:
    study = Study("title", "", "", ROWS)
    largest, middle = (verdict(study, Target("TTFT", 0.16, of)) for of in ("each", "median"))
    assert largest.reached == pytest.approx(0.2)
    assert middle.reached == pytest.approx(0.15)
    assert (largest.rows, largest.met, middle.met) == (2, False, True)


def test_parts_of_a_set_are_joined_in_order() -> None:
    parts = [Study("t", "", "", ROWS[:1]), Study("u", "", "", ()), Study("t", "", "", ROWS[1:])]
    assert [(study.title, len(study.rows)) for study in joined(parts)] == [("t", 4), ("u", 0)]


def test_a_missed_target_is_printed_as_missed() -> None:
    target = Target("TTFT", 0.15, "each")
    page = document([Study("Some engine, some GPU", "", "", ROWS, (target,))], [HEAD])
    assert "| Some engine | TTFT, largest error | 15% | 20.0% | 2 | **no** |" in page
    assert "| some profile | head | 9 | **4.0%** | 8.0% |" in page


def test_the_page_holds_what_its_smallest_set_gives(shared: Shared) -> None:
    """Steps of real vLLM on a CPU, every second one predicted by a fit of the others."""
    folder = shared("data", *vllm_cpu.FOLDER.parts)
    name = "vllm_m50_bf16_inproc"
    errors = [row.error for row in vllm_cpu.step_rows(folder, name) if row.metric == "decode step"]
    line = (
        f"| {name} | decode step | {len(errors)} | {median(map(abs, errors)):.1%} | {median(errors):+.1%} |"
    )
    assert line in PAGE.read_text(encoding="utf-8")


def test_terms_stretch_arithmetic_and_leave_traffic() -> None:
    profile = find_profile("h100-sxm_llama-3.1-8b_bf16_tp1", Path())
    changed = EngineTerms(25, 10, 500, 1.2, 6000).applied(profile)
    dense, slowed = profile.by_tokens["dense"], changed.by_tokens["dense"]
    assert slowed.ns[0] == dense.ns[0]
    assert slowed.ns[-1] - slowed.ns[0] == pytest.approx(1.2 * (dense.ns[-1] - dense.ns[0]))
    assert (changed.host_ns, changed.host_row_ns, changed.host_prompt_ns) == (25e3 * 32, 10e3, 500e3)
    assert changed.server_overhead_ns == 6_000_000


def test_the_search_finds_known_terms() -> None:
    wanted = EngineTerms(30, 12, 800, 1.25, 7000)

    def distance(terms: EngineTerms) -> float:
        return sum(abs(found / right - 1) for found, right in zip(terms, wanted, strict=True))

    assert distance(fit_terms(distance, EngineTerms(10, 40, 300, 1.0, 20000))) < 0.2


def test_stored_terms_are_those_that_the_studies_ask_for() -> None:
    assert set(read_terms()) == {
        "trtllm-0.14 meta-llama/Llama-3.1-8B TP1",
        "trtllm-0.14 meta-llama/Llama-3.1-70B TP4",
        "argonne vLLM",
        "argonne TensorRT-LLM",
    }


def test_the_clients_gaps_give_the_measured_rate() -> None:
    """500 requests at a nominal 4/s were served at 3.95/s when the engine kept up."""
    run = Run("meta-llama/Llama-3.1-8B", "h100-sxm", 1, 467, 16, 4.0, 3.95, 20, 7)
    sent = arrivals(run)
    assert len(sent) / (sent[-1].arrival_ns / 1e9) == pytest.approx(3.97, abs=0.02)
