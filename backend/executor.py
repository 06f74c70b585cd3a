"""The live executor: plans become forward passes over flattened tokens, and answers are found to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from time import perf_counter_ns
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.attend import PagedAttention
from backend.batch import Batch, Chunk, Padding
from backend.beam_search import BeamSearch
from backend.graphs import DecodeGraphs
from backend.layout import Generation, Rows
from backend.prompts import Prompt, SyntheticPrompts
from backend.sampling import GREEDY, Draw, Sampling, next_tokens
from simulator.engine.plan import Plan, PrefillChunk
from simulator.engine.request import Request
from simulator.engine.sequence_group import CopyOnWrite, SequenceGroup, together
from simulator.workloads.arrival import Arrival

if TYPE_CHECKING:
    from backend.attention import Kernels
    from backend.models import LiveModel
    from backend.paged_kv import PagedKV, Saved

SEED_BITS = 20  # keeps the samples' seeds of replayed requests apart
OnAnswer = Callable[[Request, list[int]], None]


class Token(NamedTuple):
    """A request's next token; ``ended``: why it is the last one, ``stop`` or ``length``."""

    request: Request
    token: int
    ended: Literal["stop", "length"] | None = None


class TorchExecutor:
    """Runs one model for one scheduler.

    Requests of a replayed workload (`expect`) get made-up prompts and end at their recorded length; `admit`
    takes real ones. Tokens come from `collect`, which a server calls where the driver calls `finish`.
    ``on_answer`` hears of every answer as it ends. Nothing is kept of a request that has ended.
    """

    def __init__(
        self,
        model: LiveModel,
        kv: PagedKV,
        kernels: Kernels,
        *,
        prompts: SyntheticPrompts | None = None,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self.model = model
        self.kv = kv
        self.kernels = kernels
        self.bookkeeping_ns = 0  # host time before and after the model's own work, all iterations together
        self._prompts = prompts or SyntheticPrompts(model.vocabulary, 0)
        self._on_answer = on_answer
        self._generations: dict[Request, Generation] = {}
        self._graphs = self._make_graphs()
        self._rows = Rows(model.device, scratch_block=kv.blocks)
        self._away: list[Generation] = []  # without a row, perhaps decoding: new, left out or swapped in
        self._closing: list[Generation] = []  # ended while they had a row
        self._swapped: dict[Request, Saved] = {}
        self._yields: list[Generation] = []  # who gets a token in the iteration under way, in logits order
        self._decodes = 0
        self._searches: dict[BeamSearch, None] = {}
        self._sampled: Tensor
        self._logits: Tensor  # of the iteration under way

    def _make_graphs(self) -> DecodeGraphs | None:
        """On a GPU the fast path's decodes are replayed; the stock models' code asks the host too often."""
        model = self.model
        if model.device.type != "cuda" or model.path != "fast":
            return None
        return DecodeGraphs(model.forward, self.kernels, self.kv)

    @property
    def requests(self) -> int:
        """Requests that the executor still knows, each sequence counted."""
        return len(self._generations)

    def expect(self, request: Request, arrival: Arrival) -> None:
        """A replayed request: its prompt is made up, its answer has the recorded length.

        It is greedy, unless several samples are wanted.
        """
        width, searches = request.decoding
        several = width > 1 and not searches
        sampling = Sampling(temperature=1.0, seed=request.id << SEED_BITS) if several else GREEDY
        output_tokens = min(arrival.output_tokens, request.output_limit)
        self.admit(request, Prompt(self._prompts.tokens(request), sampling, output_tokens=output_tokens))

    def admit(self, request: Request, prompt: Prompt) -> None:
        """Learn what a client sent, before the request is first planned."""
        replayed = prompt.output_tokens is not None
        output = request.output_limit if prompt.output_tokens is None else prompt.output_tokens
        stops, least = frozenset[int]() if replayed else prompt.stops, prompt.least_tokens
        width, searches = request.decoding
        search = BeamSearch(width, output, stops, least=least, rules=prompt.rules) if searches else None
        if search is not None:
            self._searches[search] = None
        for place, sequence in enumerate(_sequences(request)):
            self._generations[sequence] = Generation(
                sequence,
                list(prompt.tokens),
                request.prompt_tokens,
                request.prompt_tokens + output,
                stops,
                prompt.sampling._replace(seed=prompt.sampling.seed + place),
                least,
                place,
                search,
            )

    def forget(self, request: Request) -> None:
        """Drop a request that was cancelled, between two iterations."""
        self._swapped.pop(request, None)
        for sequence in _sequences(request):
            generation = self._generations.pop(sequence, None)
            if generation is not None:
                self._close(generation)

    def begin(self, plan: Plan) -> None:
        """Run the plan's forward pass and choose tokens; on a GPU both are only queued."""
        started = perf_counter_ns()
        with torch.inference_mode():
            self._settle(plan)
            batch = self._padded_batch(plan) if plan.padded_to else self._batch(plan)
            draws = self._draws()
            self.bookkeeping_ns += perf_counter_ns() - started
            logits = None if self._graphs is None else self._graphs.run(batch)
            if logits is None:
                logits = self.model.forward(batch, PagedAttention(self.kernels, self.kv, batch))
            self._forbid_early_stops(logits)
            self._sampled, self._logits = next_tokens(logits, draws), logits

    def finish(self, plan: Plan) -> Sequence[Request]:
        """Wait for the iteration; who got its last token."""
        return [found.request for found in self.collect(plan) if found.ended]

    def collect(self, plan: Plan) -> list[Token]:  # noqa: ARG002 begin has read all that the plan says
        """Wait for the iteration; its tokens, at most one for each request."""
        tokens: list[int] = self._sampled.tolist()
        if not tokens and self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        started = perf_counter_ns()
        decodes, yields = self._decodes, self._yields
        if decodes or self._searches:
            with torch.inference_mode():  # the rows' tensors were made in it
                for search, rows in self._searching().items():
                    self._step(search, rows, tokens)
                self._rows.advance(tokens[:decodes], self._sampled)
        found = [self._take(g, token) for g, token in zip(yields, tokens, strict=True) if not g.closed]
        self._away += [g for g in yields[decodes:] if g.padded or not g.closed]
        self._yields = []
        self.bookkeeping_ns += perf_counter_ns() - started
        return found

    def _searching(self) -> dict[BeamSearch, list[int]]:
        """The beam searches in the iteration under way, and the rows of their beams in its logits."""
        found: dict[BeamSearch, list[tuple[int, int]]] = {}
        for row, generation in enumerate(self._yields if self._searches else ()):
            if generation.search is not None and not generation.closed:
                found.setdefault(generation.search, []).append((generation.place, row))
        return {search: [row for _, row in sorted(beams)] for search, beams in found.items()}

    def _step(self, search: BeamSearch, rows: list[int], tokens: list[int]) -> None:
        """A search goes on: its beams' tokens and pasts, their rows, and what the scheduler is told."""
        beams = [self._yields[row] for row in rows]
        step = search.step(self._logits[rows])
        self._sampled[rows] = torch.tensor(step.tokens, device=self._sampled.device)
        pasts = [beam.tokens for beam in beams]
        for row, beam, parent, token in zip(rows, beams, *step, strict=True):
            tokens[row] = token
            if parent != beam.place:
                beam.tokens = list(pasts[parent])
        group = beams[0].request.group
        if search.ended is None and group is not None and beams[0].row >= 0:
            self._rows.branch(beams, step.parents)
            group.parents = step.parents

    def _take(self, generation: Generation, token: int) -> Token:
        request, tokens = generation.request, generation.tokens
        tokens.append(token)
        search = generation.search
        ended: Literal["stop", "length"] | None = None
        if search is not None:
            ended = search.ended
        elif token in generation.stops:
            ended = "stop"
        elif len(tokens) >= generation.ends_at:
            ended = "length"
        if ended is not None:
            del self._generations[request]
            self._close(generation)
            if self._on_answer is not None and (search is None or generation.place == 0):
                answer = tokens[generation.prompt_tokens :] if search is None else search.answer
                self._on_answer(request, answer)
        return Token(request, token, ended)

    def _close(self, generation: Generation) -> None:
        generation.closed = True
        if generation.search is not None:
            self._searches.pop(generation.search, None)
        if generation.row >= 0:
            self._closing.append(generation)

    def _settle(self, plan: Plan) -> None:
        """Bring the rows in line with the scheduler's decode group: O(rows that changed)."""
        rows, members = self._rows, plan.decodes.members
        for request in plan.preempted:
            self._vacate(request)
        for request, blocks in plan.swapped_out:
            self._swapped[request] = self._swap_out(request, blocks)
        for request in plan.stalled:
            self._vacate(request)
            self._away.append(self._generations[request])
        for request, _ in plan.swapped_in:
            self._swap_in(request)
        if plan.copies:
            self._copy_on_write(plan.copies)
        self._part_with_the_closed(plan)
        if self._away:
            for generation in self._away:
                if generation.request in members and generation.row < 0:
                    rows.join(generation)
            self._away = [g for g in self._away if g.request in plan.stalled]
        if len(rows) != len(members):  # a padded batch has ended
            rows.keep(lambda generation: generation.request in members)
        known = self._generations
        rows.extend(known[request] for request in plan.decodes.due() if request in known)
        rows.send()

    def _swap_out(self, request: Request, blocks: int) -> Saved:
        """Copies of what a request's rows hold, each block once, as the scheduler's layout has them."""
        group = request.group
        if group is None:
            return self.kv.save(self._vacate(request)[:blocks])
        held = [self._vacate(sequence) for sequence in group.alive]
        return self.kv.save(list(_places(group, held).values()))

    def _swap_in(self, request: Request) -> None:
        group, blocks = request.group, request.blocks
        if group is not None:
            places = _places(group, [sequence.blocks for sequence in group.alive])
            blocks = list(places.values())
        self.kv.restore(self._swapped.pop(request), blocks)
        self._away += [self._generations[sequence] for sequence in together(request)]

    def _copy_on_write(self, copies: Sequence[CopyOnWrite]) -> None:
        """Make the copies, and let the rows that write to them know."""
        self.kv.copy([copy.source for copy in copies], [copy.target for copy in copies])
        for generation in [self._generations[copy.request] for copy in copies]:
            if generation.row >= 0:
                self._rows.relist(generation)

    def _part_with_the_closed(self, plan: Plan) -> None:
        """Rows that ended leave, unless the policy lets them keep their seats."""
        for generation in self._closing:
            if generation.row >= 0 and generation.request not in plan.decodes.members:
                self._rows.leave(generation)
        self._closing.clear()

    def _vacate(self, request: Request) -> Sequence[int]:
        """Take a request's row away; the blocks that it held, as far as its tokens are stored in them."""
        generation = self._generations[request]
        if generation.row < 0:
            return generation.prefilled
        blocks = self._rows.listed(generation)
        self._rows.leave(generation)
        return blocks

    def _draws(self) -> list[Draw]:
        return [
            Draw(row, g.sampling, len(g.tokens) - g.prompt_tokens)
            for row, g in enumerate(self._yields)
            if g.sampling.temperature > 0 and not g.closed
        ]

    def _forbid_early_stops(self, logits: Tensor) -> None:
        """Answers with a least length cannot choose a stop before it."""
        for row, generation in enumerate(self._yields):
            held = generation.search is None  # a search weighs its candidates before it forbids any
            if held and generation.least > len(generation.tokens) - generation.prompt_tokens:
                logits[row, list(generation.stops)] = float("-inf")

    def _batch(self, plan: Plan) -> Batch:
        """Decode rows first, then the chunks; logits where a token is due."""
        rows = self._rows
        self._decodes = decodes = 0 if plan.paused else len(rows)
        self._yields = rows.members[:decodes]
        blocks, lengths = rows.blocks[:decodes], rows.lengths[:decodes]
        tokens, positions = rows.tokens[:decodes], rows.positions[:decodes]
        slots = _slots(blocks, lengths, self.kv.block_size)
        if not plan.prefills:
            return Batch(tokens, positions, slots, decodes, blocks, lengths, padding=self._padding())
        chunks, arrays, wanted = self._chunks(plan.prefills)
        new_tokens, new_positions, new_slots = (self._send(array) for array in arrays)
        return Batch(
            torch.cat((tokens, new_tokens)),
            torch.cat((positions, new_positions)),
            torch.cat((slots, new_slots)),
            decodes,
            blocks,
            lengths,
            chunks,
            self._send(np.array([*range(decodes), *wanted], np.int64)),
        )

    def _chunks(
        self, prefills: Sequence[PrefillChunk]
    ) -> tuple[tuple[Chunk, ...], list[NDArray[np.int64]], list[int]]:
        """The chunks, their tokens, positions and slots, and which batch rows end a prompt."""
        size, first = self.kv.block_size, self._decodes
        chunks, tokens, positions, slots, wanted = [], [], [], [], []
        for request, start, count, completes in prefills:
            generation, end = self._generations[request], start + count
            generation.prefilled = request.blocks[: -(-end // size)]
            blocks = np.array(generation.prefilled, np.int64)
            here = np.arange(start, end)
            tokens.append(np.array(generation.tokens[start:end], np.int64))
            positions.append(here)
            slots.append(blocks[here // size] * size + here % size)
            chunks.append(Chunk(first, count, start, self._send(blocks.astype(np.int32))))
            first += count
            if completes:
                begun = [self._generations[sequence] for sequence in together(request)]
                wanted += [first - 1] * len(begun)
                self._yields += begun
        return tuple(chunks), [np.concatenate(parts) for parts in (tokens, positions, slots)], wanted

    def _padded_batch(self, plan: Plan) -> Batch:
        """Every prompt padded on the left to the widest, all of it computed; the last position yields."""
        width, size = plan.padded_to, self.kv.block_size
        self._decodes = 0
        self._yields = [self._generations[chunk.request] for chunk in plan.prefills]
        rows, columns = len(self._yields), -(-width // size)
        tokens = np.zeros((rows, width), np.int64)
        for i, generation in enumerate(self._yields):
            generation.padded, generation.pads = True, width - generation.prompt_tokens
            tokens[i, generation.pads :] = generation.tokens
        pads = np.array([g.pads for g in self._yields], np.int64)
        table = np.array([g.request.blocks[:columns] for g in self._yields], np.int64)
        here = np.arange(width)
        positions = np.maximum(here - pads[:, None], 0)
        slots = table[:, here // size] * size + here % size
        blocks = self._send(table.astype(np.int32))
        flat_tokens, flat_positions, flat_slots = (
            self._send(array.reshape(-1)) for array in (tokens, positions, slots)
        )
        return Batch(
            flat_tokens,
            flat_positions,
            flat_slots,
            0,
            blocks,
            self._send(np.full(rows, width, np.int32)),
            logit_rows=self._send(np.arange(1, rows + 1) * width - 1),
            padding=Padding(rows, width, blocks, self._send(pads), width),
        )

    def _padding(self) -> Padding | None:
        """Of a decode iteration of a padded batch: all of its rows are padded to one length."""
        rows = self._rows
        if not self._decodes or not rows.members[0].padded:
            return None
        count = self._decodes
        return Padding(count, 1, rows.blocks[:count], rows.pads[:count], rows.longest)

    def _send(self, array: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(array).to(self.model.device, non_blocking=True)


def _sequences(request: Request) -> Sequence[Request]:
    """All sequences that answer a request."""
    return (request,) if request.group is None else request.group.sequences


def _places(group: SequenceGroup, held: Sequence[Sequence[int]]) -> dict[int, int]:
    """The block at each place of a group's layout, in order; of a block that was copied, the original.

    The last holder of a block keeps it, so the last one listed counts. Blocks without content are left out.
    """
    pairs = chain.from_iterable(map(zip, group.layout, held))
    return dict(sorted(dict(pairs).items()))


def _slots(blocks: Tensor, lengths: Tensor, block_size: int) -> Tensor:
    """Where each row's new token goes: int64 [rows]."""
    stored = lengths.long() - 1
    block = blocks.gather(1, (stored // block_size)[:, None]).squeeze(1).long()
    return block * block_size + stored % block_size
