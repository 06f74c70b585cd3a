"""Accelerators: what their makers promise and what an engine finds there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.errors import ModelError
from simulator.mig import SEPARATOR, cut
from simulator.models import catalog, did_you_mean, dtype_name


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator.

    ``memory_bytes`` is what CUDA reports to a process (``cudaMemGetInfo``), a few per cent below the
    data sheet's figure, because engines apply their utilisation to that. Rates are dense peaks by the
    data sheet; ``interconnect_bytes_per_s`` is one direction between two of them, ``pcie_bytes_per_s`` one
    direction between one of them and the host's memory.
    """

    name: str
    description: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    interconnect_bytes_per_s: float
    pcie_bytes_per_s: float
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()
    instances_per_gpu: int = 1  # more where this is a slice of a GPU

    def peak_flops_per_s(self, dtype: str) -> float:
        """The dense peak for a dtype, where the hardware computes in it."""
        name = dtype_name(dtype)
        if name not in self.flops_per_s:
            raise ModelError(
                f"hardware {self.name} has no {name} arithmetic; it has {', '.join(self.flops_per_s)}"
            )
        return self.flops_per_s[name]


def hardware_names() -> tuple[str, ...]:
    """Names of the built-in descriptions."""
    return tuple(catalog("hardware"))


def load_hardware(name: str) -> Hardware:
    """A built-in description, or that of a MIG slice: ``h100-sxm/1g.10gb``."""
    gpu, _, part = name.partition(SEPARATOR)
    if part:
        return cut(load_hardware(gpu), part)
    entries = catalog("hardware")
    if name not in entries:
        raise ModelError(f"hardware: {name!r} is not known{did_you_mean(name, list(entries), 'hardware')}")
    entry = entries[name]
    return Hardware(**{**entry, "name": name, "notes": tuple(entry["notes"])})


def describe_hardware() -> tuple[dict[str, object], ...]:
    """A row per built-in accelerator, for ``servetwin list hardware``."""
    return tuple(_describe(load_hardware(name)) for name in hardware_names())


def _describe(hardware: Hardware) -> dict[str, object]:
    return {
        "name": hardware.name,
        "description": hardware.description,
        "memory_bytes": hardware.memory_bytes,
        "bandwidth_bytes_per_s": hardware.bandwidth_bytes_per_s,
        "bfloat16_flops_per_s": hardware.peak_flops_per_s("bfloat16"),
        "interconnect_bytes_per_s": hardware.interconnect_bytes_per_s,
    }
