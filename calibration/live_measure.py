"""``servetwin calibrate measure``: the live engine of this machine, taken to pieces and timed."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from calibration.drift import Findings
from calibration.grid import Limits, Point, grid, row_contexts
from calibration.rounds import Progress, Taken, measure
from calibration.timings import Environment, TimingLog
from simulator.errors import ModelError
from simulator.hardware import load_hardware
from simulator.models import Model, dtype_name, load_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backend.attention import Kernels
    from backend.models import LiveModel
    from backend.workbench import Workbench

BLOCK_SIZE = 16
CPU_LIMITS = Limits(tokens=2048, rows=256, context=4096, keys=1 << 16, padded_tokens=4096)
GPU_LIMITS = Limits(tokens=8192, rows=256, context=16384, keys=1 << 18, padded_tokens=16384)
KV_SHARE = 0.4  # of the free memory, at most
GPUS = (
    ("H200", "h200-sxm"),
    ("H100", "h100-sxm"),
    ("A100-SXM4-40", "a100-40-sxm"),
    ("A100", "a100-80-sxm"),
    ("L40S", "l40s"),
    ("A10G", "a10g"),
    ("RTX 4090", "rtx-4090"),
    ("RTX PRO 6000", "rtx-pro-6000"),
)


class Job(NamedTuple):
    """What is to be measured, and where the timings go."""

    model: str
    dtype: str
    device: str
    hardware: str | None  # None: the one that the device's name says
    output: Path
    budget_s: float
    seed: int = 0


def run(job: Job) -> Findings:
    """Measure until the medians are sure or the budget is used up; continue where the file stops."""
    from backend.attention import choose
    from backend.models import load_live_model

    described = load_model(job.model)
    refuse_unmeasured(described)
    dtype = dtype_name(job.dtype)
    model = load_live_model(job.model, dtype, job.device, seed=job.seed)
    kernels, _ = choose(model.device, model.dtype, model.kv_shape.head_dim)
    environment = describe(job, described, model, kernels)
    log = TimingLog(job.output, environment)
    generator = np.random.default_rng([job.seed, len(log.timings)])
    try:
        points, bench = make_bench(model, kernels, described, generator)
        with progress_bar() as tell:
            return measure(points, bench, log, perf_counter_ns, generator, budget_s=job.budget_s, tell=tell)
    finally:
        log.close()


def refuse_unmeasured(model: Model) -> None:
    """What the pieces do not tell apart yet."""
    if model.experts or model.latent_attention or model.sliding_layers:
        raise ModelError(
            f"{model.name}: models with experts, latent or sliding-window attention cannot be measured yet"
        )


def make_bench(
    model: LiveModel, kernels: Kernels, described: Model, generator: np.random.Generator
) -> tuple[list[Point], LiveBench]:
    """What to time on this machine, and the means to."""
    from backend.paged_kv import PagedKV
    from backend.workbench import Workbench

    limits = fitting_limits(model)
    blocks = 2 * -(-limits.keys // BLOCK_SIZE)  # rows end within a block
    kv = PagedKV(model.kv_shape, blocks, BLOCK_SIZE, model.dtype, model.device)
    bench = Workbench(
        model,
        kernels,
        kv,
        hidden=described.hidden,
        generator=generator,
        now_ns=perf_counter_ns,
        waited_ns=waited_ns,
    )
    points = grid(limits)
    return points, LiveBench(bench, points)


def fitting_limits(model: LiveModel) -> Limits:
    """The device's usual limits, cut to the model's positions and the free memory."""
    from backend.live import free_bytes

    most = GPU_LIMITS if model.device.type == "cuda" else CPU_LIMITS
    token_bytes = 2 * model.kv_shape.block_bytes(1, model.dtype)
    keys = min(most.keys, int(KV_SHARE * free_bytes(model.device)) // token_bytes)
    context = min(most.context, model.max_positions, keys)
    return most._replace(
        tokens=min(most.tokens, keys),
        context=context,
        keys=keys,
        padded_tokens=min(most.padded_tokens, keys),
    )


class LiveBench:
    """The live engine's pieces by the names of the grid."""

    def __init__(self, bench: Workbench, points: Sequence[Point]) -> None:
        self._bench = bench
        self._cold = dict(sorted(points, reverse=True))  # the smallest of each kind

    def reference(self) -> Taken:
        return Taken(*self._bench.reference())

    def reference_workload(self) -> Mapping[Point, Taken]:
        """One pass of the workload that `servetwin validate` times again; {} where it does not fit."""
        from backend.reference import REQUEST_TOKENS, all_fit, time_reference

        bench = self._bench
        if not all_fit(bench.kv) or bench.model.max_positions < REQUEST_TOKENS:
            return {}
        waited = waited_ns()
        times = time_reference(bench.executor, passes=1)
        share = (waited_ns() - waited) / sum(times)
        pieces = ("reference_prompts", "reference_steps")
        return {
            Point(piece, ()): Taken(round(ns), round(ns * share))
            for piece, ns in zip(pieces, times, strict=True)
        }

    def time(self, point: Point) -> Taken:
        """The point's work, after a small piece of its kind, once, which loads and builds what it needs."""
        if smallest := self._cold.pop(point.piece, None):
            self._time(Point(point.piece, smallest))
        return Taken(*self._time(point))

    def _time(self, point: Point) -> tuple[int, int]:
        from backend import whole_iterations as whole

        bench, at = self._bench, point.at
        work: dict[str, Callable[[], tuple[int, int]]] = {
            "dense": lambda: bench.piece(bench.dense(*at)),
            "head": lambda: bench.piece(bench.head(*at)),
            "prefill_attention": lambda: bench.piece(bench.prefill_attention(*at)),
            "decode_attention": lambda: bench.piece(bench.decode_attention(*at)),
            "padded_prefill_attention": lambda: bench.piece(bench.padded_attention(at[0], at[1], at[1])),
            "padded_decode_attention": lambda: bench.piece(bench.padded_attention(at[0], 1, at[1])),
            "scheduling": lambda: whole.time_scheduling(bench, *at),
            "block_copy": lambda: bench.steadily(bench.copy_blocks(*at)),
            "iteration": lambda: whole.time_iteration(bench, at[:3], row_contexts(*at[3:])),
            "padded_prompts": lambda: whole.time_padded(bench, *at, step=False),
            "padded_step": lambda: whole.time_padded(bench, *at, step=True),
        }
        return work[point.piece]()


def waited_ns() -> int:
    """How long this process's threads wanted a processor and had none, as Linux counts it; elsewhere 0."""
    waited = 0
    try:
        for task in Path("/proc/self/task").iterdir():
            waited += int((task / "schedstat").read_text("ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return waited
    return waited


def describe(job: Job, described: Model, model: LiveModel, kernels: Kernels) -> Environment:
    """The header of the file."""
    import torch

    on_gpu = model.device.type == "cuda"
    device = torch.cuda.get_device_name(model.device) if on_gpu else processor()
    names = ("servetwin", "torch", "transformers", "numpy")
    hardware = load_hardware(job.hardware).name if job.hardware else known_hardware(device, on_gpu)
    clocks = nvidia("clocks.max.sm,clocks.max.mem") if on_gpu else cpu_clock()
    return Environment(
        model=described.name if described.name == job.model else job.model,
        hardware=hardware,
        dtype=str(model.dtype).removeprefix("torch."),
        device=device,
        driver=nvidia("driver_version") if on_gpu else f"{platform.system()} {platform.release()}",
        clocks=clocks,
        threads=torch.get_num_threads(),
        kernels=kernels.name,
        path=model.path,
        block_size=BLOCK_SIZE,
        versions={name: _version(name) for name in names},
    )


def known_hardware(device: str, on_gpu: bool) -> str:
    """A built-in description by what the driver calls the device."""
    if not on_gpu:
        return "cpu"
    for sign, name in GPUS:
        if sign in device:
            return name
    raise ModelError(f"device: {device} has no built-in description: say which is nearest with --hardware")


def processor() -> str:
    """The processor's model name."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text("utf-8", errors="replace").splitlines() if told.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} processors" if names else platform.processor() or platform.machine()


def cpu_clock() -> str:
    """The first processor's clock right now."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text("utf-8", errors="replace").splitlines() if told.exists() else []
    return next((f"{x.partition(':')[2].strip()} MHz" for x in lines if x.startswith("cpu MHz")), "unknown")


def nvidia(query: str) -> str:
    """What the driver's own tool says of the first GPU."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None]]:
    """A bar of the time spent, on standard error, and only on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("measuring"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(progress: Progress) -> None:
            sure = f"{progress.sure} of {progress.points} points are sure"
            bar.update(task, total=progress.budget_s, completed=progress.spent_s, description=sure)

        yield tell
