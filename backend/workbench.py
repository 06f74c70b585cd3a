"""A model taken to pieces for timing: its layers, its attention, its head, and whole iterations.

Every piece is the live engine's own code on its own memory. A pass whose attention only stores keys and
values is what depends on the tokens alone; attention is timed as the executor calls it, layer after layer;
whole iterations run through `TorchExecutor`. On a GPU pieces are replayed from a captured graph where their
code allows it, so that a piece is what the GPU does and the rest of an iteration is the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from backend.attend import PagedAttention
from backend.attention import Kernels
from backend.batch import Batch, Chunk, Padding
from backend.executor import TorchExecutor
from backend.llama import LlamaForward
from backend.models import LiveModel
from backend.paged_kv import PagedKV
from backend.sampling import next_tokens

Work = Callable[[], object]

SHORT_NS = 30_000_000  # a piece that is shorter runs a few times; the median counts
REPEATS = 3
REFERENCE_TOKENS = 16  # of the pass by which a machine's drift is known
FIRST_TOKEN = 3


class Took(NamedTuple):
    """A duration, and how long this process waited for processors meanwhile."""

    ns: int
    waited_ns: int


class Workbench:
    """Times pieces of one model. ``now_ns``: the clock; ``waited_ns``: this process's wait so far."""

    def __init__(
        self,
        model: LiveModel,
        kernels: Kernels,
        kv: PagedKV,
        *,
        hidden: int,
        generator: np.random.Generator,
        now_ns: Callable[[], int] = perf_counter_ns,
        waited_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self.model = model
        self.kernels = kernels
        self.kv = kv
        self.executor = TorchExecutor(model, kv, kernels)
        self.now_ns = now_ns
        self.waited_ns = waited_ns
        self._hidden = hidden
        self._generator = generator
        self._blocks = generator.permutation(kv.blocks).astype(np.int32)  # scattered, as in a busy engine
        self._head = _head(model, hidden)
        self._reference = self.dense(REFERENCE_TOKENS)

    def clocked(self, work: Work) -> Took:
        """How long some work takes, until the device is done with it."""
        self._wait()
        waited, began = self.waited_ns(), self.now_ns()
        work()
        self._wait()
        return Took(self.now_ns() - began, self.waited_ns() - waited)

    def steadily(self, work: Work) -> Took:
        """The same; a median of a few for short work."""
        first = self.clocked(work)
        if first.ns >= SHORT_NS:
            return first
        return middle([first, *(self.clocked(work) for _ in range(REPEATS - 1))])

    def piece(self, work: Work) -> Took:
        """A piece without the host's share: on a GPU from a captured graph, where there can be one."""
        with torch.inference_mode():
            if self.model.device.type == "cuda":
                work = _captured(work)
            return self.steadily(work)

    def reference(self) -> Took:
        """A small pass, which moves all weights once."""
        with torch.inference_mode():
            return self.clocked(self._reference)

    def _wait(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def dense(self, tokens: int) -> Work:
        """All that a pass computes for its tokens but attention and logits; keys and values are stored."""
        slots = self._send(np.arange(tokens) % (self.kv.blocks * self.kv.block_size))
        batch = Batch(
            self._tokens(tokens),
            self._send(np.arange(tokens) % self.model.max_positions),
            slots,
            0,
            self._send(np.zeros((0, 1), np.int32)),
            self._send(np.zeros(0, np.int32)),
            logit_rows=self._send(np.zeros(0, np.int64)),
        )
        kernels, kv = self.kernels, self.kv

        def store(layer: int, query: Tensor, key: Tensor, value: Tensor, **_: object) -> Tensor:
            kernels.write(key, value, kv.keys[layer], kv.values[layer], slots)
            return query

        return lambda: self.model.forward(batch, store)

    def head(self, rows: int) -> Work:
        """Logits of some rows and the choice of their next tokens."""
        hidden = torch.randn(rows, self._hidden).to(self.model.device, self.model.dtype)
        return lambda: next_tokens(self._head(hidden), ())

    def prefill_attention(self, chunks: int, tokens: int, start: int) -> Work:
        """Attention of equal chunks, each behind ``start`` tokens of its own request."""
        tables = self._tables(chunks, start + tokens)
        parts = tuple(Chunk(i * tokens, tokens, start, tables[i]) for i in range(chunks))
        nothing = self._send(np.zeros(0, np.int64))
        none, empty = self._send(np.zeros((0, 1), np.int32)), self._send(np.zeros(0, np.int32))
        return self._attention(Batch(nothing, nothing, nothing, 0, none, empty, parts), chunks * tokens)

    def decode_attention(self, rows: int, context: int) -> Work:
        """Attention of rows that read ``context`` keys each."""
        lengths = self._send(np.full(rows, context, np.int32))
        nothing = self._send(np.zeros(0, np.int64))
        batch = Batch(nothing, nothing, nothing, rows, self._tables(rows, context), lengths)
        return self._attention(batch, rows)

    def padded_attention(self, rows: int, width: int, stored: int) -> Work:
        """Attention of a padded batch: ``width`` positions a row, of ``stored``; a quarter is padding."""
        pads = self._send(np.arange(rows) * stored // (2 * rows))
        nothing = self._send(np.zeros(0, np.int64))
        tables = self._tables(rows, stored)
        padding = Padding(rows, width, tables, pads, stored)
        batch = Batch(nothing, nothing, nothing, 0, tables, pads, padding=padding)
        return self._attention(batch, rows * width)

    def _attention(self, batch: Batch, queries: int) -> Work:
        model, attend = self.model, PagedAttention(self.kernels, self.kv, batch)
        shape = (queries, model.heads, model.kv_shape.head_dim)
        query, scale = torch.randn(shape).to(model.device, model.dtype), shape[-1] ** -0.5
        return lambda: [attend.look(layer, query, scale=scale) for layer in range(model.kv_shape.layers)]

    def copy_blocks(self, blocks: int) -> Work:
        """Blocks go to the host's memory and come back."""
        wanted = self._blocks[:blocks].tolist()
        return lambda: self.kv.restore(self.kv.save(wanted), wanted)

    def block_tables(self, rows: int, tokens: int) -> list[list[int]]:
        """Blocks for rows of so many tokens each; they begin anew where the cache ends."""
        columns = -(-tokens // self.kv.block_size)
        found: list[list[int]] = np.resize(self._blocks, (rows, columns)).tolist()
        return found

    def prompt(self, tokens: int) -> list[int]:
        """Made-up token ids."""
        drawn: list[int] = self._generator.integers(FIRST_TOKEN, self.model.vocabulary, tokens).tolist()
        return drawn

    def _tables(self, rows: int, tokens: int) -> Tensor:
        return self._send(np.array(self.block_tables(rows, tokens), np.int32))

    def _tokens(self, count: int) -> Tensor:
        return self._send(np.array(self.prompt(count), np.int64))

    def _send(self, array: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(array).to(self.model.device)


def middle(took: Sequence[Took]) -> Took:
    """The median, and the mean wait."""
    return Took(int(median(each.ns for each in took)), sum(each.waited_ns for each in took) // len(took))


def _head(model: LiveModel, hidden: int) -> Callable[[Tensor], Tensor]:
    """The model's last norm and product; for stock models a product of the same size stands in."""
    forward = model.forward
    if isinstance(forward, LlamaForward):
        norm, eps = forward.norm, forward.eps
        return lambda x: forward.head(functional.rms_norm(x.to(norm.dtype), norm.shape, norm, eps))
    weight = torch.randn(model.vocabulary, hidden).to(model.device, model.dtype)
    return lambda x: functional.linear(functional.rms_norm(x, (hidden,)), weight)


def _captured(work: Work) -> Work:
    """The work as one launch; as it is where it asks the host in between."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(current)
    with torch.cuda.stream(side):
        work()
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except RuntimeError:
        torch.cuda.synchronize()
        return work
    graph.replay()
    return graph.replay
