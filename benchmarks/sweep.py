"""How long a sweep takes: 200 points of 2,000 ShareGPT requests each, Llama-3.1-8B on an H100.

    python -m benchmarks.sweep [--workers N]

The target is two minutes on two cores. Wall time counts everything that ``servetwin sweep`` does, from
starting the interpreter to the written table; CPU time is that of all processes together, which a busy
machine does not stretch as it does wall time. A second run finds every point and shows what that costs.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

SCENARIO = Path(__file__).resolve().parents[1] / "scenarios" / "chat-h100.yaml"
GRID = (
    *("--vary", "workload.arrivals.rate_per_s=5:50:5"),
    *("--vary", "engine.max_num_seqs=64:512:x2"),
    *("--vary", "engine.max_num_batched_tokens=1024:16384:x2"),
    *("--set", "workload.requests=2000"),
)
POINTS = 200


def measure(output: str, *options: str) -> tuple[float, float]:
    """Wall and CPU seconds of one sweep."""
    command = [
        sys.executable,
        "-m",
        "simulator",
        "sweep",
        str(SCENARIO),
        *GRID,
        "--output",
        output,
        *options,
    ]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    wall_s = perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", default="2")
    workers = ("--workers", parser.parse_args().workers)
    with tempfile.TemporaryDirectory() as folder:
        for name, options in (("computed", workers), ("reused", (*workers, "--resume"))):
            wall_s, cpu_s = measure(f"{folder}/sweep", *options)
            print(f"{POINTS} points {name}: {wall_s:.1f} s, {cpu_s:.1f} s of CPU")


if __name__ == "__main__":
    main()
