"""How fast each iteration-level policy simulates beside vllm-v1, and whether a long queue costs more.

    python -m benchmarks.policies [--requests 2000]

The first table runs the same synthetic ShareGPT workload through every policy, all of them once per
round, and gives medians of each round's ratio of CPU times. The second serves requests out of a queue
that is kept at 1,000 and at 100,000 waiting, and counts only the serving.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Mapping
from statistics import median
from time import process_time

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from simulator.cost_model import DecodeLine
from simulator.engine.plan import IterationShape, Plan
from simulator.engine.request import Request
from simulator.engine.scheduler import UNBOUNDED, Scheduler
from simulator.engine_settings import EngineSettings
from simulator.executor import SimulatedExecutor
from simulator.policies import POLICIES, make_scheduler
from simulator.scenario import Scenario
from simulator.simulation import simulate

REFERENCE = "vllm-v1"
ROUNDS = 5
FCFS_VARIANTS: dict[str, dict[str, object]] = {
    "vllm-v1": {},
    "orca": {"reservation": "oracle"},
    "vllm-0.1": {},
    "vllm-v0": {},
    "tgi": {},
    "sarathi": {},
    "tensorrt-llm": {},
    "tensorrt-llm, chunked": {"context_chunking": "fcfs"},
    "tensorrt-llm, equal progress": {"context_chunking": "equal-progress"},
    "tensorrt-llm, max utilization": {"capacity_policy": "max-utilization", "context_chunking": "fcfs"},
    "tensorrt-llm, static batch": {"capacity_policy": "static-batch", "context_chunking": "fcfs"},
    "sglang": {},
    "sglang, mixed": {"enable_mixed_chunk": True},
    "sglang, pages of 16": {"block_size": 16},
}
SORTING_VARIANTS: dict[str, dict[str, object]] = {"sglang, lpm": {"schedule_policy": "lpm"}}
KV_BLOCKS, MAX_MODEL_LEN, MAX_NUM_SEQS = 1 << 15, 4096, 64  # of the queues


def settings_of(variant: str) -> dict[str, object]:
    """A variant's engine settings; its policy is what stands before the comma."""
    knobs = {**FCFS_VARIANTS, **SORTING_VARIANTS}[variant]
    return {"policy": variant.split(",", 1)[0], **knobs}


def known(variants: dict[str, dict[str, object]]) -> list[str]:
    """The variants whose policy is there."""
    return [variant for variant in variants if variant.split(",")[0] in POLICIES]


def scenario(variant: str, requests: int) -> Scenario:
    """A moderate load: vllm-v1 keeps up with it, with some ninety requests running."""
    return Scenario.model_validate(
        {
            "model": "meta-llama/Llama-3.1-8B",
            "hardware": "h100-sxm",
            "engine": settings_of(variant),
            "workload": {
                "arrivals": {"process": "poisson", "rate_per_s": 30},
                "lengths": {"preset": "sharegpt"},
                "requests": requests,
            },
        }
    )


def side_by_side(requests: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Per variant: median microseconds of CPU per request, and speed relative to the reference's."""
    variants = known({**FCFS_VARIANTS, **SORTING_VARIANTS})
    micros: dict[str, list[float]] = {variant: [] for variant in variants}
    for variant in variants:
        simulate(scenario(variant, 100))
    for _ in range(rounds):
        for variant in variants:
            made = scenario(variant, requests)
            start = process_time()
            simulate(made)
            micros[variant].append((process_time() - start) / requests * 1e6)
    return {
        variant: (
            median(spent),
            median(mine / its for mine, its in zip(micros[REFERENCE], spent, strict=True)),
        )
        for variant, spent in micros.items()
    }


def queue_scheduler(variant: str) -> Scheduler:
    """A scheduler with few seats, so that the queue in front of it stays."""
    settings = {"max_num_seqs": MAX_NUM_SEQS, **settings_of(variant)}
    engine = TypeAdapter(EngineSettings).validate_python(settings)
    return make_scheduler(engine, KV_BLOCKS, MAX_MODEL_LEN, lambda: MAX_MODEL_LEN, 1)


class Free:
    """A clock that nobody reads: only decisions are timed."""

    def iteration_ns(self, shape: IterationShape) -> int:  # noqa: ARG002
        return 1

    def decode_line(self, decodes: int, context_tokens: int) -> DecodeLine:  # noqa: ARG002
        return DecodeLine(1.0, 0.0, UNBOUNDED)

    def extrapolated(self, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
        return np.zeros(len(columns["decodes"]), dtype=bool)


class Queue:
    """A scheduler whose queue is topped up by a request for each that leaves."""

    def __init__(self, scheduler: Scheduler, waiting: int) -> None:
        self.scheduler = scheduler
        self.executor = SimulatedExecutor(Free())
        self._id = 0
        for _ in range(waiting):
            self._send_next()

    def _send_next(self) -> None:
        """Prompts of 16 to 135 tokens, answers of 4 to 32, in no order, the same every time."""
        self.send(16 + 37 * self._id % 120, 4 + 11 * self._id % 29)

    def send(self, prompt: int, output: int) -> None:
        request = Request(self._id, 0, prompt, output)
        self._id += 1
        self.scheduler.add(request)
        self.executor.expect(request, output)

    def iterate(self) -> tuple[Plan, int]:
        """One iteration; how many requests it has answered."""
        plan = self.scheduler.plan()
        assert plan is not None
        return plan, len(self.scheduler.commit(plan, self.executor.finish(plan)))

    def serve(self, requests: int) -> None:
        """Iterate until this many more have been answered."""
        answered = 0
        while answered < requests:
            _, left = self.iterate()
            answered += left
            for _ in range(left):
                self._send_next()


def queue_micros(variant: str, waiting: int, requests: int = 1000) -> float:
    """Microseconds of CPU per request served from a queue of this length."""
    queue = Queue(queue_scheduler(variant), waiting)
    queue.serve(200)
    start = process_time()
    queue.serve(requests)
    return (process_time() - start) / requests * 1e6


def queues(rounds: int) -> dict[str, tuple[float, float]]:
    """Per first-come-first-served variant: microseconds per request at 1,000 and at 100,000 waiting."""
    gc.disable()
    found: dict[str, tuple[float, float]] = {}
    for variant in known(FCFS_VARIANTS):
        pairs = [(queue_micros(variant, 1000), queue_micros(variant, 100_000)) for _ in range(rounds)]
        found[variant] = min(short for short, _ in pairs), min(long for _, long in pairs)
        gc.collect()
    gc.enable()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=2000, help="requests per run of the first table")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    console = Console()
    speed = Table(
        title=f"{options.requests:,} ShareGPT requests, all metrics included", title_justify="left"
    )
    for column in ("policy", "µs/request", f"x {REFERENCE}"):
        speed.add_column(column, justify="left" if column == "policy" else "right")
    for variant, (micros, ratio) in side_by_side(options.requests, options.rounds).items():
        speed.add_row(variant, f"{micros:.0f}", f"{ratio:.2f}")
    console.print(speed)
    queue = Table(title="µs per request served while others wait", title_justify="left")
    for column in ("policy", "1,000 waiting", "100,000 waiting", "ratio"):
        queue.add_column(column, justify="left" if column == "policy" else "right")
    for variant, (short, long) in queues(options.rounds).items():
        queue.add_row(variant, f"{short:.1f}", f"{long:.1f}", f"{long / short:.2f}")
    console.print(queue)


if __name__ == "__main__":
    main()
