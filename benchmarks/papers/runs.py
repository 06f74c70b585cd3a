"""Running paper scenarios and judging what comes out."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.papers.inputs import PAPERS
from simulator.scenario_file import load_scenario
from simulator.simulation import Simulation, simulate

SHAREGPT = Path("../shared/data/traces/nanoflow-lengths/sharegpt.csv")
LEAST_REQUESTS = 60


class Row(NamedTuple):
    """One published figure beside ours. ``holds`` is None where nothing was asserted."""

    what: str
    ours: str
    published: str
    band: str
    holds: bool | None
    why: str


class Experiment(NamedTuple):
    """A paper's rows, with what one must know to read them."""

    title: str
    setting: str
    rows: list[Row]


class Setting(NamedTuple):
    """What all experiments share: real ShareGPT lengths, where they are at hand, and the size of runs."""

    sharegpt: Path | None = None
    share: float = 1.0

    def requests(self, full: int) -> str:
        """An override that offers this many requests, fewer in a reduced run."""
        return f"workload.requests={max(LEAST_REQUESTS, round(full * self.share))}"

    def chat_lengths(self) -> tuple[str, ...]:
        """An override for real ShareGPT lengths; without them the scenario's preset stays."""
        if self.sharegpt is None:
            return ()
        return (f"workload.lengths={{empirical: {self.sharegpt}}}",)


def filtered_sharegpt(folder: Path) -> Path | None:
    """ShareGPT's lengths through the filter of vLLM's benchmark, in a file in ``folder``.

    benchmarks/benchmark_serving.py of 2023: at least 4 tokens each, prompts to 1,024, 2,048 together.
    """
    if not SHAREGPT.is_file():
        return None
    with SHAREGPT.open() as text:
        pairs = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(text)]
    kept = [f"{p},{o}" for p, o in pairs if p >= 4 and o >= 4 and p <= 1024 and p + o <= 2048]
    path = folder / "sharegpt.csv"
    path.write_text("\n".join(["prompt_tokens,output_tokens", *kept]) + "\n", encoding="utf-8")
    return path.resolve()


def run(name: str, *overrides: str, seed: int = 0) -> Simulation:
    """A scenario of scenarios/papers under ``--set`` overrides."""
    return simulate(load_scenario(PAPERS / f"{name}.yaml", overrides, seed), folder=PAPERS)


def mean_rows(done: Simulation) -> float:
    """Requests in a batch, averaged over busy time."""
    return float(done.summary["batch"]["mean_rows"])


def token_states(done: Simulation, slots: int) -> float:
    """Share of the KV slots that hold a token, averaged over busy time."""
    table = done.tables.iterations
    held = table["context_tokens"] + table["decodes"] * (table["repeats"] - 1) / 2 + table["prefill_tokens"]
    return float(np.average(held, weights=table["end_ns"] - table["start_ns"])) / slots


def highest_rate(meets: Callable[[float], bool], low: float, high: float, steps: int = 7) -> float:
    """The highest rate that meets a target, by bisection on a logarithmic scale.

    The last rate that met it; ``low`` where none did.
    """
    for _ in range(steps):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def ratio_row(what: str, ours: float, published: str, band: tuple[float, float], why: str) -> Row:
    """A ratio with two digits against a band."""
    low, high = band
    return Row(what, f"{ours:.2f}", published, f"{low:g} to {high:g}", low <= ours <= high, why)
