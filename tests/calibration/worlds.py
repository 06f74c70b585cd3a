"""A pretended machine: a clock that a bench moves, known coefficients, drift and outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from calibration.compose import shape_of
from calibration.grid import WHOLE, Limits, Point, grid
from calibration.rounds import Taken, measure
from calibration.timings import REFERENCE, Environment, Timing, TimingLog
from simulator.engine.plan import IterationShape

LIMITS = Limits(tokens=2048, rows=64, context=4096, keys=1 << 16, padded_tokens=4096)
POINTS = grid(LIMITS)
ENVIRONMENT = Environment(
    model="servetwin/llama-50m",
    hardware="cpu",
    dtype="bfloat16",
    device="a pretended processor",
    driver="none",
    clocks="steady",
    threads=2,
    kernels="pretended",
    path="fast",
    block_size=16,
    versions={"servetwin": "0"},
)

HOST_NS, ROW_NS, PROMPT_NS, BETWEEN_NS = 300_000.0, 4_000.0, 150_000.0, 20_000.0
PADDED_NS = 900_000.0  # for the mask of a padded batch
REFERENCE_NS = 9_000_000.0
WORKLOAD = (Point("reference_prompts", ()), Point("reference_steps", ()))


def dense_ns(tokens: float) -> float:
    """A floor of memory traffic, then arithmetic."""
    return max(8e6 + 1e4 * tokens, 4.5e5 * tokens)


def head_ns(rows: float) -> float:
    return 3e6 + 1.2e5 * rows


def prefill_ns(chunks: float, tokens: float, pairs: float) -> float:
    return 2e5 + 250 * (pairs + 16 * tokens + 100 * chunks)


def decode_ns(rows: float, keys: float) -> float:
    return 1e5 + 2e4 * rows + 700 * keys


def padded_prefill_ns(rows: float, tokens: float, pairs: float) -> float:
    return 5e5 + 600 * (pairs + 32 * tokens)


def padded_decode_ns(rows: float, keys: float) -> float:
    return 2e5 + 5e4 * rows + 1500 * keys


def iteration_ns(shape: IterationShape, padded: bool = False) -> float:
    """The truth about a whole iteration, without what lies between two of them."""
    prefills, tokens, pairs, decodes, keys, _ = shape
    prefill, decode = (padded_prefill_ns, padded_decode_ns) if padded else (prefill_ns, decode_ns)
    return (
        dense_ns(tokens + decodes)
        + head_ns(prefills + decodes)
        + (prefill(prefills, tokens, pairs) + PROMPT_NS if prefills else 0.0)
        + (decode(decodes, keys) if decodes else 0.0)
        + HOST_NS
        + (PADDED_NS if padded else 0.0)
        + ROW_NS * (prefills + decodes)
    )


def true_ns(point: Point) -> float:
    """The truth about any point."""
    piece, at = point
    if piece in WHOLE:
        return iteration_ns(shape_of(point), padded=piece != "iteration")
    if piece == "prefill_attention":
        chunks, tokens, start = at
        return prefill_ns(chunks, chunks * tokens, chunks * (tokens * start + tokens * (tokens + 1) / 2))
    truths: dict[str, Callable[..., float]] = {
        "dense": dense_ns,
        "head": head_ns,
        "decode_attention": lambda rows, context: decode_ns(rows, rows * context),
        "padded_decode_attention": lambda rows, stored: padded_decode_ns(rows, rows * stored),
        "padded_prefill_attention": lambda rows, w: padded_prefill_ns(
            rows, rows * w, rows * w * (w + 1) / 2
        ),
        "scheduling": lambda _: BETWEEN_NS,
        "block_copy": lambda blocks: 1e4 * blocks,
        "reference_prompts": lambda: 2.4e8,
        "reference_steps": lambda: 2.1e8,
    }
    return truths[piece](*at)


@dataclass
class Machine:
    """A bench and its clock. ``speed``: how many times slower than usual the machine is at a time in s."""

    speed: Callable[[float], float] = lambda _: 1.0
    noise: float = 0.0
    outliers: float = 0.0  # share of executions that take up to four times as long
    waits: float = 0.0  # share of executions that others disturb, doubling them
    seed: int = 0
    now: float = 0.0
    timed: list[Point] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = np.random.default_rng(self.seed)

    def now_ns(self) -> int:
        return int(self.now)

    def reference(self) -> Taken:
        return self._execute(REFERENCE_NS)

    def reference_workload(self) -> dict[Point, Taken]:
        return {point: self._execute(true_ns(point)) for point in WORKLOAD}

    def time(self, point: Point) -> Taken:
        self.timed.append(point)
        slow = 1 + 3 * self.chance.random() if self.chance.random() < self.outliers else 1.0
        waits = self.chance.random() < self.waits
        taken = self._execute(true_ns(point) * slow)
        if not waits:
            return taken
        self.now += taken.ns
        return Taken(2 * taken.ns, taken.ns)

    def _execute(self, ns: float) -> Taken:
        """In small steps, so that a long execution meets the machine's changes of speed."""
        began = self.now
        steps = max(1, int(ns / 5e7))
        for _ in range(steps):
            self.now += ns / steps * self.speed(self.now / 1e9)
        self.now += ns * self.noise * abs(self.chance.standard_normal())
        return Taken(max(1, int(self.now - began)))


def timings(repeats: int = 5) -> list[Timing]:
    """A log of every point, ``repeats`` times, on a machine that does not drift."""
    machine = Machine()
    found = [Timing(REFERENCE, (), int(REFERENCE_NS), 0, 0.0)]
    for _ in range(repeats):
        found += [Timing(point.piece, point.at, machine.time(point).ns, 0, 0.0) for point in POINTS]
        found += [Timing(point.piece, (), int(true_ns(point)), 0, 0.0) for point in WORKLOAD]
        found.append(Timing(REFERENCE, (), int(REFERENCE_NS), 0, 0.0))
    return found


def measured(machine: Machine, path: Path, budget_s: float) -> list[Timing]:
    """The log that measuring such a machine leaves."""
    log = TimingLog(path, ENVIRONMENT)
    measure(POINTS, machine, log, machine.now_ns, np.random.default_rng(1), budget_s=budget_s)
    log.close()
    return log.timings
