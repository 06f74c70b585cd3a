"""A replica whose layers are shared out over stages (pipeline parallelism).

Modelled as the virtual engines of vLLM before V1: a replica of P stages is P engines, each with its own
batch, a P-th of the KV blocks and of the seats (as Vidur's micro-batches), and at most one iteration under
way. They share the stages: an iteration passes through all of them in order, and a stage works on one
iteration at a time, first come, first served. So up to P iterations are in flight, one per stage, and a
stage that waits for a longer one before it stands idle: the bubbles of a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.cost_model import CostModel, ProfileCostModel
from simulator.engine.plan import IterationShape, Plan
from simulator.executor import SimulatedExecutor
from simulator.hardware import Hardware
from simulator.memory import layers_per_stage
from simulator.models import Model, dtype_bytes

HOP_NS = 10_000.0  # latency from stage to stage: p2p_latency of aiconfigurator-core 0.12.0 (systems/*.yaml)


class Pipeline:
    """The stages of one replica, and when each is free again.

    ``stages_ns``: how long an iteration takes in each stage. ``hop_ns``: to get from one to the next, which
    occupies neither.
    """

    def __init__(
        self,
        stages: int,
        stages_ns: Callable[[IterationShape], Sequence[int]],
        hop_ns: Callable[[IterationShape], int],
    ) -> None:
        self._free_ns = [0] * stages
        self._stages_ns = stages_ns
        self._hop_ns = hop_ns

    def end_ns(self, shape: IterationShape, start_ns: int) -> int:
        """Send an iteration through; when it leaves the last stage.

        Exact as long as iterations are sent in the order of their starts: nothing overtakes.
        """
        free, hop = self._free_ns, self._hop_ns(shape)
        now = start_ns - hop
        for stage, duration in enumerate(self._stages_ns(shape)):
            free[stage] = now = max(now + hop, free[stage]) + duration
        return now

    def reset(self, now_ns: int) -> None:
        """Whatever was under way is gone."""
        self._free_ns = [now_ns] * len(self._free_ns)


class PipelinedExecutor(SimulatedExecutor):
    """Plays the model for one of the engines that share a pipeline."""

    def __init__(
        self, pipeline: Pipeline, cost: CostModel, block_copy_ns: float, block_split_ns: float
    ) -> None:
        super().__init__(cost, block_copy_ns, block_split_ns)
        self._pipeline = pipeline

    def runs(self, plan: Plan, shape: IterationShape) -> int:  # noqa: ARG002 the same for every plan
        """One: when the next would end depends on the other engines."""
        return 1

    def ends_ns(self, shape: IterationShape, run: int, start_ns: int, count: int) -> list[int]:  # noqa: ARG002
        """When the iteration leaves the last stage."""
        return [self._pipeline.end_ns(shape, start_ns)]


def make_pipeline(
    stages: int, model: Model, hardware: Hardware, dtype: str, cost: ProfileCostModel
) -> Pipeline:
    """The stages of a replica: each has its layers' share of an iteration, and a host of its own."""
    shares = [layers / model.layers for layers in layers_per_stage(model.layers, stages)]
    value_bytes = max(2, dtype_bytes(dtype))
    link_bytes_per_s = hardware.interconnect_bytes_per_s or hardware.pcie_bytes_per_s
    ns_per_token = 1e9 * model.hidden * value_bytes / link_bytes_per_s

    def stages_ns(shape: IterationShape) -> list[int]:
        layers_ns, head_ns, host_ns = cost.split_ns(shape)
        durations = [int(layers_ns * share + host_ns) or 1 for share in shares]
        durations[-1] += int(head_ns)
        return durations

    def hop_ns(shape: IterationShape) -> int:
        return int(HOP_NS + ns_per_token * (shape.prefill_tokens + shape.decodes))

    return Pipeline(stages, stages_ns, hop_ns)
