"""How long the command line takes to say anything.

    python -m benchmarks.startup

CPU seconds of whole processes, medians of five, beside the CPU time of a bare interpreter.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

QUICKSTART = Path(__file__).resolve().parents[1] / "scenarios" / "quickstart.yaml"
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "servetwin --help": ("-m", "simulator", "--help"),
    "servetwin simulate quickstart.yaml (1,000 requests)": ("-m", "simulator", "simulate", str(QUICKSTART)),
}


def cpu_s(arguments: tuple[str, ...]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    for name, arguments in COMMANDS.items():
        print(f"{median(cpu_s(arguments) for _ in range(5)):6.2f} s  {name}")


if __name__ == "__main__":
    main()
