"""Measures a service at a rate and a number of replicas, as long as it takes to be sure of the figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isinf
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from simulator.errors import UserError
from simulator.parallel import each
from simulator.planning.criteria import Criterion, Latencies, Percentile, quantile
from simulator.planning.offer import Offer, Point
from simulator.planning.steady_state import (
    Growth,
    Interval,
    Warmup,
    growth,
    interval,
    sections,
    student,
    warm_up,
)
from simulator.planning.trial import Digest, Trial, run_trial
from simulator.usage import Usage, mean_usage

FIRST_REPLICATIONS = 4
MOST_REPLICATIONS = 32
LEAST_REQUESTS = 3000  # of one run
LIFETIMES = 20  # mean times in service that a run lasts at least
LIFETIMES_KEPT = 8  # that are left when its start and its end are taken away
PATIENCE = 4  # doublings of a run that is still on its way
CLEAR = 0.3  # half width below which a figure may be judged by which side of its limit it is on
VERIFICATION_SEED = 1_000_003  # after the scenario's: no replication has it
BACKLOG_SEATS = 12  # requests of a backlog run per seat
BACKLOG_REPLICATIONS = 4
BACKLOG_SECTIONS = 10
UNKNOWN_GROWTH = Interval(0.0, inf)
STATISTICS = {"p50": 0.50, "p90": 0.90, "p99": 0.99}

Verdict: TypeAlias = Literal["met", "missed", "unstable", "unsettled"]
"""Unstable: more is offered than can be served. Unsettled: no steady state within the longest run."""


class Saturation(NamedTuple):
    """What one replica serves while requests always wait, requests/s, and how long one is in service, s."""

    rate_per_s: Interval
    service_s: float
    usage: Usage
    offered: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """A service at a point. ``strains``: each criterion's figure over its limit, kept up to 1.

    ``rho``: the rate over what the replicas serve when saturated. ``figures_ms``: by latency and statistic.
    ``growth``: of the number in the system over what was kept, as a share of its mean. An overloaded point
    is not simulated: it has no figures, and its backlog grows by what is offered beyond capacity.
    """

    point: Point
    verdict: Verdict
    rho: float
    strains: tuple[Interval, ...] = ()
    figures_ms: dict[str, dict[str, Interval]] = field(default_factory=dict)
    growth: Interval = UNKNOWN_GROWTH
    replications: int = 0
    requests: int = 0  # of one run
    warmup_requests: int = 0  # of one run
    usage: Usage | None = None
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    preemptions: float = 0.0
    extrapolated: float = 0.0
    samples: tuple[Latencies, ...] = field(default=(), repr=False, compare=False)

    @property
    def worst(self) -> int:
        """The criterion that is nearest to its limit, or furthest beyond."""
        return max(range(len(self.strains)), key=lambda place: self.strains[place].value)

    @property
    def strain(self) -> Interval:
        """That of the worst criterion; beyond everything where there is none."""
        return self.strains[self.worst] if self.strains else Interval(inf, inf)

    @property
    def clear(self) -> bool:
        """Whether the intervals leave no doubt that a limit is passed, or that all are kept."""
        passed = any(strain.low > 1 for strain in self.strains)
        return passed or all(strain.high <= 1 for strain in self.strains)


class Care(NamedTuple):
    """How sure a measurement must be. ``tolerance``: half width of the worst strain over its value.

    ``decide``: being clearly on one side of the limit is enough. ``patience``: doublings of the run.
    """

    tolerance: float
    decide: bool = True
    patience: int = PATIENCE


class Study:
    """The runs made so far at one point."""

    def __init__(self, point: Point, requests: int, replications: int) -> None:
        self.point = point
        self.requests = requests
        self.replications = replications
        self.doublings = 0
        self.digests: dict[int, Digest] = {}

    def prolong(self) -> None:
        """Start anew with runs of twice the length."""
        self.requests *= 2
        self.doublings += 1
        self.digests.clear()


class Laboratory:
    """Runs trials of one offer and remembers every one.

    ``budget``: requests that may be simulated in all; once spent, figures stay as sure as they are.
    ``progress`` is told how many have been.
    """

    def __init__(
        self,
        offer: Offer,
        wanted: Sequence[Criterion],
        *,
        folder: Path,
        workers: int,
        budget: int,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.offer = offer
        self.wanted = tuple(wanted)
        self.folder = folder
        self.simulated = 0
        self._workers = workers
        self._budget = budget
        self._progress = progress
        self._studies: dict[Point, Study] = {}
        self._measured: dict[Point, Measurement] = {}
        self.saturation = self._saturate()

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.simulated >= self._budget

    @property
    def measurements(self) -> list[Measurement]:
        """All that were made, by replicas and rate."""
        return [self._measured[point] for point in sorted(self._measured, key=lambda p: (p[1], p[0]))]

    def rho(self, point: Point) -> float:
        """What is offered over what the replicas serve when saturated."""
        return point.rate_per_s / (point.replicas * self.saturation.rate_per_s.value)

    def measure(self, points: Sequence[Point], care: Care) -> list[Measurement]:
        """Measure points side by side, with the same seeds, each as carefully as asked and affordable."""
        pending = list(dict.fromkeys(points))
        while pending:
            studies = [study for point in pending if (study := self._study(point)) is not None]
            self._run(studies)
            for point in pending:
                self._measured[point] = self._judge(point)
            pending = [study.point for study in studies if self._go_on(study, care)]
        return [self._measured[point] for point in points]

    def _study(self, point: Point) -> Study | None:
        """The runs at a point; none where it is overloaded."""
        if self.rho(point) >= 1:
            return None
        if point not in self._studies:
            replications = 1 if self.offer.recorded else FIRST_REPLICATIONS
            self._studies[point] = Study(point, self._first_requests(point), replications)
        return self._studies[point]

    def _first_requests(self, point: Point) -> int:
        lives = LIFETIMES * self.offer.simulated_per_s(point) * self.saturation.service_s
        least = max(criterion.least_requests for criterion in self.wanted)
        return round(max(LEAST_REQUESTS, 1.5 * least, lives))

    def _run(self, studies: Sequence[Study]) -> None:
        """Make the runs that are missing."""
        missing = [
            (study, number)
            for study in studies
            for number in range(study.replications)
            if number not in study.digests
        ]
        trials = [
            self._trial(study.point, study.requests, self.offer.scenario.seed + number)
            for study, number in missing
        ]
        for place, digest in self._each(trials):
            study, number = missing[place]
            study.digests[number] = digest

    def _trial(self, point: Point, requests: int, seed: int, *, whole: bool = False) -> Trial:
        return Trial(self.offer.at(point, requests, seed, whole=whole), self.folder, self._itl_share)

    @property
    def _itl_share(self) -> float:
        shares = (c.percentile for c in self.wanted if isinstance(c, Percentile) and c.metric == "itl_ms")
        return next(shares, 99.0) / 100

    def _each(self, trials: Sequence[Trial]) -> list[tuple[int, Digest]]:
        done = []
        for place, digest in each(run_trial, trials, self._workers):
            self.simulated += digest.offered
            done.append((place, digest))
            if self._progress is not None:
                self._progress(self.simulated)
        return done

    def _go_on(self, study: Study, care: Care) -> bool:
        """Whether a study needs more runs or longer ones, and gets them."""
        found = self._measured[study.point]
        if self.offer.recorded or self.spent:
            return False
        if found.verdict in {"unsettled", "unstable"}:
            beyond = care.decide and found.clear and found.strain.low > 1  # and growing still
            if beyond or study.doublings >= care.patience:
                return False
            study.prolong()
            return True
        if self._sure(found, care) or study.replications >= MOST_REPLICATIONS:
            return False
        study.replications *= 2
        return True

    @staticmethod
    def _sure(found: Measurement, care: Care) -> bool:
        value, half_width = found.strain
        if isinf(value) or half_width <= care.tolerance * value:
            return True
        return care.decide and found.clear and half_width <= CLEAR * value

    def _judge(self, point: Point) -> Measurement:
        study = self._study(point)
        if study is None:
            return Measurement(point, "unstable", self.rho(point))
        runs = [study.digests[number] for number in range(study.replications)]
        return judge(
            point, self.rho(point), runs, self.wanted, self.saturation.service_s, self.offer.recorded
        )

    def verify(self, point: Point, requests: int, *, whole: bool) -> Measurement:
        """One longer run with a seed of its own, over the whole fleet if that is affordable."""
        seed = self.offer.scenario.seed + VERIFICATION_SEED
        ((_, digest),) = self._each([self._trial(point, requests, seed, whole=whole)])
        return judge(point, self.rho(point), [digest], self.wanted, self.saturation.service_s)

    def _saturate(self) -> Saturation:
        """What one replica serves while its queue never empties, after the seats have turned over."""
        scenario = self.offer.scenario
        seats = scenario.engine.max_num_seqs
        requests = max(LEAST_REQUESTS, BACKLOG_SEATS * seats)
        count = 1 if self.offer.recorded else BACKLOG_REPLICATIONS
        trials = [
            Trial(self.offer.backlog(requests, scenario.seed + number), self.folder)
            for number in range(count)
        ]
        runs = [digest for _, digest in sorted(self._each(trials), key=lambda done: done[0])]
        rates = [rate for run in runs for rate in _section_rates(run, seats)]
        mean = float(np.mean(rates))
        service_s = float(np.mean([run.service_s for run in runs]))
        return Saturation(
            student(mean, rates), service_s, mean_usage([run.usage for run in runs]), runs[0].offered
        )


def _section_rates(run: Digest, seats: int) -> list[float]:
    """Answers per second in stretches between the start's end and the queue's end."""
    finished = run.finished_s
    if not len(finished):
        raise UserError(
            "capacity: one replica completes none of these requests, whatever their rate; "
            "see the reasons with: servetwin simulate"
        )
    first = min(3 * seats, len(finished) // 3)
    until = min(run.queue_empty_s, float(finished[-1]))
    since = float(finished[first])
    if until <= since:
        since = float(finished[len(finished) // 10])
        until = float(finished[-1])
    edges = np.linspace(since, until, BACKLOG_SECTIONS + 1)
    counts = np.diff(np.searchsorted(finished, edges, side="right"))
    return [float(count) for count in counts / np.maximum(np.diff(edges), 1e-12)]


def judge(
    point: Point,
    rho: float,
    runs: Sequence[Digest],
    wanted: Sequence[Criterion],
    service_s: float,
    recorded: bool = False,
) -> Measurement:
    """What replications of one point say, the start and the end of each left out.

    A recorded load need not be steady: it is judged as it is, whole where no start can be told apart.
    """
    warmup = _common_warm_up(runs)
    if recorded and not warmup.settled:
        warmup = Warmup(0, settled=True)
    kept = [{name: values[warmup.cut :] for name, values in run.latencies.items()} for run in runs]
    grown = growth([run.population[warmup.cut :] for run in runs]) if len(runs) > 1 else None
    settled = recorded or (warmup.settled and _lasts(runs, warmup.cut, service_s))
    strains = tuple(_strain(criterion, kept, runs) for criterion in wanted)
    return Measurement(
        point=point,
        verdict=_verdict(settled, grown, strains),
        rho=rho,
        strains=strains,
        figures_ms=_figures(kept, runs),
        growth=grown.share if grown else Interval(0.0, inf),
        replications=len(runs),
        requests=runs[0].offered,
        warmup_requests=warmup.cut,
        usage=mean_usage([run.usage for run in runs]),
        prompt_tokens=float(np.mean([run.prompt_tokens for run in runs])),
        output_tokens=float(np.mean([run.output_tokens for run in runs])),
        preemptions=float(np.mean([run.preemptions for run in runs])),
        extrapolated=float(np.mean([run.extrapolated for run in runs])),
        samples=tuple(kept),
    )


def _verdict(settled: bool, grown: Growth | None, strains: Sequence[Interval]) -> Verdict:
    if grown is not None and grown.material:
        return "unstable"
    if not settled:
        return "unsettled"
    return "met" if all(strain.value <= 1 for strain in strains) else "missed"


def _common_warm_up(runs: Sequence[Digest]) -> Warmup:
    """One cut for all, from the mean over the replications of the number in the system.

    Not from latencies: a cut that favours quiet stretches would take bursts out of the percentiles.
    """
    length = min(len(run.population) for run in runs)
    if length < 100:
        return Warmup(0, settled=False)
    return warm_up(np.mean([run.population[:length] for run in runs], axis=0))


def _lasts(runs: Sequence[Digest], cut: int, service_s: float) -> bool:
    """Whether what is left of every run is many times as long as a request lives."""
    return all(run.arrival_s[-1] - run.arrival_s[cut] >= LIFETIMES_KEPT * service_s for run in runs)


def _strain(criterion: Criterion, kept: Sequence[Latencies], runs: Sequence[Digest]) -> Interval:
    if isinstance(criterion, Percentile) and criterion.metric == "itl_ms":
        values = [run.itl_ms / criterion.limit_ms for run in runs]
        return student(float(np.mean(values)), values)
    pooled = criterion.strain(_pooled(kept))
    lengths = [len(sample["ttft_ms"]) for sample in kept]

    def figure(count: int) -> list[list[float]]:
        return [[criterion.strain(part) for part in _parts(sample, count)] for sample in kept]

    return interval(pooled, figure, sections(lengths, criterion.least_requests))


def _pooled(kept: Sequence[Latencies]) -> Latencies:
    return {name: np.concatenate([sample[name] for sample in kept]) for name in kept[0]}


def _parts(sample: Latencies, count: int) -> list[Latencies]:
    split = {name: np.array_split(values, count) for name, values in sample.items()}
    return [{name: split[name][place] for name in split} for place in range(count)]


def _figures(kept: Sequence[Latencies], runs: Sequence[Digest]) -> dict[str, dict[str, Interval]]:
    """Means and percentiles of every latency with their intervals, ms."""
    pooled = _pooled(kept)
    lengths = [len(values["ttft_ms"]) for values in kept]
    found = {}
    for name in pooled:
        found[name] = {"mean": _mean(name, kept, pooled)}
        for statistic, share in STATISTICS.items():
            criterion = Percentile(name, 100 * share, 1.0)
            found[name][statistic] = interval(
                criterion.strain(pooled),
                lambda count, share=share, name=name: [  # type: ignore[misc]
                    [quantile(part[name], share) for part in _parts(sample, count)] for sample in kept
                ],
                sections(lengths, criterion.least_requests),
            )
    itl = [run.itl_ms for run in runs]
    found["itl_ms"] = {"tail": student(float(np.mean(itl)), itl)}
    return found


def _mean(name: str, kept: Sequence[Latencies], pooled: Latencies) -> Interval:
    def figure(count: int) -> list[list[float]]:
        return [[float(part[name].mean()) for part in _parts(sample, count)] for sample in kept]

    lengths = [len(values[name]) for values in kept]
    return interval(float(pooled[name].mean()), figure, sections(lengths, 50))
