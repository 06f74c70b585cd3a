"""The host term is recovered from closed-loop figures, and stated with its error on runs left out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from calibration.fit import host_term
from calibration.host import GROUPS, Runs, closed_loop_tpot_ns, fit_host
from simulator.engine.plan import IterationShape

HOST = json.loads((Path(__file__).parents[2] / "calibration" / "host.json").read_text())


class PerToken:
    """A clock that charges 10 ns per row and key-free prompt token, and 1000 per iteration."""

    def iteration_ns(self, shape: IterationShape) -> int:
        return 1000 + 10 * (shape.prefill_tokens + shape.decodes)


def test_a_closed_loop_pays_for_its_own_steps_and_the_others_prompts() -> None:
    # 5 rows; each of the 4 others brings 300 prompt tokens once per 100 steps, in place of one decode
    tpot = closed_loop_tpot_ns(PerToken(), 5, 300, 100)  # type: ignore[arg-type]
    assert tpot == pytest.approx(1050 + 4 / 100 * (300 - 1) * 10)


def test_known_coefficients_are_recovered_despite_outliers() -> None:
    chance = np.random.default_rng(5)
    truth = np.array([150_000.0, 800.0, 12_000.0])
    runs = []
    for group in GROUPS:
        kernels = chance.uniform(3e6, 3e7, 30)
        ranks = np.log2(group.tensor_parallel)
        exposure = np.stack(
            [np.ones(30), np.full(30, 64 * ranks), chance.integers(1, 128, 30) * ranks], axis=1
        )
        measured = kernels + exposure @ truth
        measured[::7] *= 1.3
        runs.append(Runs(group, measured, kernels, exposure))
    assert fit_host(runs) == pytest.approx(truth, rel=0.02)


def test_fit_and_test_share_no_configuration() -> None:
    assert len({group[:6] for group in GROUPS}) == len(GROUPS)
    assert {group.fit for group in GROUPS} == {True, False}


def test_the_shipped_term_helps_on_configurations_it_was_not_fitted_to() -> None:
    error = HOST["test_error"]
    assert error["median_with"] < 0.07 < error["median_without"]


def test_a_borrowed_term_says_so() -> None:
    assert host_term("a100-80-sxm", 1, 32)["borrowed"] is True
    assert host_term("h100-sxm", 1, 32)["borrowed"] is False
    assert host_term("h100-sxm", 1, 32)["row_ns"] == 0
    four = host_term("h100-sxm", 4, 80)
    assert four["iteration_ns"] == HOST["iteration_ns"] + 2 * 80 * HOST["layer_ns"]
