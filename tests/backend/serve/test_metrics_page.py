"""What Prometheus reads agrees with what clients were sent."""

from __future__ import annotations

import threading

from prometheus_client.parser import text_string_to_metric_families

from backend.serve.metrics import Distribution, token_bounds
from tests.backend.serve.running import LONGEST, MODEL, Running, backing, running, scheduler

FROM_VLLM = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "request_success_total",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
    "request_time_per_output_token_seconds_count",
    "e2e_request_latency_seconds_count",
    "request_queue_time_seconds_count",
    "request_prefill_time_seconds_count",
    "request_decode_time_seconds_count",
    "request_inference_time_seconds_count",
    "request_prompt_tokens_count",
    "request_generation_tokens_count",
    "request_params_max_tokens_count",
    "iteration_tokens_total_count",
    "cache_config_info",
)


def scrape(server: Running) -> dict[str, float]:
    """Every sample by its name, summed over labels."""
    status, headers, data = server.ask("GET", "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(data.decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
            assert sample.labels.get("model_name", MODEL) == MODEL
    return found


def test_the_names_are_those_of_vllm(server: Running) -> None:
    assert {f"vllm:{name}" for name in FROM_VLLM} <= set(scrape(server))


def test_counts_agree_with_usage(fresh_server: Running) -> None:
    server = fresh_server
    prompt = [5] * 40
    usages = [server.complete(prompt=prompt, max_tokens=n, ignore_eos=True)["usage"] for n in (1, 2, 30)]
    found = scrape(server)
    output = sum(usage["completion_tokens"] for usage in usages)
    assert found["vllm:generation_tokens_total"] == output == 33
    assert found["vllm:prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
    assert found["vllm:prefix_cache_hits_total"] == 2 * 32  # two full blocks, for all but the first
    assert found["vllm:request_success_total"] == 3
    assert found["vllm:time_to_first_token_seconds_count"] == 3
    assert found["vllm:inter_token_latency_seconds_count"] == output - 3
    assert found["vllm:request_time_per_output_token_seconds_count"] == 2  # one answer had a single token
    assert found["vllm:request_generation_tokens_sum"] == output
    assert found["vllm:kv_cache_usage_perc"] == found["vllm:num_requests_running"] == 0


def test_durations_of_a_request_add_up(fresh_server: Running) -> None:
    server = fresh_server
    server.complete(prompt="hi", max_tokens=20, ignore_eos=True)
    found = {name.removesuffix("_sum"): value for name, value in scrape(server).items()}
    decode = found["vllm:request_decode_time_seconds"]
    assert abs(found["vllm:inter_token_latency_seconds"] - decode) < 1e-9
    assert abs(decode - 19 * found["vllm:request_time_per_output_token_seconds"]) < 1e-9
    to_first = found["vllm:request_queue_time_seconds"] + found["vllm:request_prefill_time_seconds"]
    assert abs(to_first - found["vllm:time_to_first_token_seconds"]) < 1e-9
    assert abs(to_first + decode - found["vllm:e2e_request_latency_seconds"]) < 1e-9


def test_preemptions_are_counted() -> None:
    with running(backing(scheduler(blocks=5), blocks=5, iteration_ns=10_000_000)) as server:
        asks = [
            threading.Thread(
                target=server.complete, kwargs={"prompt": [i], "max_tokens": 64, "ignore_eos": True}
            )
            for i in range(2)
        ]
        for ask in asks:
            ask.start()
        for ask in asks:
            ask.join()
        found = scrape(server)
        assert found["vllm:generation_tokens_total"] == 128
        assert found["vllm:num_preemptions_total"] >= 1  # each answer needs all five blocks


def test_buckets_are_cumulative_and_include_their_bound() -> None:
    distribution = Distribution([1, 2, 5])
    for value, times in ((1, 1), (1.5, 2), (5, 3), (6, 4)):
        distribution.add(value, times)
    assert distribution.buckets() == [("1.0", 1), ("2.0", 3), ("5.0", 6), ("+Inf", 10)]
    assert distribution.sum == 1 + 3 + 15 + 24
    assert token_bounds(LONGEST)[-3:] == [500, 1000, 2000]
