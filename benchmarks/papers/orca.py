"""S5: Orca against FasterTransformer, OSDI 2022."""

from __future__ import annotations

from benchmarks.papers.runs import Experiment, Row, Setting, highest_rate, ratio_row, run

LATENCY_LIMIT_MS = 190.0  # median, per output token
FT_BATCHES = (1, 8)  # the configurations that were best for FasterTransformer
MIXED: tuple[str, ...] = ()
UNIFORM = ("workload.lengths={fixed: {prompt: 272, output: 64}}",)


def sustained(setting: Setting, *overrides: str, requests: int, most: float) -> float:
    """The highest rate whose median latency per token stays within the limit."""

    def meets(rate: float) -> bool:
        done = run(
            "orca-175b", setting.requests(requests), f"workload.arrivals.rate_per_s={rate}", *overrides
        )
        return bool(done.summary["normalized_ms_per_token"]["p50"] <= LATENCY_LIMIT_MS)

    return highest_rate(meets, 0.05, most, steps=9)


def rates(setting: Setting, lengths: tuple[str, ...]) -> tuple[float, float]:
    """Orca's rate and the better one of FasterTransformer's configurations."""
    orca = sustained(setting, *lengths, requests=3000, most=80)
    transformer = max(
        sustained(
            setting,
            "engine.policy=faster-transformer",
            f"engine.max_num_seqs={rows}",
            *lengths,
            requests=600,
            most=20,
        )
        for rows in FT_BATCHES
    )
    return orca, transformer


def experiment(setting: Setting) -> Experiment:
    """S5: rates at 190 ms per token, mixed and equal lengths."""
    orca, transformer = rates(setting, MIXED)
    orca_uniform, transformer_uniform = rates(setting, UNIFORM)
    mixed, uniform = orca / transformer, orca_uniform / transformer_uniform
    rows = [
        ratio_row("Orca / FT, mixed lengths", mixed, "36.9", (10, 60), WHY["mixed"]),
        Row(
            "Orca / FT, equal lengths",
            f"{uniform:.2f}",
            "much smaller",
            "below half of the above",
            uniform < mixed / 2,
            WHY["uniform"],
        ),
        Row(
            "requests/s, mixed lengths: FT, Orca",
            f"{transformer:.2f}, {orca:.2f}",
            "0.185, 6.81",
            "none",
            None,
            WHY["rates"],
        ),
    ]
    return Experiment("S5. Orca: GPT-3 175B at 190 ms per token", SETTING, rows)


SETTING = (
    "The highest Poisson rate at which the median latency per output token stays within 190 ms, by "
    "bisection to 1 %; FT is the better of batches of 1 and of 8. The clock is DistServe's fit of OPT-66B "
    "on four A100-80 scaled to 175B on 16 A100-40 that share every layer: the paper's two pipeline stages, "
    "their bubbles and the network between its machines are not in it."
)
WHY = {
    "mixed": "Both engines are about three times too fast (below), which the ratio does not see.",
    "uniform": "With equal lengths a batch wastes nothing, as in the paper's figure 11 (no number).",
    "rates": "No pipeline bubbles, no network between machines, and a fit scaled from a smaller model.",
}
