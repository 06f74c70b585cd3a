"""S1 and S2: Anyscale's continuous-batching benchmark, 2023."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.runs import Experiment, Row, Setting, ratio_row, run
from simulator.metrics import request_metrics

STATIC_BATCH = {32: 16, 128: 12, 512: 8, 1536: 4}
QUOTA_TOKENS = {32: 8700, 128: 7500, 512: 8100, 1536: 8100}
PERCENTILES = (10, 25, 50, 75, 90, 99)
Latencies = Mapping[tuple[str, int], NDArray[np.float64]]


def engines(cap: int) -> dict[str, tuple[str, ...]]:
    """Overrides for each engine of the benchmark at one output cap."""
    rows = f"engine.max_num_seqs={STATIC_BATCH[cap]}"
    quota = (
        "engine.policy=tgi",
        f"engine.max_batch_total_tokens={QUOTA_TOKENS[cap]}",
        "engine.max_waiting_tokens=7",
        "engine.waiting_served_ratio=1.2",
    )
    return {
        "HF": ("engine.policy=static", rows, "engine.stop_rule=global-max"),
        "FT": (
            "engine.policy=faster-transformer",
            rows,
            f"engine.max_model_len={512 + cap}",
            "profile=profiles/opt-13b_a100-40_distserve.json",
        ),
        "quota": quota,
        "quota, cap": (*quota, f"workload.lengths.output_limit={cap}"),
        "vLLM": (),
    }


def throughput(setting: Setting, cap: int, seeds: int) -> dict[str, tuple[float, float]]:
    """Tokens per second of each engine, with prompts and without, averaged over seeds."""
    found = {}
    for engine, overrides in engines(cap).items():
        runs = [
            run(
                "anyscale-throughput",
                f"workload.lengths.empirical=lengths/anyscale-cap-{cap}.csv",
                setting.requests(1000),
                *overrides,
                seed=seed,
            ).summary["throughput"]
            for seed in range(seeds)
        ]
        found[engine] = (
            mean(made["total_tokens_per_s"] for made in runs),
            mean(made["output_tokens_per_s"] for made in runs),
        )
    return found


def offline(setting: Setting) -> Experiment:
    """S1: 1,000 requests at once."""
    by_cap = {cap: throughput(setting, cap, 5 if cap == 1536 else 1) for cap in STATIC_BATCH}
    long = {engine: total for engine, (total, _) in by_cap[1536].items()}
    short = [total for total, _ in by_cap[32].values()]
    over_quota = {cap: found["vLLM"][0] / found["quota"][0] for cap, found in by_cap.items()}
    hf, vllm = by_cap[1536]["HF"], by_cap[1536]["vLLM"]
    rows = [
        ratio_row("FT / HF, cap 1536", long["FT"] / long["HF"], "4", (3, 5.5), WHY["ft"]),
        ratio_row(
            "quota batching / HF, own lengths reserved", long["quota"] / long["HF"], "8", (5, 17), WHY["own"]
        ),
        ratio_row(
            "quota batching / HF, cap reserved", long["quota, cap"] / long["HF"], "8", (5, 17), WHY["cap"]
        ),
        ratio_row("vLLM / HF, cap 1536", long["vLLM"] / long["HF"], "23", (15, 28), WHY["vllm"]),
        Row(
            "order HF < FT < quota (either rule) < vLLM",
            " < ".join(sorted(long, key=lambda engine: long[engine])),
            "HF < FT < Ray, TGI < vLLM",
            "the order",
            long["HF"] < long["FT"] < min(long["quota"], long["quota, cap"])
            and max(long["quota"], long["quota, cap"]) < long["vLLM"],
            WHY["order"],
        ),
        Row(
            "HF, tokens/s with prompts",
            f"{hf[0]:.0f} ({hf[1]:.0f} without)",
            "81",
            "60 to 130",
            60 <= hf[0] <= 130,
            WHY["hf"],
        ),
        Row(
            "vLLM, tokens/s with prompts",
            f"{vllm[0]:.0f} ({vllm[1]:.0f} without)",
            "about 1,860",
            "none",
            None,
            WHY["absolute"],
        ),
        Row(
            "highest / lowest engine, cap 32",
            f"{max(short) / min(short):.2f}",
            "about equal",
            "up to 1.5",
            max(short) / min(short) <= 1.5,
            WHY["short"],
        ),
        Row(
            "vLLM / quota at caps 32, 128, 512, 1536",
            ", ".join(f"{over_quota[cap]:.2f}" for cap in STATIC_BATCH),
            "above 2 at every cap",
            "above 2",
            min(over_quota.values()) > 2,
            WHY["twice"],
        ),
    ]
    return Experiment("S1. Anyscale: 1,000 requests at once", OFFLINE_SETTING, rows)


def latencies(setting: Setting, lengths: str) -> Latencies:
    """End-to-end latencies in s by engine and rate, of all seeds together."""
    found = {}
    for engine, overrides in engines(1536).items():
        for rate in (1, 4):
            runs = (
                run(
                    "anyscale-latency",
                    f"workload.lengths.empirical=lengths/{lengths}.csv",
                    f"workload.arrivals.rate_per_s={rate}",
                    setting.requests(100),
                    *overrides,
                    seed=seed,
                )
                for seed in range(10)
            )
            found[engine, rate] = np.concatenate(
                [request_metrics(made.tables.requests).e2e_ns for made in runs]
            )
    return found


def online(setting: Setting) -> Experiment:
    """S2: Poisson arrivals at 1 and 4 requests/s, both readings of the prompt lengths."""
    rows = []
    for words, lengths in (
        ("prompts 128 to 384 (scripts)", "anyscale-scripts"),
        ("prompts 1 to 512 (blog)", "anyscale-blog"),
    ):
        rows += _online_rows(words, latencies(setting, lengths))
    return Experiment("S2. Anyscale: latency at 1 and 4 requests/s", ONLINE_SETTING, rows)


def _online_rows(words: str, found: Latencies) -> list[Row]:
    at = {key: np.percentile(values, PERCENTILES) / 1e9 for key, values in found.items()}
    rows = [
        Row(
            f"order at {rate}/s, {words}",
            "; ".join(
                f"{engine} {at[engine, rate][2]:.1f} s" for engine in ("vLLM", "quota", "FT", "HF")
            ),
            "vLLM <= TGI, Ray < FT < HF",
            "at p10, 25, 50, 75, 90, 99",
            bool(
                (at["vLLM", rate] <= at["quota", rate]).all()
                and (at["quota", rate] < at["FT", rate]).all()
                and (at["FT", rate] < at["HF", rate]).all()
            ),
            WHY[f"order {rate}"],
        )
        for rate in (1, 4)
    ]
    closer = [at["HF", rate][2] / at["FT", rate][2] for rate in (1, 4)]
    growth = at["vLLM", 4][2] / at["vLLM", 1][2]
    return [
        *rows,
        Row(
            f"HF / FT, medians at 1 and 4/s, {words}",
            f"{closer[0]:.2f}, {closer[1]:.2f}",
            "FT approaches HF at 4/s",
            "falls",
            closer[1] < closer[0],
            WHY["closer"],
        ),
        Row(
            f"vLLM's median, 4/s over 1/s, {words}",
            f"{growth:.2f}",
            "nearly unchanged",
            "none",
            None,
            WHY["growth"],
        ),
    ]


OFFLINE_SETTING = "x"
ONLINE_SETTING = "x"
WHY = dict.fromkeys(
    "ft own cap vllm order hf absolute short twice closer growth".split() + ["order 1", "order 4"], "?"
)
