"""The decoding rows as arrays that persist from iteration to iteration, so that only changes are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.beam_search import BeamSearch
from backend.sampling import Sampling
from simulator.engine.request import Request

FIRST_ROWS = 16
FIRST_COLUMNS = 16


@dataclass(eq=False, slots=True)
class Generation:
    """A request in the executor: all its tokens, where it ends, and its row while it decodes.

    Where several sequences answer a request each has a generation, and a ``place`` among them.
    """

    request: Request
    tokens: list[int]
    prompt_tokens: int
    ends_at: int  # length of prompt and answer at which the answer ends
    stops: frozenset[int]
    sampling: Sampling
    least: int = 0  # tokens of the answer before which no stop counts
    place: int = 0
    search: BeamSearch | None = None  # that of all beams of its request
    row: int = -1
    padded: bool = False  # a row of a static batch
    pads: int = 0  # padded positions before its prompt
    closed: bool = False  # a padded row that has stopped and only keeps its seat
    blocks: int = 0  # leading blocks that its row lists
    prefilled: Sequence[int] = ()  # blocks of its latest prompt chunk, and of all before it


Column: TypeAlias = NDArray[np.int64] | NDArray[np.int32]


class Columns(NamedTuple):
    """What is kept per row: its newest token and that token's position; the length stored once the token
    is, padding included; the padded positions before the prompt; the blocks, filled up with scratch."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    lengths: NDArray[np.int32]
    pads: NDArray[np.int64]
    blocks: NDArray[np.int32]


class Rows:
    """Decode rows, densely packed in no particular order: a row that leaves is replaced by the last one.

    The model reads the device's copy of the columns. On the CPU that is the host's memory itself; elsewhere
    `send` copies the rows that changed.
    """

    def __init__(self, device: torch.device, scratch_block: int) -> None:
        self.device = device
        self.members: list[Generation] = []
        self._scratch = scratch_block
        self._changed: dict[int, None] = {}
        self._allocate(FIRST_ROWS, FIRST_COLUMNS)

    def __len__(self) -> int:
        return len(self.members)

    def _allocate(self, rows: int, columns: int) -> None:
        """Fresh arrays with the old ones' content."""
        fresh = Columns(
            np.zeros(rows, np.int64),
            np.zeros(rows, np.int64),
            np.ones(rows, np.int32),
            np.zeros(rows, np.int64),
            np.full((rows, columns), self._scratch, np.int32),
        )
        if self.members:
            pairs: Iterable[tuple[Column, Column]] = zip(fresh, self._host, strict=True)
            for new, was in pairs:
                new[tuple(map(slice, was.shape))] = was
        self._host: Columns = fresh
        self.tokens, self.positions, self.lengths, self.pads, self.blocks = (
            torch.from_numpy(array).to(self.device) for array in self._host
        )

    @property
    def longest(self) -> int:
        """Stored tokens of the first row; of all rows where they are padded to one length."""
        return int(self._host.lengths[0])

    def join(self, generation: Generation) -> None:
        """A row whose newest token is known but not stored yet."""
        row, blocks = len(self.members), generation.request.blocks
        rows, columns = self._host.blocks.shape
        if row == rows or len(blocks) > columns:
            self._allocate(rows << (row == rows), max(columns, _power_of_two(len(blocks))))
        self.members.append(generation)
        generation.row, generation.blocks = row, len(blocks)
        host, known = self._host, len(generation.tokens)
        host.tokens[row] = generation.tokens[-1]
        host.positions[row] = known - 1
        host.lengths[row] = known + generation.pads
        host.pads[row] = generation.pads
        host.blocks[row, : len(blocks)] = blocks
        host.blocks[row, len(blocks) :] = self._scratch
        self._changed[row] = None

    def leave(self, generation: Generation) -> None:
        row, last = generation.row, len(self.members) - 1
        generation.row = -1
        moved = self.members.pop()
        if moved is not generation:
            self.members[row] = moved
            moved.row = row
            for array in self._host:
                array[row] = array[last]
            self._changed[row] = None
        self._changed.pop(last, None)

    def keep(self, stays: Callable[[Generation], bool]) -> None:
        """Let all others leave."""
        for generation in [g for g in self.members if not stays(g)]:
            self.leave(generation)

    def listed(self, generation: Generation) -> list[int]:
        """The blocks of a row, as last written down."""
        found: list[int] = self._host.blocks[generation.row, : generation.blocks].tolist()
        return found

    def extend(self, generations: Iterable[Generation]) -> None:
        """Write down the blocks that these rows got since they were last listed."""
        for generation in generations:
            blocks, known = generation.request.blocks, generation.blocks
            if len(blocks) == known:
                continue
            rows, columns = self._host.blocks.shape
            if len(blocks) > columns:
                self._allocate(rows, _power_of_two(len(blocks)))
            self._host.blocks[generation.row, known : len(blocks)] = blocks[known:]
            generation.blocks = len(blocks)
            self._changed[generation.row] = None

    def relist(self, generation: Generation) -> None:
        """Write down all blocks of a row afresh, of which some were exchanged."""
        blocks = generation.request.blocks
        self._host.blocks[generation.row, : len(blocks)] = blocks
        generation.blocks = len(blocks)
        self._changed[generation.row] = None

    def branch(self, beams: Sequence[Generation], parents: Sequence[int]) -> None:
        """Every beam's row now lists the blocks that its parent's row did; all have equally many."""
        rows = [beam.row for beam in beams]
        self._host.blocks[rows] = self._host.blocks[[rows[parent] for parent in parents]]
        self._changed.update(dict.fromkeys(rows))

    def advance(self, tokens: list[int], sampled: Tensor) -> None:
        """Every row got its next token, in order of rows."""
        count, host = len(tokens), self._host
        host.tokens[:count] = tokens
        host.positions[:count] += 1
        host.lengths[:count] += 1
        if self.device.type != "cpu":
            self.tokens[:count] = sampled[:count]
            self.positions[:count] += 1
            self.lengths[:count] += 1

    def send(self) -> None:
        """Bring the device's copy up to date."""
        if self._changed and self.device.type != "cpu":
            rows = np.fromiter(self._changed, np.int64, len(self._changed))
            index = torch.from_numpy(rows).to(self.device)
            copies = (self.tokens, self.positions, self.lengths, self.pads, self.blocks)
            pairs: Iterable[tuple[Tensor, Column]] = zip(copies, self._host, strict=True)
            for target, array in pairs:
                target[index] = torch.from_numpy(array[rows]).to(self.device)
        self._changed.clear()


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
