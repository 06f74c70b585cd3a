"""What Prometheus reads at ``/metrics``: vLLM's names wherever the meaning is the same.

Names, labels and bucket bounds: vLLM's v1 metrics (vllm/v1/metrics/loggers.py and docs/usage/metrics.md).
Distributions are kept here and handed over at a scrape, because equal gaps of a whole batch are then one
step instead of one per row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from threading import Lock
from typing import NamedTuple, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from simulator.engine.request import Request

NS_PER_S = 1e9
FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
    160, 640, 2560,
)  # fmt: skip
TOKEN_GAP_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
REQUEST_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ENDINGS = ("stop", "length", "abort")


class Gauges(NamedTuple):
    """How things stand at this moment."""

    running: int
    waiting: int
    kv_usage: float


class Times(Protocol):
    """When things happened to a request that has ended, in nanoseconds."""

    scheduled_ns: int
    first_token_ns: int
    last_token_ns: int
    output_tokens: int


class Distribution:
    """Counts per bucket and a sum, as a Prometheus histogram has them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Observe a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds and the observations up to each."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


def token_bounds(longest_tokens: int) -> list[int]:
    """1, 2, 5, 10, 20, ... up to the longest sequence."""
    steps = (digit * 10**power for power in range(12) for digit in (1, 2, 5))
    return [bound for bound in steps if bound <= longest_tokens]


class Metrics(Collector):
    """Everything counted about one engine. Hold ``lock`` around the methods that count."""

    def __init__(self, model_name: str, longest_tokens: int, facts: Mapping[str, str]) -> None:
        self.lock = Lock()
        self.gauges: Callable[[], Gauges] = lambda: Gauges(0, 0, 0.0)
        self._labels = {"model_name": model_name, "engine": "0"}
        self._facts = dict(facts)
        self._ended = dict.fromkeys(ENDINGS, 0)
        self._preemptions = self._prompt_tokens = self._output_tokens = self._cached_tokens = 0
        sizes = token_bounds(longest_tokens)
        self._iteration_tokens = Distribution(ITERATION_TOKENS)
        self._first_token_s = Distribution(FIRST_TOKEN_S)
        self._gap_s = Distribution(TOKEN_GAP_S)
        self._per_token_s = Distribution(TOKEN_GAP_S)
        self._request_s = Distribution(REQUEST_S)
        self._queue_s = Distribution(REQUEST_S)
        self._prefill_s = Distribution(REQUEST_S)
        self._decode_s = Distribution(REQUEST_S)
        self._inference_s = Distribution(REQUEST_S)
        self._request_prompt_tokens = Distribution(sizes)
        self._request_output_tokens = Distribution(sizes)
        self._request_limits = Distribution(sizes)

    def count_iteration(self, tokens: int, preempted: int) -> None:
        """An iteration has ended that computed so many tokens."""
        self._iteration_tokens.add(tokens)
        self._preemptions += preempted

    def first_token(self, request: Request, now_ns: int) -> None:
        """A request's prompt is computed and its first token is there."""
        self._first_token_s.add((now_ns - request.arrival_ns) / NS_PER_S)
        self._prompt_tokens += request.prompt_tokens
        self._cached_tokens += request.cached_tokens
        self._output_tokens += 1

    def count_gaps(self, gaps: Mapping[int, int]) -> None:
        """Tokens came so many nanoseconds after the one before, each gap for so many requests."""
        for gap_ns, rows in gaps.items():
            self._gap_s.add(gap_ns / NS_PER_S, rows)
            self._output_tokens += rows

    def end_request(self, request: Request, times: Times, ending: str) -> None:
        """A request has got its last token."""
        self._ended[ending] += 1
        scheduled, first, last = times.scheduled_ns, times.first_token_ns, times.last_token_ns
        self._request_s.add((last - request.arrival_ns) / NS_PER_S)
        self._queue_s.add((scheduled - request.arrival_ns) / NS_PER_S)
        self._prefill_s.add((first - scheduled) / NS_PER_S)
        self._decode_s.add((last - first) / NS_PER_S)
        self._inference_s.add((last - scheduled) / NS_PER_S)
        if times.output_tokens > 1:
            self._per_token_s.add((last - first) / (times.output_tokens - 1) / NS_PER_S)
        self._request_prompt_tokens.add(request.prompt_tokens)
        self._request_output_tokens.add(times.output_tokens)
        self._request_limits.add(request.output_limit)

    def abandon(self) -> None:
        """A request was cancelled."""
        self._ended["abort"] += 1

    def collect(self) -> Iterable[Metric]:
        """All families, as one consistent look."""
        with self.lock:
            return [*self._gauge_families(), *self._counter_families(), *self._histogram_families()]

    def _gauge_families(self) -> Iterable[Metric]:
        now = self.gauges()
        yield self._gauge("vllm:num_requests_running", "Requests that hold a seat.", now.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait for a seat.", now.waiting)
        yield self._gauge(
            "vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", now.kv_usage
        )
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV cache's settings.", labels=["engine", *self._facts]
        )
        info.add_metric(["0", *self._facts.values()], 1)
        yield info

    def _counter_families(self) -> Iterable[Metric]:
        for name, about, value in (
            ("vllm:num_preemptions", "Evictions of running requests.", self._preemptions),
            (
                "vllm:prompt_tokens",
                "Prompt tokens of requests that got their first token.",
                self._prompt_tokens,
            ),
            ("vllm:generation_tokens", "Tokens generated.", self._output_tokens),
            (
                "vllm:prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache.",
                self._prompt_tokens,
            ),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", self._cached_tokens),
        ):
            family = CounterMetricFamily(name, about, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value)
            yield family
        ended = CounterMetricFamily(
            "vllm:request_success",
            "Requests that ended, by reason.",
            labels=[*self._labels, "finished_reason"],
        )
        for reason, count in self._ended.items():
            ended.add_metric([*self._labels.values(), reason], count)
        yield ended

    def _histogram_families(self) -> Iterable[Metric]:
        for name, about, distribution in (
            ("time_to_first_token_seconds", "Arrival to first token.", self._first_token_s),
            ("inter_token_latency_seconds", "Time between two tokens of a request.", self._gap_s),
            (
                "request_time_per_output_token_seconds",
                "Mean time per token after the first.",
                self._per_token_s,
            ),
            ("e2e_request_latency_seconds", "Arrival to last token.", self._request_s),
            ("request_queue_time_seconds", "Arrival to first scheduled.", self._queue_s),
            ("request_prefill_time_seconds", "First scheduled to first token.", self._prefill_s),
            ("request_decode_time_seconds", "First to last token.", self._decode_s),
            ("request_inference_time_seconds", "First scheduled to last token.", self._inference_s),
            ("request_prompt_tokens", "Prompt tokens per request.", self._request_prompt_tokens),
            ("request_generation_tokens", "Generated tokens per request.", self._request_output_tokens),
            ("request_params_max_tokens", "Declared output limit per request.", self._request_limits),
            ("iteration_tokens_total", "Tokens computed per iteration.", self._iteration_tokens),
        ):
            family = HistogramMetricFamily(f"vllm:{name}", about, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), distribution.buckets(), distribution.sum)
            yield family

    def _gauge(self, name: str, about: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, about, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family
