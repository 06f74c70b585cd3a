"""Slices of a GPU as servers of their own (Multi-Instance GPU, MIG).

Compute comes in sevenths; memory, its bandwidth and the L2 cache in eighths. Source: tables of supported
MIG profiles in NVIDIA's MIG user guide (docs.nvidia.com/datacenter/tesla/mig-user-guide). What CUDA reports
in a slice lies at or a little below its share of the whole: 10.2, 20.9 and 42.4 of 85.2 GB on an A100-80,
which is 4.2, 1.9 and 0.5 % less than eighths (MIG profile comparison, NJIT ARCS documentation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from simulator.errors import ModelError

if TYPE_CHECKING:
    from simulator.hardware import Hardware

SEPARATOR = "/"  # between a GPU and its slice: h100-sxm/1g.10gb


class Slice(NamedTuple):
    """A share of a GPU, and how many such shares one GPU holds at most."""

    sevenths: int
    eighths: int
    instances: int


SHARES = (Slice(1, 1, 7), Slice(1, 2, 4), Slice(2, 2, 3), Slice(3, 4, 2), Slice(4, 4, 1), Slice(7, 8, 1))
GIGABYTES: Mapping[str, Mapping[int, int]] = {  # in a slice's name, by its eighths
    "a100-40-sxm": {1: 5, 2: 10, 4: 20, 8: 40},
    "a100-80-sxm": {1: 10, 2: 20, 4: 40, 8: 80},
    "h100-sxm": {1: 10, 2: 20, 4: 40, 8: 80},
    "h200-sxm": {1: 18, 2: 35, 4: 71, 8: 141},
}


def slices(gpu: str) -> dict[str, Slice]:
    """The slices that a GPU can be cut into, by name; none where it cannot be cut."""
    gigabytes = GIGABYTES.get(gpu)
    if gigabytes is None:
        return {}
    return {f"{share.sevenths}g.{gigabytes[share.eighths]}gb": share for share in SHARES}


def is_slice(hardware: str) -> bool:
    """Whether a hardware name means a slice."""
    return SEPARATOR in hardware


def cut(gpu: Hardware, name: str) -> Hardware:
    """One slice of a GPU as hardware: its share of everything, and no way to its neighbours."""
    known = slices(gpu.name)
    if not known:
        raise ModelError(
            f"hardware {gpu.name} cannot be cut into MIG slices here; {', '.join(GIGABYTES)} can"
        )
    if name not in known:
        raise ModelError(f"hardware {gpu.name} has no MIG slice {name!r}; it has {', '.join(known)}")
    share = known[name]
    memory = share.eighths / 8
    note = f"a MIG slice: {share.sevenths}/7 of the arithmetic, {share.eighths}/8 of the memory"
    return replace(
        gpu,
        name=f"{gpu.name}{SEPARATOR}{name}",
        description=f"{gpu.description}, MIG slice {name}",
        memory_bytes=gpu.memory_bytes * share.eighths // 8,
        bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s * memory,
        flops_per_s={dtype: rate * share.sevenths / 7 for dtype, rate in gpu.flops_per_s.items()},
        interconnect_bytes_per_s=0.0,
        pcie_bytes_per_s=gpu.pcie_bytes_per_s * memory,
        notes=(*gpu.notes, note),
        instances_per_gpu=share.instances,
    )
