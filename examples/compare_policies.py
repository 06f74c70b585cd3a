"""Which batching policy suits a chat service? The same requests under each, side by side.

python examples/compare_policies.py
"""

from __future__ import annotations

from pathlib import Path

import simulator

SCENARIO = Path(__file__).resolve().parents[1] / "scenarios" / "quickstart.yaml"
POLICIES = ["static", "orca", "vllm-v0", "vllm-v1", "sarathi"]


def main() -> None:
    overrides = {
        "workload.requests": 300,
        "workload.lengths.max_prompt_tokens": 2048,
        "workload.lengths.max_output_tokens": 2048,
        "engine.max_model_len": 4096,
    }
    scenario = simulator.load_scenario(SCENARIO, overrides)
    found = simulator.sweep(scenario, {"engine.policy": POLICIES}, latency="ttft_ms.p99")

    print(
        f"{scenario.name}: {len(found.rows)} policies under the same {scenario.workload.requests} requests"
    )
    print(f"{'policy':10} {'tokens/s':>10} {'TTFT p99':>12} {'TPOT p99':>12}")
    table = found.columns
    for policy, tokens_per_s, ttft_ms, tpot_ms in zip(
        table["engine.policy"],
        table["throughput.output_tokens_per_s"],
        table["ttft_ms.p99"],
        table["tpot_ms.p99"],
        strict=True,
    ):
        print(f"{policy:10} {tokens_per_s:10,.0f} {ttft_ms:9,.0f} ms {tpot_ms:9,.1f} ms")
    for row in found.front:
        print(f"nobody beats {row.values['engine.policy']}")


if __name__ == "__main__":
    main()
