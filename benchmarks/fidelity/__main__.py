"""Predicts every public measurement set and writes docs/fidelity.md.

    python -m benchmarks.fidelity SOURCE [--output docs/fidelity.md]

SOURCE/engines and SOURCE/kernels hold the public data.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks.fidelity import argonne, silicon, trtllm_offline, trtllm_online, vllm_cpu, vllm_sharegpt
from benchmarks.fidelity.fit import read_terms
from benchmarks.fidelity.kernel_tables import head_scatter, left_out
from benchmarks.fidelity.page import document
from benchmarks.fidelity.study import Study

PROCESSES = 2
Part = Callable[[Path], Study]


def parts() -> list[Part]:
    """Studies in the order of the page; the closed loops place by place, since they take longest."""
    terms = read_terms()
    return [
        vllm_sharegpt.study,
        vllm_cpu.study,
        partial(trtllm_online.study, terms=terms),
        *(partial(silicon.study, chosen=[place]) for place in silicon.places()),
        partial(trtllm_offline.study, terms=terms),
        partial(argonne.study, terms=terms),
    ]


def timed(part: Part, source: Path) -> Study:
    """A study, with a line on how long it took."""
    start = perf_counter()
    done = part(source)
    print(f"{perf_counter() - start:6.1f} s  {done.title}", flush=True)
    return done


def joined(studies: list[Study]) -> list[Study]:
    """Parts of one set put together again."""
    found: dict[str, Study] = {}
    for study in studies:
        before = found.get(study.title)
        rows = [*(before.rows if before else ()), *study.rows]
        found[study.title] = study._replace(rows=rows)
    return list(found.values())


def main() -> None:
    options = argparse.ArgumentParser(description="Compare the twin with public measurements.")
    options.add_argument("source", type=Path)
    options.add_argument("--output", type=Path, default=Path("docs/fidelity.md"))
    chosen = options.parse_args()
    if not (chosen.source / "engines").is_dir():
        sys.exit(f"{chosen.source}: holds no engines/; the public measurements are not at hand")
    start = perf_counter()
    with ProcessPoolExecutor(PROCESSES) as pool:
        started = [pool.submit(timed, part, chosen.source) for part in parts()]
        studies = joined([each.result() for each in started])
    page = document(studies, left_out(), head_scatter(chosen.source))
    chosen.output.write_text(page + "\n", encoding="utf-8")
    print(f"{perf_counter() - start:6.1f} s in all: {chosen.output}")


if __name__ == "__main__":
    main()
