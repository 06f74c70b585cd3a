"""Fits every shipped profile again from the public data.

python -m calibration.regenerate SOURCE       where SOURCE/kernels and SOURCE/engines hold the data
"""

from __future__ import annotations

import sys
from pathlib import Path

from calibration import host
from calibration.aiconfigurator import import_tables
from calibration.fit import fit_profile, host_term, write_profile
from simulator.hardware import load_hardware
from simulator.models import load_model

DTYPE = "bfloat16"
SHIPPED = (
    ("meta-llama/Llama-3.1-8B", 1, ("h100-sxm", "h200-sxm", "a100-80-sxm")),
    ("meta-llama/Llama-3.1-70B", 4, ("h100-sxm", "h200-sxm", "a100-80-sxm")),
    ("Qwen/Qwen3-8B", 1, ("h100-sxm",)),
    ("Qwen/Qwen3-32B", 2, ("h100-sxm",)),
    ("Qwen/Qwen3-30B-A3B", 1, ("h100-sxm",)),
    ("mistralai/Mixtral-8x7B-v0.1", 2, ("h100-sxm",)),
)


def profile_name(hardware: str, model: str, tensor_parallel: int) -> str:
    return f"{hardware}_{model.rpartition('/')[2].lower()}_bf16_tp{tensor_parallel}"


def main() -> None:
    source = Path(sys.argv[1])
    host.main()
    folder = Path(__file__).with_name("profiles")
    for name, ways, machines in SHIPPED:
        for machine in machines:
            model = load_model(name)
            found = import_tables(source / host.TABLES, model, load_hardware(machine), DTYPE, ways)
            fields = fit_profile(found, host_term(machine, ways, model.layers))
            write_profile(fields, folder / f"{profile_name(machine, name, ways)}.json")


if __name__ == "__main__":
    main()
