"""How fast a simulation runs, against figures of other simulators, and whether cost grows linearly.

    python -m benchmarks.simulate [--million] [--ten-million]

Each row simulates, computes every metric, and counts CPU time in units of `benchmarks.yardstick`. The
recorded traces are used where they lie beside the checkout in ``../shared``; otherwise presets of the
same shape stand in, and the row says so. ``--ten-million`` runs alone, over 1,000 replicas, and writes
results and report too: an hour of CPU time by the rate of a million over 1,000 replicas.

Figures of others, in the same unit where one was measured:
- Vidur (main of 2024-11-19, vllm scheduler, Llama-2-7B on one A100, first 4,000 requests of the Azure
  conversation trace): 35 units in its event loop alone, or about 115 requests per unit.
- aisimulate (event-driven core in Rust): about 0.2 ms of CPU per request at the margin.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.yardstick import in_units
from simulator.cli_results import Wanted
from simulator.cluster import Cluster
from simulator.cost_model import load_cost_model
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.scenario import Scenario
from simulator.simulation import Simulation, collector_paused, make_fleet, simulate
from simulator.workloads.workload import Workload, build_workload

TRACES = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
AZURE = TRACES / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv"
MOONCAKE = TRACES / "mooncake-fast25" / "conversation_trace.jsonl"
VIDUR_REQUESTS_PER_UNIT = 115
AISIMULATE_MS_PER_REQUEST = 0.2
ROUNDS = 5


def azure(model: str) -> tuple[str, Scenario]:
    """The yardstick of other simulators: one A100, the first 4,000 requests."""
    engine = {"policy": "vllm-v1", "max_model_len": 16_384}
    if AZURE.exists():
        arrivals = {"process": "trace", "file": str(AZURE)}
        return f"Azure trace, {model}", scenario(
            model, "a100-80-sxm", engine, arrivals, {"trace": True}, 4000
        )
    arrivals = {"process": "gamma", "rate_per_s": 5.53, "cv": 1.09}
    lengths = {"preset": "azure-conv"}
    return f"azure-conv preset, {model}", scenario(model, "a100-80-sxm", engine, arrivals, lengths, 4000)


def mooncake() -> tuple[str, Scenario]:
    """Long prompts that share prefixes."""
    model, engine = "meta-llama/Llama-3.1-8B", {"policy": "vllm-v1"}
    if MOONCAKE.exists():
        arrivals = {"process": "trace", "file": str(MOONCAKE), "spread_ticks": True}
        return "Mooncake trace, 8 x H100", scenario(
            model, "h100-sxm", engine, arrivals, {"trace": True}, 12_031, 8
        )
    arrivals = {"process": "poisson", "rate_per_s": 3.4}
    lengths = {"preset": "mooncake-conv"}
    return "mooncake-conv preset, 8 x H100", scenario(
        model, "h100-sxm", engine, arrivals, lengths, 12_031, 8
    )


def fleet(requests: int, replicas: int = 64) -> tuple[str, Scenario]:
    """Replicas at two thirds of what they can serve."""
    arrivals = {"process": "poisson", "rate_per_s": replicas * 8}
    made = scenario(
        "meta-llama/Llama-3.1-8B",
        "h100-sxm",
        {"policy": "vllm-v1"},
        arrivals,
        {"preset": "azure-conv"},
        requests,
        replicas,
    )
    return f"azure-conv preset, {requests:,} requests, {replicas:,} x H100", made


def scenario(
    model: str,
    hardware: str,
    engine: dict[str, object],
    arrivals: dict[str, object],
    lengths: dict[str, object],
    requests: int,
    replicas: int = 1,
) -> Scenario:
    return Scenario.model_validate(
        {
            "model": model,
            "hardware": hardware,
            "engine": engine,
            "replicas": replicas,
            "workload": {"arrivals": arrivals, "lengths": lengths, "requests": requests},
        }
    )


def measure(
    name: str, made: Scenario, rounds: int, work: Callable[[Scenario], Simulation] = simulate
) -> tuple[str, float, float, int]:
    """Requests per unit and microseconds of CPU per request: medians of some rounds."""
    units, seconds = [], []
    for _ in range(rounds):
        in_unit, spent_s, done = in_units(lambda: work(made))
        units.append(in_unit)
        seconds.append(spent_s)
    offered = done.summary["requests"]["offered"]
    return name, offered / median(units), median(seconds) / offered * 1e6, offered


def simulate_and_write(made: Scenario) -> Simulation:
    """What ``servetwin simulate --output --report`` does."""
    done = simulate(made)
    with TemporaryDirectory() as folder:
        wanted = Wanted(Path(folder) / "results", Path(folder) / "report.html", None)
        wanted.write(made, done, "", Path())
    return done


def measure_loop(name: str, made: Scenario) -> tuple[str, float, float, int]:
    """The same for the event loop alone, arrivals at hand and no metrics, as Vidur's figure was taken."""
    model, folder = load_model(made.model), Path()
    tensor_parallel = made.parallel.tensor
    cost, _ = load_cost_model(
        made.profile, model, load_hardware(made.hardware), made.dtype, tensor_parallel, folder
    )
    arrivals = list(build_workload(made.workload, made.seed, folder).arrivals())
    workload = Workload(lambda: iter(arrivals))
    units, seconds = [], []
    for _ in range(ROUNDS):
        cluster = Cluster(make_fleet(made, model, cost, workload), workload)
        with collector_paused():
            in_unit, spent_s, _ = in_units(cluster.run)
        units.append(in_unit)
        seconds.append(spent_s)
    offered = len(arrivals)
    return f"{name}, loop alone", offered / median(units), median(seconds) / offered * 1e6, offered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--million", action="store_true", help="also a million requests (minutes)")
    parser.add_argument("--ten-million", action="store_true", help="only ten million, to the report")
    options = parser.parse_args()
    if options.ten_million:
        Console().print(table([measure(*fleet(10_000_000, 1000), 1, simulate_and_write)]))
        return
    rows = [
        measure_loop(*azure("meta-llama/Llama-3.1-8B")),
        measure_loop(*azure("meta-llama/Llama-2-7b-hf")),
        measure(*azure("meta-llama/Llama-3.1-8B"), ROUNDS),
        measure(*azure("meta-llama/Llama-2-7b-hf"), ROUNDS),
        measure(*mooncake(), 1),
        measure(*fleet(10_000), ROUNDS),
        measure(*fleet(100_000), 1),
    ]
    if options.million:
        rows.append(measure(*fleet(1_000_000), 1))
    Console().print(table(rows))


def table(rows: list[tuple[str, float, float, int]]) -> Table:
    shown = Table(title="simulation, all metrics included", title_justify="left")
    for column in ("run", "requests/unit", "x Vidur", "µs/request", "x aisimulate"):
        shown.add_column(column, justify="left" if column == "run" else "right")
    for name, per_unit, micros, _ in rows:
        faster = AISIMULATE_MS_PER_REQUEST * 1000 / micros
        shown.add_row(
            name,
            f"{per_unit:,.0f}",
            f"{per_unit / VIDUR_REQUESTS_PER_UNIT:.0f}",
            f"{micros:.1f}",
            f"{faster:.1f}",
        )
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    shown.caption = f"peak memory {peak_mb:,} MB; linear cost: compare µs/request of the 64-replica rows"
    return shown


if __name__ == "__main__":
    main()
