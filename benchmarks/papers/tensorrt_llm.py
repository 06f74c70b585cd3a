"""S9: the batch sweep of TensorRT-LLM's tuning guide."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.papers.runs import Experiment, Row, Setting, run

BATCHES = {64: 1944, 512: 2467, 2048: 2044}
BUDGETS = {2048: 2474, 8192: 2467, 16384: 2461}


def throughput(setting: Setting, rows: int, tokens: int) -> float:
    """Output tokens per second at a batch limit and a token budget."""
    made = run(
        "tensorrt-llm-70b",
        f"engine.max_num_seqs={rows}",
        f"engine.max_num_batched_tokens={tokens}",
        "engine.context_chunking=fcfs",
        setting.requests(1000),
    )
    return float(made.summary["throughput"]["output_tokens_per_s"])


def experiment(setting: Setting) -> Experiment:
    """S9: an optimum inside the batch sweep, no effect of the token budget."""
    by_rows = [throughput(setting, rows, 8192) for rows in BATCHES]
    by_tokens = [throughput(setting, 512, tokens) for tokens in BUDGETS]
    spread = max(by_tokens) / min(by_tokens) - 1
    rows = [
        Row(
            "output tokens/s at batch 64, 512, 2048",
            _listed(by_rows),
            _listed(BATCHES.values()),
            "highest at 512",
            by_rows[1] > max(by_rows[0], by_rows[2]),
            WHY["batch"],
        ),
        Row(
            "gain from batch 64 to 512",
            f"{by_rows[1] / by_rows[0]:.2f}",
            "1.27",
            "above 1",
            by_rows[1] > by_rows[0],
            WHY["gain"],
        ),
        Row(
            "output tokens/s at max_num_tokens 2048, 8192, 16384",
            _listed(by_tokens),
            _listed(BUDGETS.values()),
            "within 3 %",
            spread <= 0.03,
            WHY["tokens"],
        ),
    ]
    return Experiment("S9. TensorRT-LLM: batch sweep, Llama-3.3-70B on four H100", SETTING, rows)


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)


SETTING = (
    "1,000 requests of 2,048 + 2,048 tokens at once, GUARANTEED_NO_EVICT, chunked context, on the shipped "
    "H100 profile of the same shape (measured kernels, not TensorRT-LLM's own)."
)
WHY = {
    "batch": (
        "The KV cache holds 117 such requests at most, so 512 and 2,048 are one and the same here; what a "
        "limit of 2,048 costs in the real runtime (its buffers take memory) we do not model."
    ),
    "gain": "Small; absolute figures are 13 to 21 % too high, perhaps for the runtime's own overheads.",
    "tokens": "Small.",
}
