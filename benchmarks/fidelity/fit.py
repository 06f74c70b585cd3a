"""Fits the engines' terms again, on the configurations that count as fit: some ten minutes.

    python -m benchmarks.fidelity.fit SOURCE       where SOURCE/engines holds the public data

Writes terms.json beside this file, which `benchmarks.fidelity` reads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.fidelity import argonne, trtllm_online
from benchmarks.fidelity.engine_terms import EngineTerms, fit_terms

TERMS = Path(__file__).with_name("terms.json")
ONLINE = "trtllm-0.14"
BATCHES = "argonne"
ONLINE_RUNS = (
    (467, 256, 4.0),
    (467, 256, 16.0),
    (467, 16, 8.0),
    (467, 16, None),
    (202, 214, 8.0),
    (202, 214, 32.0),
)
BATCH_RUNS = ((128, 1), (128, 64), (512, 16), (1024, 32), (2048, 1), (2048, 64))
PROCESSES = 2


class Job(NamedTuple):
    """What is fitted, from where the search starts, and what it must make small."""

    name: str
    start: EngineTerms
    loss: Callable[[EngineTerms], float]


@dataclass(frozen=True, slots=True)
class OnlineLoss:
    """Mean error of one model's open-loop runs on the GPU that counts as fit; a few of its rates."""

    source: Path
    place: str

    def __call__(self, terms: EngineTerms) -> float:
        runs = [
            run
            for run in trtllm_online.read_runs(self.source)
            if run.place == self.place
            and run.gpu == trtllm_online.FIT_GPU
            and (run.prompt, run.output, run.rate_per_s) in ONLINE_RUNS
        ]
        return trtllm_online.loss(runs, terms)


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """Mean error of one engine's static batches on the GPU and model that count as fit."""

    source: Path
    engine: str

    def __call__(self, terms: EngineTerms) -> float:
        batches = [
            batch
            for batch in argonne.read_batches(self.source)
            if batch.fit and batch.engine == self.engine and (batch.tokens, batch.requests) in BATCH_RUNS
        ]
        return argonne.loss(batches, terms)


def jobs(source: Path) -> list[Job]:
    """All fits, each with a rough first guess."""
    small, large = ("meta-llama/Llama-3.1-8B TP1", "meta-llama/Llama-3.1-70B TP4")
    return [
        Job(f"{ONLINE} {small}", EngineTerms(15.0, 20.0, 500.0, 1.1, 6000.0), OnlineLoss(source, small)),
        Job(f"{ONLINE} {large}", EngineTerms(10.0, 20.0, 4000.0, 1.15, 9000.0), OnlineLoss(source, large)),
        Job(f"{BATCHES} vLLM", EngineTerms(50.0, 36.0, 2000.0, 1.13, 0.0), BatchLoss(source, "vLLM")),
        Job(
            f"{BATCHES} TensorRT-LLM",
            EngineTerms(25.0, 15.0, 100.0, 1.17, 0.0),
            BatchLoss(source, "TensorRT-LLM"),
        ),
    ]


def fit_job(job: Job) -> EngineTerms:
    return fit_terms(job.loss, job.start)


def read_terms() -> dict[str, EngineTerms]:
    """The terms as last fitted."""
    found: Mapping[str, Mapping[str, float]] = json.loads(TERMS.read_text(encoding="utf-8"))
    return {name: EngineTerms(**values) for name, values in found.items()}


def main() -> None:
    work = jobs(Path(sys.argv[1]))
    with ProcessPoolExecutor(PROCESSES) as pool:
        fitted = list(pool.map(fit_job, work))
    lines = [
        f" {json.dumps(job.name)}: {json.dumps(terms._asdict())}"
        for job, terms in zip(work, fitted, strict=True)
    ]
    TERMS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
