"""How many GPUs does a chat service need? The least replicas that keep its SLO, with cost and doubt.

python examples/chat_capacity.py [REQUESTS_PER_S]
"""

from __future__ import annotations

import sys

import simulator

PRICE_PER_GPU_HOUR = 2.5


def main(rate_per_s: float = 100.0) -> None:
    found = simulator.capacity(
        {
            "name": "chat service",
            "model": "meta-llama/Llama-3.1-8B",
            "hardware": "h100-sxm",
            "engine": {"policy": "vllm-v1", "max_num_seqs": 512, "max_num_batched_tokens": 8192},
            "workload": {
                "arrivals": {"process": "poisson", "rate_per_s": rate_per_s},
                "lengths": {"uniform": {"prompt": [16, 256], "output": [4, 16]}},
                "requests": 1000,
            },
            "slo": {"ttft_ms": 200, "tpot_ms": 50},
        },
        price=PRICE_PER_GPU_HOUR,
    )
    plan = found.best
    if plan is None:
        print(f"no answer: {found.plans[0].reason}")
        return
    print(f"{found.title}: {plan.replicas} replicas on {plan.hardware} for {plan.rate_per_s:g} requests/s")
    if plan.constraint is not None:
        print(f"limited by {plan.constraint.name}")
    if plan.cost is not None:
        per_hour, per_million = plan.cost.usd_per_hour, plan.cost.usd_per_million_output
        print(f"{per_hour:.2f} USD per hour, {per_million:.3f} USD per million output tokens")
    print(f"confirmed by a longer run: {plan.confirmed}")
    for lost in found.losses:
        print(lost)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
