"""The Python interface: what ``import simulator`` offers, each name documented here.

Scenarios are files, dicts or `Scenario` objects; tables are dicts of numpy arrays, or pandas and Arrow
tables where those are installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy import float64, int64
from numpy.typing import NDArray

from simulator.extras import needing
from simulator.metrics import NS_PER_MS, NS_PER_S, STATUSES, Summary, request_metrics
from simulator.results import ITERATION_COLUMNS, REQUEST_COLUMNS
from simulator.run_tables import RunTables
from simulator.scenario import Scenario
from simulator.scenario_file import draft_in, draft_of, load_placed, to_yaml
from simulator.scenario_lines import flow

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from simulator.planning.answer import Capacity
    from simulator.sweeps.pools import Pool
    from simulator.sweeps.sweep import Sweep

Source: TypeAlias = "Scenario | str | Path | Mapping[str, Any]"
Overrides: TypeAlias = "Mapping[str, Any] | Sequence[str]"
Columns: TypeAlias = "dict[str, NDArray[Any]]"


@dataclass(frozen=True, slots=True)
class Run:
    """A simulated run: its figures, its tables, and what one should know.

    ``summary`` is the content of ``summary.json``; ``tables`` holds integer nanoseconds.
    """

    scenario: Scenario
    summary: Summary
    notes: tuple[str, ...]
    tables: RunTables

    @property
    def requests(self) -> Columns:
        """A row per request, as in ``requests.parquet``: times in s, NaN where they never came."""
        columns = {
            name: _column(self.tables.requests, name) for name in REQUEST_COLUMNS if name != "reason"
        }
        reasons = self.tables.reasons
        columns["reason"] = np.array([reasons.get(one) for one in columns["id"].tolist()], dtype=object)
        return columns

    @property
    def iterations(self) -> Columns:
        """A row per stretch of equal iterations, as in ``iterations.parquet``: times in s."""
        return {name: _column(self.tables.iterations, name) for name in ITERATION_COLUMNS}

    @property
    def latencies_ms(self) -> dict[str, NDArray[float64]]:
        """TTFT, TPOT, E2E, E2E per token and queueing of each request; NaN where undefined."""
        metrics = request_metrics(self.tables.requests)
        names = ("ttft", "tpot", "e2e", "normalized", "queue")
        return {name: getattr(metrics, f"{name}_ns") / NS_PER_MS for name in names}

    def write(self, directory: str | Path) -> None:
        """Keep the run as ``servetwin simulate --output`` does; ``servetwin compare`` reads it."""
        from simulator.results import write_results

        write_results(Path(directory), to_yaml(self.scenario), self.summary, self.tables)


def _column(table: Mapping[str, NDArray[int64]], name: str) -> NDArray[Any]:
    if name.endswith("_s"):
        time_ns = table[f"{name.removesuffix('_s')}_ns"]
        return np.where(time_ns < 0, np.nan, time_ns / NS_PER_S)
    return np.array(STATUSES)[table[name]] if name == "status" else table[name]


def load_scenario(
    source: Source, overrides: Overrides = (), *, seed: int | None = None, folder: str | Path | None = None
) -> Scenario:
    """A scenario from a file or from a dict of its keys, with ``overrides`` laid over it.

    ``overrides``: values by dotted key, or texts as ``--set`` takes them. Relative paths start at the file,
    or at ``folder`` for a dict, and are absolute in the result. What is left out because the policy was
    switched is a warning. Raises `UserError` with a line for each thing wrong.
    """
    if isinstance(source, Scenario) and not overrides and seed is None:
        return source
    if isinstance(source, (str, Path)):
        draft = draft_in(Path(source))
    else:
        values = _plain(source) if isinstance(source, Scenario) else source
        draft = draft_of(values, Path(folder or ""))
    scenario, notes = load_placed(draft, options_of(overrides), seed)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return scenario


def _plain(scenario: Scenario) -> dict[str, Any]:
    return scenario.model_dump(mode="json", exclude_none=True)


def options_of(overrides: Overrides) -> tuple[str, ...]:
    """Overrides as ``--set`` takes them."""
    if isinstance(overrides, Mapping):
        return tuple(f"{key}={flow(value)}" for key, value in overrides.items())
    return tuple(overrides)


def simulate(
    scenario: Source,
    overrides: Overrides = (),
    *,
    seed: int | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Run:
    """Run a scenario on simulated time.

    ``progress`` is told how many requests are answered, and of how many where that is known.
    """
    from simulator.simulation import simulate as run

    loaded = load_scenario(scenario, overrides, seed=seed)
    done = run(loaded, progress=progress)
    return Run(loaded, done.summary, done.notes, done.tables)


def sweep(
    scenario: Source,
    vary: Mapping[str, str | Sequence[Any]],
    *,
    output: str | Path | None = None,
    overrides: Overrides = (),
    seed: int | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    resume: bool = True,
    search: int | None = None,
    latency: str = "e2e_ms.p99",
    price: float | Mapping[str, float] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Sweep:
    """Run a scenario under every combination of values, or ``search`` points chosen among them.

    ``vary``: a list of values by dotted key, or a range such as ``"1:256:x2"``. With ``output`` every point
    is kept as it is done, and found again by a later sweep. ``workers``: processes, one per processor
    without it; ``cluster``: the address of a Dask scheduler. ``price``: per GPU-hour, or by hardware.
    ``latency``: what the Pareto front is about beside cost and throughput.
    """
    from simulator.sweeps.axes import axes_from
    from simulator.sweeps.front import Prices
    from simulator.sweeps.points import Question
    from simulator.sweeps.sweep import Plan, run_sweep

    draft = (
        draft_in(Path(scenario))
        if isinstance(scenario, (str, Path))
        else draft_of(_plain(scenario) if isinstance(scenario, Scenario) else scenario)
    )
    plan = Plan(
        Question(draft, options_of(overrides), seed),
        axes_from(vary, search=search is not None),
        search,
        latency,
        None if price is None else Prices(price if isinstance(price, Mapping) else {"": price}),
    )
    with _pool(workers, cluster) as pool:
        return run_sweep(
            plan,
            None if output is None else Path(output),
            pool,
            resume=resume,
            check_files=cluster is not None,
            progress=progress,
        )


def capacity(
    scenario: Source,
    overrides: Overrides = (),
    *,
    seed: int | None = None,
    attainment: float | None = None,
    replicas: int | None = None,
    price: float | Mapping[str, float] | None = None,
    workers: int | None = None,
    budget: int | None = None,
) -> Capacity:
    """The least replicas that serve a scenario's rate within its SLO, or the highest rate of ``replicas``.

    ``attainment``: share of requests that must keep every limit, instead of percentiles. ``price``: per
    GPU-hour, or by hardware. ``budget``: most requests simulated. Raises `UserError` where the scenario has
    no SLO, no rate, or cannot run.
    """
    from simulator.planning.planner import BUDGET
    from simulator.planning.planner import capacity as search

    return search(
        load_scenario(scenario, overrides, seed=seed),
        attainment=attainment,
        replicas=replicas,
        price=price,
        workers=workers,
        budget=BUDGET if budget is None else budget,
    )


def frame(table: Columns) -> pd.DataFrame:
    """A dict of columns, such as ``run.requests`` or ``sweep.columns``, as a pandas table."""
    return _library("pandas").DataFrame(table)


def arrow(table: Columns) -> pa.Table:
    """A dict of columns as an Arrow table; NaN becomes null."""
    pyarrow = _library("pyarrow")
    return pyarrow.table({name: pyarrow.array(column, from_pandas=True) for name, column in table.items()})


def _library(name: str) -> Any:
    with needing((name,), f"this needs {name}: pip install {name}"):
        return import_module(name)


def _pool(workers: int | None, cluster: str | None) -> AbstractContextManager[Pool]:
    from simulator.parallel import processors
    from simulator.sweeps.pools import cluster_pool, local_pool

    return local_pool(workers or processors()) if cluster is None else cluster_pool(cluster)
