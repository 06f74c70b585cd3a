"""S6: Sarathi-Serve, OSDI 2024."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.papers.runs import Experiment, Row, Setting, highest_rate, ratio_row, run

MODES = ("hybrid-only", "combined", "chunked-only")
LONGEST_QUEUE_MS = 2000.0  # median scheduling delay at capacity
VLLM_V0 = ("engine.policy=vllm-v0",)
ORCA = ("engine.policy=orca", "engine.reservation=max")


class Table4(NamedTuple):
    """Published P50 TTFT and P99 TBT, s, by batching mode."""

    scenario: str
    published: dict[str, tuple[float, float]]


TABLE_4 = {
    "sharegpt4": Table4(
        "sarathi-sharegpt",
        {"hybrid-only": (0.53, 0.68), "combined": (0.76, 0.14), "chunked-only": (1.04, 0.17)},
    ),
    "arxiv": Table4(
        "sarathi-arxiv",
        {"hybrid-only": (3.78, 1.38), "combined": (3.90, 0.17), "chunked-only": (5.38, 0.20)},
    ),
}
LOADS = {"sharegpt4": (0.5, 1.3), "arxiv": (0.15, 0.4)}  # below and above that of the table
TTFT_ORDER = ("hybrid-only", "combined", "chunked-only")
TBT_ORDER = ("combined", "chunked-only", "hybrid-only")


def measured(setting: Setting, scenario: str, *overrides: str) -> dict[str, tuple[float, float]]:
    """P50 TTFT and P99 TBT, s, by batching mode."""
    found = {}
    for mode in MODES:
        made = run(scenario, f"engine.batching={mode}", setting.requests(128), *overrides).summary
        found[mode] = (made["ttft_ms"]["p50"] / 1e3, made["itl_ms"]["p99"] / 1e3)
    return found


def in_order(found: dict[str, tuple[float, float]]) -> tuple[bool, bool]:
    """Whether TTFT and TBT rank the modes as table 4 does."""
    ttft = [found[mode][0] for mode in TTFT_ORDER]
    tbt = [found[mode][1] for mode in TBT_ORDER]
    return ttft[0] < ttft[1] < ttft[2], tbt[0] < tbt[1] < tbt[2]


def table_4(setting: Setting) -> list[Row]:
    """Orders of the three modes and how much worse hybrid-only batching makes the tail."""
    rows = []
    for name, table in TABLE_4.items():
        found, published = measured(setting, table.scenario), table.published
        ttft, tbt = in_order(found)
        rows += [
            Row(
                f"P50 TTFT, hybrid-only < combined < chunked-only, {name}",
                _seconds(found, 0, TTFT_ORDER),
                _seconds(published, 0, TTFT_ORDER),
                "the order",
                ttft,
                WHY[f"ttft {name}"],
            ),
            Row(
                f"P99 TBT, combined < chunked-only < hybrid-only, {name}",
                _seconds(found, 1, TBT_ORDER),
                _seconds(published, 1, TBT_ORDER),
                "the order",
                tbt,
                WHY[f"tbt {name}"],
            ),
            ratio_row(
                f"P99 TBT, hybrid-only / chunked-only, {name}",
                found["hybrid-only"][1] / found["chunked-only"][1],
                f"{published['hybrid-only'][1] / published['chunked-only'][1]:.1f}",
                (4, 9),
                WHY[f"ratio {name}"],
            ),
            _load_row(setting, name, table.scenario),
        ]
    return rows


def _load_row(setting: Setting, name: str, scenario: str) -> Row:
    rates = LOADS[name]
    ratios = []
    for rate in rates:
        found = measured(setting, scenario, f"workload.arrivals.rate_per_s={rate}")
        ratios.append(found["hybrid-only"][1] / found["chunked-only"][1])
    return Row(
        f"the same at {' and '.join(f'{rate}/s' for rate in rates)}, {name}",
        ", ".join(f"{ratio:.2f}" for ratio in ratios),
        "no rates given",
        "none",
        None,
        WHY["loads"],
    )


def _seconds(found: dict[str, tuple[float, float]], which: int, modes: tuple[str, ...]) -> str:
    return ", ".join(f"{found[mode][which]:.2f}" for mode in modes) + " s"


def capacity(setting: Setting, longest_tbt_s: float, *overrides: str) -> float:
    """The highest rate with P99 TBT within its limit and a median scheduling delay within 2 s."""

    def meets(rate: float) -> bool:
        made = run(
            "sarathi-sharegpt",
            setting.requests(500),
            f"workload.arrivals.rate_per_s={rate}",
            *overrides,
        ).summary
        return bool(
            made["itl_ms"]["p99"] <= longest_tbt_s * 1e3 and made["queue_ms"]["p50"] <= LONGEST_QUEUE_MS
        )

    return highest_rate(meets, 0.02, 8.0)


def gains(setting: Setting) -> list[Row]:
    """Capacity on sharegpt4 under the strict (0.2 s) and the relaxed (1 s) limit."""
    strict = capacity(setting, 0.2, "engine.token_budget=512")
    relaxed = capacity(setting, 1.0, "engine.token_budget=2048")
    vllm_strict, vllm_relaxed = (capacity(setting, limit, *VLLM_V0) for limit in (0.2, 1.0))
    orca_strict = capacity(setting, 0.2, *ORCA)
    return [
        ratio_row("strict, Sarathi / vLLM", strict / vllm_strict, "3.7", (2, 4.5), WHY["strict"]),
        ratio_row("relaxed, Sarathi / vLLM", relaxed / vllm_relaxed, "1.65", (1.2, 2), WHY["relaxed"]),
        Row("strict, Sarathi / Orca", f"{strict / orca_strict:.2f}", "4.0", "none", None, WHY["orca"]),
        Row(
            "requests/s: Sarathi, vLLM strict; Sarathi, vLLM relaxed",
            f"{strict:.2f}, {vllm_strict:.2f}; {relaxed:.2f}, {vllm_relaxed:.2f}",
            "read off bars",
            "none",
            None,
            WHY["rates"],
        ),
    ]


def experiment(setting: Setting) -> Experiment:
    """S6: table 4 and the capacity gains."""
    return Experiment(
        "S6. Sarathi-Serve: Yi-34B on two A100-80", SETTING, [*table_4(setting), *gains(setting)]
    )


SETTING = (
    "The clock is the shipped A100-80 profile of Llama-3.1-70B on four GPUs, scaled operator by operator "
    "to Yi-34B on two (98 % of the weights, 1.5 times the KV bytes per GPU). Table 4: 128 requests, token "
    "budget 1,024. Its arrival rate is not published; lengths are lognormals with the published median "
    "prompts, and outputs and 90th percentiles as remembered. The loads, 1 request/s (sharegpt4) and 0.3/s "
    "(arxiv), were chosen beforehand. Capacity: highest rate of 500 requests with P99 TBT within the limit "
    "and a median queueing delay within 2 s, by bisection to 5 %; budget 512 strict, 2,048 relaxed."
)
LOAD = "The ratio is a matter of load, which the paper does not give; see the row on loads."
WHY = {
    "ttft sharegpt4": "The paper's load was higher, by its TTFT.",
    "ttft arxiv": "The paper's load was higher, by its TTFT.",
    "tbt sharegpt4": "A chunk of 1,024 tokens takes 0.16 s on our clock.",
    "tbt arxiv": "A chunk of 1,024 tokens takes 0.16 s on our clock.",
    "ratio sharegpt4": LOAD,
    "ratio arxiv": LOAD,
    "loads": (
        "At half the load a token in a hundred or fewer meets a whole prompt, so P99 does not see the "
        "stalls and even the order of TBT turns; from the chosen load on the order holds."
    ),
    "strict": "Small.",
    "relaxed": "Small.",
    "orca": "Orca stalls as vLLM does here: its reserved memory does not bind at this rate.",
    "rates": "The paper's bars were not read off.",
}
