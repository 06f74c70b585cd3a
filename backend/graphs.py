"""Decode passes as captured CUDA graphs: one launch an iteration instead of hundreds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from backend.attend import PagedAttention
from backend.attention import Kernels
from backend.batch import Batch, Forward
from backend.paged_kv import PagedKV

SIZES = (
    1,
    2,
    4,
    8,
    *range(16, 257, 16),
)  # rows that a graph is captured for; in between they are filled up


class Captured(NamedTuple):
    """A graph, the inputs that it reads at fixed addresses, and the logits that it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Batch
    logits: Tensor


def padded_size(rows: int) -> int | None:
    """The smallest captured size that holds so many rows; None: too many for any."""
    return next((size for size in SIZES if size >= rows), None)


def fixed_inputs(size: int, columns: int, device: torch.device) -> Batch:
    """Inputs of a pure decode pass at addresses that stay."""
    tokens, positions, slots = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(3))
    blocks = torch.zeros((size, columns), dtype=torch.int32, device=device)
    lengths = torch.ones(size, dtype=torch.int32, device=device)
    return Batch(tokens, positions, slots, size, blocks, lengths)


def fill(inputs: Batch, batch: Batch, kv: PagedKV) -> None:
    """Copy a batch into fixed inputs; the rows beyond it read and write the scratch block alone."""
    rows = batch.decodes
    for target, source in zip(inputs[:3], batch[:3], strict=True):
        target[:rows].copy_(source)
    inputs.blocks[:rows].copy_(batch.blocks)
    inputs.lengths[:rows].copy_(batch.lengths)
    inputs.tokens[rows:].zero_()
    inputs.positions[rows:].zero_()
    inputs.slots[rows:].fill_(kv.blocks * kv.block_size)
    inputs.blocks[rows:].fill_(kv.blocks)
    inputs.lengths[rows:].fill_(1)


class DecodeGraphs:
    """Runs pure decode batches from captured graphs, one per padded number of rows and table width.

    Where kernels cannot be captured, since they ask the host in between, every pass runs as it is.
    """

    def __init__(self, forward: Forward, kernels: Kernels, kv: PagedKV) -> None:
        self.forward = forward
        self.kernels = kernels
        self.kv = kv
        self.usable = True
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[tuple[int, int], Captured] = {}

    def run(self, batch: Batch) -> Tensor | None:
        """The logits, valid until the next run; None where no graph serves this batch."""
        size = padded_size(batch.decodes)
        pure = not batch.chunks and batch.padding is None and batch.decodes > 0
        if not (self.usable and pure) or size is None:
            return None
        key = size, batch.blocks.shape[1]
        if key not in self._captured:
            self._capture(key, batch)
        found = self._captured.get(key)
        if found is None:
            return None
        fill(found.inputs, batch, self.kv)
        found.graph.replay()
        return found.logits[: batch.decodes]

    def _capture(self, key: tuple[int, int], batch: Batch) -> None:
        """Run twice beside the stream, which compiles what needs compiling, then record the third.

        The tokens' keys and values are stored each time, with the same outcome.
        """
        inputs = fixed_inputs(*key, batch.tokens.device)
        fill(inputs, batch, self.kv)
        attend = PagedAttention(self.kernels, self.kv, inputs)
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(2):
                self.forward(inputs, attend)
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                logits = self.forward(inputs, attend)
        except RuntimeError:
            self.usable = False
        else:
            self._captured[key] = Captured(graph, inputs, logits)
