"""Tables of docs/batching.md that take a loop over simulations.

    python -m benchmarks.batching padding|spread|mix|policies|online|sizes|uniform

From the repository root.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.papers.runs import highest_rate
from simulator.metrics import Summary
from simulator.scenario import Scenario
from simulator.simulation import simulate

Table = Iterator[Sequence[str]]
Settings = Mapping[str, object]

LLAMA_8B: Settings = {"model": "meta-llama/Llama-3.1-8B", "hardware": "h100-sxm"}
LLAMA_70B: Settings = {
    "model": "meta-llama/Llama-3.1-70B",
    "hardware": "h100-sxm",
    "parallel": {"tensor": 4},
}
ENGINES: Mapping[str, Settings] = {
    "single": {"policy": "single"},
    "static, 8": {"policy": "static", "max_num_seqs": 8},
    "static, 32": {"policy": "static", "max_num_seqs": 32},
    "bucketed, 32": {"policy": "bucketed", "max_num_seqs": 32},
    "bucketed by prompt + limit, 32": {
        "policy": "bucketed",
        "max_num_seqs": 32,
        "bucket_by": "prompt+limit",
    },
    "dynamic, 32, 100 ms": {"policy": "dynamic", "max_num_seqs": 32, "max_queue_delay_ms": 100},
    "faster-transformer, 32": {"policy": "faster-transformer", "max_num_seqs": 32, "max_model_len": 8192},
    "orca, max": {"policy": "orca", "max_model_len": 8192},
    "orca, oracle": {"policy": "orca", "reservation": "oracle"},
    "vllm-v0": {"policy": "vllm-v0"},
    "sarathi, 512": {"policy": "sarathi", "max_num_seqs": 256},
    "vllm-v1": {"policy": "vllm-v1"},
}
OFFERED: Settings = {"arrivals": {"process": "burst"}}


def served(place: Settings, engine: Settings, workload: Settings) -> Summary:
    """The summary of one simulation."""
    return simulate(Scenario.model_validate({**place, "engine": engine, "workload": workload})).summary


def recorded(pairs: Sequence[tuple[int, int]], engine: Settings) -> Summary:
    """Exactly these prompt and output lengths, all at once, on Llama-3.1-8B."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "requests.csv"
        rows = [f"0,{prompt},{output}" for prompt, output in pairs]
        file.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows]) + "\n")
        workload = {"arrivals": {"process": "trace", "file": str(file)}, "lengths": {"trace": True}}
        return served(LLAMA_8B, engine, workload)


def padding() -> Table:
    """One long row among short ones: positions and time wasted."""
    yield "batch", "formula", "of prompts", "of outputs", "time lost, prompts", "time lost, outputs"
    for rows in (2, 4, 8, 12, 16, 32):
        formula = 1 - (1000 + 10 * (rows - 1)) / (1000 * rows)
        static: Settings = {"policy": "static", "max_num_seqs": rows}
        exact: Settings = {"policy": "orca", "reservation": "oracle", "max_num_seqs": rows}
        prompts = [(1000, 2), *[(10, 2)] * (rows - 1)]
        outputs = [(10, 1000), *[(10, 10)] * (rows - 1)]
        padded, tight = (recorded(prompts, engine) for engine in (static, exact))
        held, freed = (recorded(outputs, engine) for engine in (static, exact))
        yield (
            str(rows),
            f"{formula:.1%}",
            f"{padded['padding_waste']['prefill']:.1%}",
            f"{held['padding_waste']['decode']:.1%}",
            f"{1 - tight['duration_s'] / padded['duration_s']:.1%}",
            f"{1 - freed['duration_s'] / held['duration_s']:.1%}",
        )


def spread() -> Table:
    """Decode padding of static batches by their size and by how much output lengths vary."""
    variations = (0.1, 0.25, 0.5, 1.0, 2.0)
    yield "batch", *(f"cv {cv:g}" for cv in variations)
    for rows in (1, 2, 4, 8, 16, 32, 64):
        waste = []
        for cv in variations:
            lengths = {
                "lognormal": {"prompt": {"mean": 256, "cv": 0.1}, "output": {"mean": 256, "cv": cv}},
                "max_output_tokens": 4096,
            }
            made = served(
                LLAMA_8B,
                {"policy": "static", "max_num_seqs": rows},
                {**OFFERED, "lengths": lengths, "requests": 512},
            )
            waste.append(f"{made['padding_waste']['decode']:.0%}")
        yield str(rows), *waste


def mix() -> Table:
    """Batch 1 against batch 8 over the ratio of prompt to output."""
    yield "model", "prompt / output", "throughput x", "E2E x", "TTFT x", "TTFT at 8", "TPOT at 8"
    for name, place in (("8B, H100", LLAMA_8B), ("70B, 4 H100", LLAMA_70B)):
        for prompt, output in ((128, 256), (512, 128), (1024, 32), (2000, 16)):
            lengths = {"fixed": {"prompt": prompt, "output": output}}
            one, eight = (
                served(
                    place,
                    {"policy": "static", "max_num_seqs": rows, "streaming": True},
                    {**OFFERED, "lengths": lengths, "requests": rows},
                )
                for rows in (1, 8)
            )
            slower = eight["e2e_ms"]["mean"] / one["e2e_ms"]["mean"]
            yield (
                name,
                f"{prompt:,} / {output}",
                f"{8 / slower:.2f}",
                f"{slower:.2f}",
                f"{eight['ttft_ms']['mean'] / one['ttft_ms']['mean']:.1f}",
                f"{eight['ttft_ms']['mean']:.0f} ms",
                f"{eight['tpot_ms']['mean']:.1f} ms",
            )


def policies() -> Table:
    """The same ShareGPT requests under request-level and iteration-level batching."""
    yield "policy", "offline, tokens/s", "padding", "at 1/s: TTFT p50", "TTFT p99", "E2E p50", "E2E p99"
    lengths = {"preset": "sharegpt"}
    sparse = {"process": "poisson", "rate_per_s": 1}
    for name, engine in ENGINES.items():
        offline = served(LLAMA_8B, engine, {**OFFERED, "lengths": lengths, "requests": 1000})
        calm = served(LLAMA_8B, engine, {"arrivals": sparse, "lengths": lengths, "requests": 1000})
        yield (
            name,
            f"{offline['throughput']['output_tokens_per_s']:,.0f}",
            f"{offline['padding_waste']['total']:.0%}",
            *(
                f"{calm[latency][statistic] / 1e3:.3g} s"
                for latency in ("ttft_ms", "e2e_ms")
                for statistic in ("p50", "p99")
            ),
        )


def online() -> Table:
    """Offline throughput, and the highest rate with 99 % of TTFT below 200 ms, by seats and budget."""
    yield (
        "seats",
        "token budget",
        "offline, tokens/s",
        "online, requests/s",
        "tokens/s then",
        "TPOT p99 then",
    )
    for rows, budget in ((8, 2048), (32, 2048), (128, 2048), (256, 2048), (512, 8192), (1024, 16384)):
        engine: Settings = {"max_num_seqs": rows, "max_num_batched_tokens": budget}
        offline = served(LLAMA_8B, engine, {**OFFERED, "lengths": {"preset": "sharegpt"}, "requests": 2000})
        rate = highest_rate(partial(answers_promptly, engine), 0.5, 64)
        there = chat(engine, rate)
        yield (
            f"{rows:,}",
            f"{budget:,}",
            f"{offline['throughput']['output_tokens_per_s']:,.0f}",
            f"{rate:.1f}",
            f"{there['throughput']['output_tokens_per_s']:,.0f}",
            f"{there['tpot_ms']['p99']:.0f} ms",
        )


def answers_promptly(engine: Settings, rate: float) -> bool:
    """Whether 99 % of the first tokens come within 200 ms."""
    return bool(chat(engine, rate)["ttft_ms"]["p99"] <= 200)


def chat(engine: Settings, rate: float) -> Summary:
    """ShareGPT traffic at a rate for 1,000 requests."""
    arrivals = {"process": "poisson", "rate_per_s": rate}
    return served(
        LLAMA_8B, engine, {"arrivals": arrivals, "lengths": {"preset": "sharegpt"}, "requests": 1000}
    )


def sizes() -> Table:
    """A small and a large model: alone, under load, and offline."""
    yield "model", "requests/s", "tokens/s per GPU", "TTFT p99", "TPOT p50", "mean batch"
    for name, place, gpus in (("8B, 1 H100", LLAMA_8B, 1), ("70B, 4 H100", LLAMA_70B, 4)):
        for rate in (0.1, 4, None):
            arrivals = {"process": "poisson", "rate_per_s": rate} if rate else {"process": "burst"}
            workload = {"arrivals": arrivals, "lengths": {"preset": "sharegpt"}, "requests": 1000}
            made = served(place, {"max_num_seqs": 512}, workload)
            yield (
                name,
                f"{rate:g}" if rate else "all at once",
                f"{made['throughput']['output_tokens_per_s'] / gpus:,.0f}",
                f"{made['ttft_ms']['p99']:,.0f} ms",
                f"{made['tpot_ms']['p50']:.1f} ms",
                f"{made['batch']['mean_rows']:.1f}",
            )


def uniform() -> Table:
    """Where continuous batching gains nothing: all requests alike and there from the start."""
    yield "output lengths", "arrivals", "static, tokens/s", "vllm-v1", "gain", "static, E2E p50", "vllm-v1"
    for cv in (0.0, 0.25, 0.5, 1.0):
        for words, arrivals in (
            ("all at once", {"process": "burst"}),
            ("10/s", {"process": "poisson", "rate_per_s": 10}),
        ):
            workload = {"arrivals": arrivals, "lengths": varied(cv), "requests": 1024}
            static, continuous = (
                served(LLAMA_8B, {"policy": policy, "max_num_seqs": 64}, workload)
                for policy in ("static", "vllm-v1")
            )
            speeds = [made["throughput"]["output_tokens_per_s"] for made in (static, continuous)]
            yield (
                f"cv {cv:g}" if cv else "equal",
                words,
                *(f"{speed:,.0f}" for speed in speeds),
                f"{speeds[1] / speeds[0] - 1:+.0%}",
                *(f"{made['e2e_ms']['p50'] / 1e3:.3g} s" for made in (static, continuous)),
            )


def varied(cv: float) -> Settings:
    """Prompts and outputs of 256 tokens on average, the outputs with a coefficient of variation."""
    if not cv:
        return {"fixed": {"prompt": 256, "output": 256}}
    sides = {"prompt": {"mean": 256, "cv": 0.01}, "output": {"mean": 256, "cv": cv}}
    return {"lognormal": sides, "max_output_tokens": 4096}


TABLES: dict[str, Callable[[], Table]] = {
    "padding": padding,
    "spread": spread,
    "mix": mix,
    "policies": policies,
    "online": online,
    "sizes": sizes,
    "uniform": uniform,
}


def main() -> None:
    options = argparse.ArgumentParser(description="Print a table of docs/batching.md.")
    options.add_argument("name", choices=TABLES)
    header, *rows = TABLES[options.parse_args().name]()
    for row in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
