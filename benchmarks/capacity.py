"""How long a capacity search takes, and how far roofline step times are from the shipped profiles'.

    python -m benchmarks.capacity [--workers N] [--roofline]

The search: ShareGPT preset, H100, Llama-3.1-8B, p99 TTFT 500 ms and p99 TPOT 50 ms, to +-2 % of the rate,
verified. CPU time counts the workers' too, so it can be compared on a busy machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from simulator.cost_model import load_cost_model
from simulator.engine.plan import IterationShape
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.planning import capacity
from simulator.profile import Profile, shipped_profiles
from simulator.scenario_file import load_scenario

SCENARIO = Path(__file__).resolve().parents[1] / "scenarios" / "quickstart.yaml"
SLO = "slo={ttft_ms: 500, tpot_ms: 50}"
MOST_KEYS = 400_000


def search(workers: int | None) -> None:
    """One search, timed."""
    started = perf_counter()
    found = capacity(load_scenario(SCENARIO, [SLO]), replicas=1, workers=workers)
    wall_s = perf_counter() - started
    best = found.best
    assert best is not None
    assert best.limit_per_s is not None
    low, high = best.limit_per_s.low, best.limit_per_s.high
    print(
        f"{best.limit_per_s.value:.1f} requests/s [{low:.1f}, {high:.1f}], "
        f"verified at {best.rate_per_s:.1f}: {wall_s:.1f} s, "
        f"{found.simulated:,} requests, {found.simulated / wall_s:,.0f} per second"
    )


def roofline() -> None:
    """Median relative error of the roofline's step times, over shapes of steps and shipped profiles."""
    ratios = [ratio for profile in shipped_profiles() for ratio in _ratios(profile)]
    errors = [abs(np.log(ratio)) for ratio in ratios]
    print(
        f"roofline: median error {median(errors):.3f}, real steps take {median(ratios):.2f} times as long "
        f"({len(ratios)} steps)"
    )


def _ratios(profile: Profile) -> list[float]:
    model, hardware = load_model(profile.model), load_hardware(profile.hardware)
    measured, bound = (
        load_cost_model(name, model, hardware, profile.dtype, profile.tensor_parallel, Path())[0]
        for name in (profile.name, "roofline")
    )
    return [measured.iteration_ns(shape) / bound.iteration_ns(shape) for shape in _shapes()]


def _shapes() -> list[IterationShape]:
    return [
        IterationShape(
            prefills=1 if prompt else 0,
            prefill_tokens=prompt,
            prefill_pairs=prompt * (prompt + 1) // 2,
            decodes=rows,
            context_tokens=rows * context,
            padding_tokens=0,
        )
        for rows in (1, 8, 32, 64, 128, 256)
        for context in (256, 1024, 4096)
        for prompt in (0, 512, 2048)
        if rows * context <= MOST_KEYS
    ]


def main() -> None:
    """Measure what was asked for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--workers", type=int, default=None)
    options.add_argument("--roofline", action="store_true")
    asked = options.parse_args()
    if asked.roofline:
        roofline()
    else:
        search(asked.workers)


if __name__ == "__main__":
    main()
