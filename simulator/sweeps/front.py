"""What a point costs and gives, and which points nobody beats: the Pareto front."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from simulator.cluster_settings import GroupSettings
from simulator.errors import UserError
from simulator.metrics import QUANTILES
from simulator.scenario import Scenario, SloSettings

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "normalized_ms_per_token", "queue_ms")
THROUGHPUT = "throughput.output_tokens_per_s"
PERCENTILE = 99.0  # for which an SLO's limits hold unless it says otherwise
HOUR_S = 3600
MILLION = 1_000_000

Figures = Mapping[str, Any]


class Prices(NamedTuple):
    """What one GPU costs per hour: each kind by name, or, under ``''``, all alike."""

    per_gpu_hour: Mapping[str, float]

    def of(self, hardware: str) -> float | None:
        """A slice has the price of its GPU, of which it counts as a part."""
        gpu = hardware.partition("/")[0]
        return self.per_gpu_hour.get(gpu, self.per_gpu_hour.get(""))


def parse_prices(text: str) -> Prices:
    """``2.5``, or ``h100-sxm=2.5,a100-80-sxm=1.6``: the user's price of a GPU-hour."""
    prices: dict[str, float] = {}
    for part in text.split(","):
        hardware, equals, price = part.rpartition("=")
        try:
            prices[hardware.strip()] = float(price)
        except ValueError:
            prices[""] = -1
        if not 0 < min(prices.values()) < float("inf") or (equals and not hardware.strip()):
            raise UserError(
                f"--price {text}: must be a price per GPU-hour such as 2.5, "
                "or one for each kind such as h100-sxm=2.5,a100-80-sxm=1.6"
            )
    return Prices(prices)


def check_prices(prices: Prices | None, scenarios: Iterable[Scenario]) -> None:
    """Refuse prices that leave a kind of GPU without one."""
    if prices is None:
        return
    groups = [(scenario.hardware, scenario.fleet or ()) for scenario in scenarios]
    kinds = dict.fromkeys(
        kind.hardware or hardware for hardware, fleet in groups for kind in fleet or (GroupSettings(),)
    )
    for hardware in kinds:
        if prices.of(hardware) is None:
            raise UserError(f"--price: no price for {hardware}; add ,{hardware.partition('/')[0]}=PRICE")


def cost_figures(summary: Mapping[str, Any], prices: Prices | None) -> Figures:
    """GPUs, GPU-seconds of the run and per million output tokens; and the same in money, given prices."""
    gpus, per_s = summary["gpus"], summary["throughput"]["output_tokens_per_s"]
    per_million = MILLION / per_s if per_s else None
    told: dict[str, Any] = {
        "gpus": int(gpus) if gpus == int(gpus) else gpus,
        "gpu_s": gpus * summary["duration_s"],
        "gpu_s_per_million_output_tokens": per_million and gpus * per_million,
    }
    if prices is not None:
        groups = summary.get("groups") or [summary]
        hourly = sum(group["gpus"] * (prices.of(group["hardware"]) or 0) for group in groups)
        told["cost_per_hour"] = hourly
        told["cost_per_million_output_tokens"] = per_million and hourly / HOUR_S * per_million
    return told


class Objective(NamedTuple):
    """A figure that a good point has much, or little, of."""

    key: str
    better: str  # higher | lower

    def lower_is_better(self, figures: Figures) -> float | None:
        value = figures.get(self.key)
        if not isinstance(value, (int, float)):
            return None
        return -float(value) if self.better == "higher" else float(value)


def objectives_of(latency: str, prices: Prices | None) -> tuple[Objective, ...]:
    """Cost, throughput and one latency, such as ``e2e_ms.p99``."""
    name, _, statistic = latency.partition(".")
    if name not in LATENCIES or statistic not in ("mean", *QUANTILES):
        raise UserError(
            f"--latency {latency}: must be one of {', '.join(LATENCIES)}, "
            f"with .mean, {', '.join(f'.{quantile}' for quantile in QUANTILES)}, such as ttft_ms.p99"
        )
    cost = Objective("cost_per_hour" if prices else "gpus", "lower")
    return cost, Objective(THROUGHPUT, "higher"), Objective(latency, "lower")


def score(figures: Figures, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """The objectives, each the lower the better; None for a point that cannot be compared.

    A request without an answer counts as infinitely slow: where more of them are lost than the latency's
    percentile leaves aside, that percentile is not finite, however fast the others were.
    """
    scores = [objective.lower_is_better(figures) for objective in objectives]
    statistic = objectives[-1].key.rpartition(".")[2]
    offered, completed = figures.get("requests.offered"), figures.get("requests.completed")
    if not offered or completed is None or None in scores:
        return None
    if 1 - completed / offered > 1 - QUANTILES.get(statistic, 1.0):
        return None
    return tuple(value for value in scores if value is not None)


def slo_shortfall(figures: Figures, slo: SloSettings | None) -> float | None:
    """By how much the share of requests that keep the SLO is too small: met up to 0; None where none binds.

    ``attainment`` asks it of all limits at once, a percentile of each by itself.
    """
    if slo is None or not figures:
        return None
    if slo.attainment is not None:
        share, kept = slo.attainment, [figures.get("slo.attainment")]
    else:
        share = (slo.percentile or PERCENTILE) / 100
        kept = [value for key, value in figures.items() if key.startswith("slo.met.")]
    known = [value for value in kept if value is not None]
    return share - min(known) if known else None


def first_of_equals(scores: Sequence[tuple[float, ...] | None], chosen: Sequence[bool]) -> list[bool]:
    """The chosen without those that score as an earlier one does: what sets them apart changed nothing."""
    seen: set[tuple[float, ...] | None] = set()
    kept = []
    for one, best in zip(scores, chosen, strict=True):
        kept.append(best and one not in seen)
        if best:
            seen.add(one)
    return kept


def pareto_front(scores: Sequence[tuple[float, ...] | None]) -> list[bool]:
    """Which points no other one equals or beats in everything and beats in something.

    Walks through the scores in order, so that only points already on the front can beat the next.
    """
    places = sorted(
        (place for place, found in enumerate(scores) if found is not None),
        key=lambda place: (scores[place], place),
    )
    front: list[tuple[float, ...]] = []
    best = [False] * len(scores)
    for place in places:
        found = scores[place]
        assert found is not None
        beaten = any(other != found and all(map(float.__le__, other, found)) for other in front)
        if not beaten:
            best[place] = True
            if found not in front[-1:]:
                front.append(found)
    return best
