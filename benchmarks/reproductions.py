"""Runs the published experiments and writes what came out of them, failures as failures.

    python -m benchmarks.reproductions [--output docs/reproductions.md]

From the repository root. The scenarios are those of scenarios/papers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.papers import anyscale, orca, sarathi, tensorrt_llm, vllm
from benchmarks.papers.runs import Experiment, Row, Setting, filtered_sharegpt

EXPERIMENTS: Sequence[Callable[[Setting], Experiment]] = (
    anyscale.offline,
    anyscale.online,
    vllm.blog,
    vllm.figures_2_and_13,
    vllm.figure_12,
    vllm.figure_15,
    orca.experiment,
    sarathi.experiment,
    tensorrt_llm.experiment,
)
SLOWEST_FIRST = (vllm.figure_15, vllm.figure_12, vllm.figures_2_and_13, anyscale.offline)
PROCESSES = 2
VERDICTS = {True: "yes", False: "**no**", None: ""}


def run_all(setting: Setting) -> list[Experiment]:
    """Every experiment, in order, the longest started first."""
    with ProcessPoolExecutor(PROCESSES) as pool:
        order = sorted(EXPERIMENTS, key=lambda experiment: experiment not in SLOWEST_FIRST)
        started = {experiment: pool.submit(timed, experiment, setting) for experiment in order}
        return [started[experiment].result() for experiment in EXPERIMENTS]


def timed(experiment: Callable[[Setting], Experiment], setting: Setting) -> Experiment:
    """An experiment, with a line on how long it took."""
    start = perf_counter()
    done = experiment(setting)
    print(f"{perf_counter() - start:6.1f} s  {done.title}", flush=True)
    return done


def document(experiments: Sequence[Experiment], real_lengths: bool) -> str:
    """The page: what was judged, what failed, and a table for each experiment."""
    judged = [row for experiment in experiments for row in experiment.rows if row.holds is not None]
    failed = [row for row in judged if not row.holds]
    lengths = REAL if real_lengths else PRESET
    return "\n\n".join(
        [
            INTRODUCTION,
            lengths,
            f"**{len(judged) - len(failed)} of {len(judged)} bands hold.** Those that fail:",
            "\n".join(f"- {row.what}: {row.ours}, published {row.published}. {row.why}" for row in failed),
            *(_section(experiment) for experiment in experiments),
        ]
    )


def _section(experiment: Experiment) -> str:
    head = (
        "| | ours | published | band | holds | what the difference is due to |\n|---|---|---|---|---|---|"
    )
    lines = "\n".join(_line(row) for row in experiment.rows)
    return f"## {experiment.title}\n\n{experiment.setting}\n\n{head}\n{lines}"


def _line(row: Row) -> str:
    return f"| {row.what} | {row.ours} | {row.published} | {row.band} | {VERDICTS[row.holds]} | {row.why} |"


INTRODUCTION = """# Published results, reproduced

    python -m benchmarks.reproductions

writes this page (`make reproductions`; a minute of CPU time on two cores, no GPU). Every experiment is a
scenario of `scenarios/papers` under the overrides that its function in `benchmarks/papers` spells out.

**Clocks.** Systems of 2022 and 2023 run on linear fits that DistServe's authors measured on A100-80 GPUs:
engines in Python (HF, TGI, vLLM, and the Orca that vLLM's authors wrote) on their fit of vLLM, engines in
C++ (FasterTransformer, the original Orca) on their fit of DistServe's engine. Where GPU, model or
parallelism differ, each coefficient is scaled by the ratio of data-sheet numbers for what it stands for:
bytes over bandwidth, or arithmetic over peak (`benchmarks/papers/inputs.py`). Later systems run on shipped
profiles. Nothing is tuned per experiment.

**Bands** were fixed before these runs, from the papers and a toy model: they guard more than they prove.
Rows without a band are there for orientation."""
REAL = (
    "ShareGPT lengths: the 52,157 pairs of NanoFlow's file (Apache-2.0) that pass the filter of vLLM's "
    "benchmark, on average 111 tokens in and 328 out."
)
PRESET = (
    "ShareGPT lengths: the preset `sharegpt`, cut at 1,024 tokens each, since the real lengths "
    "(`../shared/data/traces/nanoflow-lengths/sharegpt.csv`) are not at hand; S3 and S4 differ a little."
)


def main() -> None:
    options = argparse.ArgumentParser(description="Run the published experiments.")
    options.add_argument("--output", type=Path, default=Path("docs/reproductions.md"))
    chosen = options.parse_args()
    start = perf_counter()
    with TemporaryDirectory() as folder:
        setting = Setting(filtered_sharegpt(Path(folder)))
        experiments = run_all(setting)
    chosen.output.write_text(document(experiments, setting.sharegpt is not None) + "\n", encoding="utf-8")
    print(f"{perf_counter() - start:6.1f} s in all: {chosen.output}")


if __name__ == "__main__":
    main()
