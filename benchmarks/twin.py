"""How far the twin is from this CPU: measured and fitted from scratch, then validated on other workloads.

    python -m benchmarks.twin runs/twin --budget 120

Three policies by four workloads that no calibration has seen, each live three times and simulated. Checked
are the figures that ``servetwin validate --max-error 0.05`` checks, but for those that both sides have as
zero, as whole padded batches have their TPOT. Everything is kept in the folder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

MODEL, DTYPE = "servetwin/llama-50m", "float32"
MEMORY = "kv_blocks: 2048, max_model_len: 1024"
POLICIES = {
    "vllm-v1": f"{{policy: vllm-v1, max_num_seqs: 32, max_num_batched_tokens: 512, {MEMORY}}}",
    "sarathi": f"{{policy: sarathi, max_num_seqs: 32, token_budget: 256, {MEMORY}}}",
    "static": f"{{policy: static, max_num_seqs: 4, {MEMORY}}}",
}
WORKLOADS: Mapping[str, tuple[str, int, Mapping[str, float]]] = {  # lengths, requests, requests/s
    "chat": ("{uniform: {prompt: [20, 150], output: [10, 60]}}", 12, {"static": 1.5, "others": 2}),
    "long": ("{uniform: {prompt: [300, 700], output: [10, 40]}}", 6, {"static": 0.6, "others": 1}),
    "burst": ("{uniform: {prompt: [30, 300], output: [20, 60]}}", 12, {}),
    "steady": ("{fixed: {prompt: 120, output: 32}}", 12, {"static": 1.2, "others": 1.8}),
}
SHOWN = ("ttft_ms.mean", "tpot_ms.mean", "e2e_ms.mean", "throughput.requests_per_s")


def scenario(policy: str, workload: str) -> str:
    """The scenario file of a pair; the rates keep the engine from half to fully busy on two AVX2 cores."""
    lengths, requests, rates = WORKLOADS[workload]
    rate = rates.get(policy, rates.get("others"))
    arrivals = f"{{process: poisson, rate_per_s: {rate}}}" if rate else "{process: burst}"
    return (
        f"model: {MODEL}\nhardware: cpu\ndtype: {DTYPE}\nengine: {POLICIES[policy]}\nseed: 5\n"
        f"workload: {{arrivals: {arrivals}, lengths: {lengths}, requests: {requests}}}\n"
    )


def servetwin(*arguments: str) -> int:
    """Run a command of ours; its exit code."""
    command = [sys.executable, "-m", "simulator", *arguments]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode


def validations(folder: Path, profile: Path, repeats: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for workload in WORKLOADS:
        for policy in POLICIES:
            name = f"{workload}-{policy}"
            file, output = folder / f"{name}.yaml", folder / name
            file.write_text(scenario(policy, workload), encoding="utf-8")
            options = ("--profile", str(profile), "--repeat", str(repeats), "--max-error", "0.05")
            if servetwin("validate", str(file), *options, "--output", str(output)) not in (0, 1):
                sys.exit(f"{name}: could not be validated")
            yield name, json.loads((output / "validation.json").read_text(encoding="utf-8"))


def report(found: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """A line for each pair as it comes, then all of them together, figure by figure."""
    errors: dict[str, list[float]] = {}
    passed = 0
    for name, validation in found:
        metrics = {
            key: metric
            for key, metric in validation["metrics"].items()
            if metric["allowed"] is not None and (metric["live_median"] or metric["twin"])
        }
        passed += sum(not metric["failed"] for metric in metrics.values())
        for key, metric in metrics.items():
            errors.setdefault(key, []).append(metric["error_without_drift"])
        told = (
            f"{key} {100 * metrics[key]['error_without_drift']:+.1f} %{'!' * metrics[key]['failed']}"
            for key in SHOWN
            if key in metrics
        )
        machine = median(validation["drift"]["of_runs"])
        print(f"  {name:15} machine {machine:.2f}  {', '.join(told)}", flush=True)
    print(f"{passed} of {sum(map(len, errors.values()))} checked figures within their limits")
    for key, values in errors.items():
        sizes = [abs(error) for error in values]
        print(f"  {key:30} median {100 * median(sizes):4.1f} %, worst {100 * max(sizes):4.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="a new one")
    parser.add_argument("--budget", type=int, default=120, help="seconds of measuring; default: 120")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    folder, started = options.folder, time.monotonic()
    folder.mkdir(parents=True)
    timings, profile = folder / "timings.jsonl", folder / "profile.json"
    measure = ("--model", MODEL, "--dtype", DTYPE, "--budget", str(options.budget))
    if servetwin("calibrate", "measure", *measure, "--output", str(timings)) or servetwin(
        "calibrate", "fit", str(timings), "--output", str(profile)
    ):
        sys.exit("could not be calibrated")
    print(f"calibrated after {time.monotonic() - started:.0f} s; errors without drift, ! beyond the limit")
    report(validations(folder, profile, options.repeat))
    print(f"{time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
