"""From a scenario to its results on a real model: the composition of everything that a live run needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple

import torch
from numpy.random import SeedSequence

from backend.attention import Kernels, choose
from backend.clock import WallClock
from backend.driver import Driver
from backend.executor import OnAnswer, TorchExecutor
from backend.models import LiveModel, load_live_model
from backend.paged_kv import PagedKV
from backend.prompts import SyntheticPrompts
from simulator.errors import ScenarioError
from simulator.metrics import Summary, summarise
from simulator.policies import make_scheduler
from simulator.recorder import IterationLog, RequestLog, tables
from simulator.run_tables import RunTables
from simulator.scenario import Scenario, SloSettings
from simulator.scenario_file import model_path
from simulator.workloads.arrival import whole_sessions
from simulator.workloads.workload import Workload, build_workload

NS_PER_S = 1e9
CPU_SHARE = 0.5  # of the free memory of a machine that others use too
ACTIVATION_BYTES = 1 << 30  # kept free on a GPU for the tensors of one iteration


class LiveProfile(NamedTuple):
    """What stands where a simulation names its cost profile: nothing was priced, all was measured."""

    name: str
    kind: Literal["live"] = "live"


@dataclass(frozen=True, slots=True)
class LiveRun:
    """What a live run gives: the same tables and figures as a simulation's."""

    tables: RunTables
    summary: Summary
    profile: LiveProfile
    notes: tuple[str, ...]


class Engine(NamedTuple):
    """A loaded model with its memory: everything of a live run but the requests."""

    model: LiveModel
    kv: PagedKV
    kernels: Kernels
    max_model_len: int
    notes: tuple[str, ...]

    @property
    def profile(self) -> LiveProfile:
        """What the times of its runs rest on."""
        return LiveProfile(f"{self.model.device}, attention {self.kernels.name}")


def run_live(
    scenario: Scenario,
    *,
    folder: Path = Path(),
    device: str = "cpu",
    path: str = "auto",
    skip_idle: bool = False,
    on_answer: OnAnswer | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> LiveRun:
    """Run a scenario on a real model, with made-up prompts and answers of the scenario's lengths.

    ``skip_idle``: do not wait for arrivals while nothing runs. ``on_answer`` gets each answer's token ids.
    Raises `UserError` where the scenario cannot run here.
    """
    refuse_parallel(scenario)
    workload = build_workload(scenario.workload, scenario.seed, folder)
    engine = make_engine(scenario, folder=folder, device=device, path=path)
    executor = make_executor(scenario, engine, on_answer)
    return run_on(engine, executor, scenario, workload, skip_idle=skip_idle, progress=progress)


def run_on(
    engine: Engine,
    executor: TorchExecutor,
    scenario: Scenario,
    workload: Workload,
    *,
    skip_idle: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
) -> LiveRun:
    """Run a scenario once on a loaded engine whose executor is idle; both can be used again."""
    started = perf_counter()
    bookkept_ns = executor.bookkeeping_ns
    driver = _drive(scenario, engine, executor, workload, WallClock(skip_idle=skip_idle), progress)
    found = tables(driver.requests, [driver.iterations], engine.kv.blocks)
    profile = engine.profile
    summary = summarise(
        found,
        scenario_name=scenario.name,
        seed=scenario.seed,
        policy=scenario.engine.policy,
        model=engine.model.name,
        hardware=str(engine.model.device),
        profile=profile,
        extrapolated=0.0,
        slo=scenario.slo or SloSettings.model_construct(),
        wall_s=perf_counter() - started,
        seats=scenario.engine.max_num_seqs,
        replicas=1,
    )
    summary["live"] = _live_summary(engine, driver, executor.bookkeeping_ns - bookkept_ns, found)
    return LiveRun(found, summary, profile, (*workload.notes, *engine.notes))


def make_executor(scenario: Scenario, engine: Engine, on_answer: OnAnswer | None = None) -> TorchExecutor:
    """An executor for made-up prompts that follow from the scenario's seed."""
    prompts = SyntheticPrompts(engine.model.vocabulary, _seed(scenario, 2))
    return TorchExecutor(engine.model, engine.kv, engine.kernels, prompts=prompts, on_answer=on_answer)


def make_engine(
    scenario: Scenario, *, folder: Path = Path(), device: str = "cpu", path: str = "auto"
) -> Engine:
    """Load a scenario's model and set up its KV cache."""
    name = model_path(scenario.model, folder)
    model = load_live_model(name, scenario.dtype, device, seed=_seed(scenario, 1), path=path)
    kernels, notes = choose(model.device, model.dtype, model.kv_shape.head_dim)
    max_model_len = min(scenario.engine.max_model_len or model.max_positions, model.max_positions)
    blocks = scenario.engine.kv_blocks
    if blocks == "auto":
        blocks = _fitting_blocks(scenario, model, max_model_len)
        notes = (
            *notes,
            f"KV cache: {blocks} blocks of {scenario.engine.block_size} tokens on this machine",
        )
    kv = PagedKV(model.kv_shape, blocks, scenario.engine.block_size, model.dtype, model.device)
    return Engine(model, kv, kernels, max_model_len, (*model.notices, *notes))


def _drive(
    scenario: Scenario,
    engine: Engine,
    executor: TorchExecutor,
    workload: Workload,
    clock: WallClock,
    progress: Callable[[int, int | None], None] | None,
) -> Driver:
    def longest_tokens() -> int:
        requests = whole_sessions(workload.arrivals())
        return max(request.prompt_tokens + request.output_limit for request in requests)

    block_bytes = engine.model.kv_shape.block_bytes(engine.kv.block_size, engine.model.dtype)
    scheduler = make_scheduler(
        scenario.engine, engine.kv.blocks, engine.max_model_len, longest_tokens, block_bytes
    )
    requests = RequestLog()
    log = IterationLog(0, streams=scheduler.streams)
    driver = Driver(scheduler, executor, clock, requests, log, workload.decoding)
    arrivals = workload.arrivals()
    if progress is not None:
        arrivals = _told(arrivals, requests, workload.requests, progress)
    if workload.concurrency is None:
        driver.run(arrivals, _send_until_ns(scenario))
    else:
        driver.run_closed(arrivals, workload.concurrency, _send_until_ns(scenario))
    return driver


def _send_until_ns(scenario: Scenario) -> int | None:
    duration_s = scenario.workload.duration_s
    return None if duration_s is None else round(duration_s * NS_PER_S)


def _told(
    arrivals: Iterator[Any],
    requests: RequestLog,
    total: int | None,
    progress: Callable[[int, int | None], None],
) -> Iterator[Any]:
    for arrival in arrivals:
        progress(requests.completed, total)
        yield arrival


def _live_summary(
    engine: Engine, driver: Driver, bookkeeping_ns: int, found: RunTables
) -> dict[str, object]:
    """Where the time went: the scheduler's and the executor's own host work as shares of the iterations."""
    iterations = found.iterations
    time_ns = int((iterations["end_ns"] - iterations["start_ns"]).sum())
    return {
        "device": str(engine.model.device),
        "threads": torch.get_num_threads(),
        "path": engine.model.path,
        "attention": engine.kernels.name,
        "scheduler_share": _ratio(driver.scheduler_ns, time_ns),
        "bookkeeping_share": _ratio(bookkeeping_ns, time_ns),
        "scheduler_us_per_iteration": _ratio(driver.scheduler_ns, 1000 * len(iterations["end_ns"])),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _seed(scenario: Scenario, purpose: int) -> int:
    """A seed for the weights (1) or the prompts (2), beside those of the workload."""
    return int(SeedSequence(scenario.seed, spawn_key=(purpose,)).generate_state(1)[0])


def refuse_parallel(scenario: Scenario) -> None:
    """A live run is one engine on one device."""
    if not scenario.is_one_engine or scenario.parallel.tensor != 1:
        raise ScenarioError(
            "run: a live run has one replica on one device: replicas=1, parallel.tensor=1, "
            "parallel.pipeline=1, no fleet, disaggregation, failures or autoscaling"
        )


def _fitting_blocks(scenario: Scenario, model: LiveModel, max_model_len: int) -> int:
    """As many blocks as the free memory allows, and no more than the seats can ever fill."""
    engine = scenario.engine
    block_bytes = model.kv_shape.block_bytes(engine.block_size, model.dtype)
    blocks = int(engine.gpu_memory_utilization * free_bytes(model.device)) // block_bytes
    row_blocks = -(-max_model_len // engine.block_size)
    if blocks < row_blocks:
        raise ScenarioError(
            f"engine.kv_blocks: {row_blocks} blocks for one sequence of {max_model_len} tokens do not fit "
            f"the free memory ({blocks} do); set engine.max_model_len"
        )
    return min(blocks, engine.max_num_seqs * row_blocks)


def free_bytes(device: torch.device) -> int:
    """Memory that a KV cache may take here."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return max(int(free) - ACTIVATION_BYTES, 0)
    return int(CPU_SHARE * _available_bytes())


def _available_bytes() -> int:
    """Memory that could be had without swapping, as Linux tells it; elsewhere what is unused."""
    told = Path("/proc/meminfo")
    if told.exists():
        for line in told.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
