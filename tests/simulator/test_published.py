"""Published orders and counts, from the paper scenarios in reduced size; in full: docs/reproductions.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import batching
from benchmarks.papers import anyscale, orca, sarathi, vllm
from benchmarks.papers.inputs import (
    DISTSERVE_66B,
    FITTED,
    PAPERS,
    VLLM_13B,
    anyscale_lengths,
    profiles,
    ratios,
)
from benchmarks.papers.runs import Setting, filtered_sharegpt, mean_rows, run
from benchmarks.reproductions import EXPERIMENTS, document
from simulator.cost_model import load_cost_model
from simulator.engine.plan import IterationShape
from simulator.hardware import load_hardware
from simulator.models import load_model

ROOT = Path(__file__).parents[2]
REDUCED = Setting(share=0.25)


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", sarathi.TABLE_4)
def test_table_4_of_sarathi_orders_the_three_ways_of_batching(name: str) -> None:
    """OSDI 2024, table 4: TTFT hybrid < combined < chunked-only, TBT combined < chunked-only << hybrid."""
    found = sarathi.measured(Setting(), sarathi.TABLE_4[name].scenario)
    assert sarathi.in_order(found) == (True, True), found


@pytest.mark.parametrize(
    ("rule", "low", "high"), [("max", 6.9, 7.0), ("pow2", 9, 11.5), ("oracle", 12.5, 16.5)]
)
def test_orca_variants_batch_as_in_figure_13_of_the_vllm_paper(
    shared: Callable[..., Path], tmp_path: Path, rule: str, low: float, high: float
) -> None:
    """SOSP 2023, figure 13a: 7.00, 9.81 and 13.62 requests on average with real ShareGPT lengths."""
    shared("data", "traces", "nanoflow-lengths", "sharegpt.csv")
    lengths = Setting(filtered_sharegpt(tmp_path)).chat_lengths()
    done = run("vllm-paper-sharegpt", *lengths, "workload.requests=1000", *vllm.ORCA[rule])
    assert low <= mean_rows(done) <= high


def test_engines_of_the_anyscale_benchmark_rank_as_published() -> None:
    """Anyscale, 2023: HF < FasterTransformer < Ray Serve and TGI < vLLM where outputs vary most."""
    found = {engine: total for engine, (total, _) in anyscale.throughput(REDUCED, 1536, 1).items()}
    assert found["HF"] < found["FT"] < found["quota, cap"] < found["quota"] < found["vLLM"]


def test_orca_leads_by_an_order_of_magnitude_where_lengths_differ() -> None:
    """OSDI 2022, figure 10: 36.9 times FasterTransformer's rate at 190 ms per token, far less if equal."""

    def keeps(rate: float, *overrides: str) -> bool:
        done = run("orca-175b", "workload.requests=200", f"workload.arrivals.rate_per_s={rate}", *overrides)
        return bool(done.summary["normalized_ms_per_token"]["p50"] <= orca.LATENCY_LIMIT_MS)

    transformer = ("engine.policy=faster-transformer", "engine.max_num_seqs=8")
    assert keeps(10)
    assert not keeps(1, *transformer)
    assert keeps(1, *transformer, *orca.UNIFORM)


def test_input_files_are_what_the_code_writes() -> None:
    for name, fields in profiles().items():
        assert json.loads((PAPERS / "profiles" / f"{name}.json").read_text()) == fields
    for name, rows in anyscale_lengths().items():
        written = (PAPERS / "lengths" / f"{name}.csv").read_text().splitlines()[1:]
        assert written == [f"{prompt},{output}" for prompt, output in rows]


def test_a_fitted_profile_prices_prompts_and_decodes_as_the_fit_does() -> None:
    """DistServe's coefficients for vLLM, the fixed part and the keys scaled by 2,039 / 1,555 GB/s."""
    place = FITTED["opt-13b_a100-40_vllm"][1]
    cost, _ = load_cost_model(
        "profiles/opt-13b_a100-40_vllm.json",
        load_model(place.model),
        load_hardware(place.hardware),
        place.dtype,
        1,
        PAPERS,
    )
    slower = ratios(VLLM_13B.place, place).keys
    assert slower == pytest.approx(2039 / 1555, rel=1e-3)
    prompts = IterationShape(2, 800, 300 * 301 // 2 + 500 * 501 // 2, 0, 0)
    fit_ms = 22.05 * slower + 0.14051 * 800 + 8.08e-6 * (300**2 + 500**2)
    assert cost.iteration_ns(prompts) == pytest.approx(fit_ms * 1e6, rel=1e-6)
    for rows, keys, coefficients in ((30, 6_000, VLLM_13B.small), (120, 12_000, VLLM_13B.large)):
        assert coefficients is not None
        fixed, per_key, per_row = coefficients
        fit_ms = (fixed + per_key * keys) * slower + per_row * rows
        assert cost.iteration_ns(IterationShape(0, 0, 0, rows, keys)) == pytest.approx(
            fit_ms * 1e6, rel=1e-6
        )


def test_ratios_are_work_per_gpu_over_the_data_sheet() -> None:
    """GPT-3 175B on 16 GPUs against OPT-66B on four: half the KV heads and layers' width per GPU."""
    by = ratios(DISTSERVE_66B.place, FITTED["gpt-175b_a100-40_tp16_distserve"][1])
    assert by.attention == pytest.approx(96 * 12288 / 16 / (64 * 9216 / 4))
    assert by.keys == pytest.approx(by.attention * 2039 / 1555, rel=1e-3)


def test_static_batches_of_ten_and_a_thousand_waste_nine_tenths_from_twelve_rows_on() -> None:
    """1 - (1000 + 10 (B - 1)) / 1000 B: 49.5 % at 2, 86.6 % at 8, beyond 90 % only from 12."""
    wasted = {int(row[0]): float(row[2].rstrip("%")) for row in list(batching.padding())[1:]}
    assert (wasted[2], wasted[8], wasted[12]) == (49.5, 86.6, 90.8)
    assert [rows for rows, share in wasted.items() if share > 90] == [12, 16, 32]


def test_the_page_lists_every_failure_twice() -> None:
    """Once at the top and once in its table."""
    experiment = EXPERIMENTS[-1](Setting(share=0.1))
    failed = [row for row in experiment.rows if row.holds is False]
    page = document([experiment], real_lengths=True)
    assert page.count("| **no** |") == len(failed)
    assert all(page.count(row.why) >= 2 for row in failed)
    assert f"{len(experiment.rows) - len(failed)} of {len(experiment.rows)} bands hold" in page
