"""Random worlds in which several sequences answer each request, and a memory that holds what is written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from hypothesis import strategies as st

from simulator.beams import chosen_parents
from simulator.engine.plan import Plan
from simulator.engine.request import ONE_SEQUENCE, Decoding, Request
from simulator.engine.scheduler import Scheduler
from simulator.engine.sequence_group import together
from simulator.errors import RequestRefused
from simulator.workloads.arrival import Arrival
from simulator.workloads.workload import Workload
from tests.laws.worlds import World, worlds

GANGS = ("vllm-0.1", "vllm-v0")


@dataclass(frozen=True)
class SequenceWorld(World):
    """A world whose requests are all answered so."""

    decoding: Decoding = ONE_SEQUENCE

    def workload(self) -> Workload:
        return replace(super().workload(), decoding=self.decoding)

    def offer(self, engine: Scheduler) -> list[tuple[Request, Arrival]]:
        """Hand over every request at once; those that were not turned away."""
        taken = []
        for i, arrival in enumerate(self.arrivals):
            request = Request(i, arrival.arrival_ns, arrival.prompt_tokens, arrival.output_limit)
            request.content, request.decoding = arrival.content, self.decoding
            try:
                engine.add(request)
            except RequestRefused:
                continue
            taken.append((request, arrival))
        return taken


@st.composite
def sequence_worlds(
    draw: st.DrawFn, policies: tuple[str, ...] = (*GANGS, "vllm-v1"), *, clusters: bool = False
) -> SequenceWorld:
    policy = draw(st.sampled_from(policies))
    base = draw(worlds(policy, clusters=clusters))
    searches = policy in GANGS and draw(st.booleans())
    decoding = Decoding(draw(st.integers(2, 4)), searches)
    knobs = {**base.knobs, "max_num_seqs": base.knobs["max_num_seqs"] + draw(st.sampled_from([1, 3, 9]))}
    if "max_num_batched_tokens" in knobs:
        knobs["max_num_batched_tokens"] = max(knobs["max_num_batched_tokens"], knobs["max_num_seqs"])
    fields = {name: getattr(base, name) for name in World.__dataclass_fields__ if name != "engines"}
    blocks = base.blocks * draw(st.sampled_from([1, 1, 2]))
    return SequenceWorld(**{**fields, "knobs": knobs, "blocks": blocks}, decoding=decoding)


class CountingSequences:
    """The plainest model of several sequences: it counts tokens, and searches as the simulator does."""

    def __init__(self) -> None:
        self.left: dict[Request, int] = {}

    def expect(self, request: Request, arrival: Arrival) -> None:
        output = min(arrival.output_tokens, request.output_limit)
        for sequence in request.group.sequences:
            self.left[sequence] = self.output_of(request, sequence, output)

    def output_of(self, request: Request, sequence: Request, output: int) -> int:
        return output

    def forget(self, request: Request) -> None:
        for sequence in request.group.sequences:
            self.left.pop(sequence, None)

    def begin(self, plan: Plan) -> None:
        """Whatever a plan says is done at once."""

    def finish(self, plan: Plan) -> list[Request]:
        decoding = [] if plan.paused else [r for r in plan.decodes.members if r in self.left]
        begun = [r for c in plan.prefills if c.completes for r in together(c.request)]
        for request in decoding + begun:
            self.left[request] -= 1
        stopped = [request for request in decoding + begun if not self.left[request]]
        for request in stopped:
            del self.left[request]
        for request in [r for r in decoding if r.decoding.beam_search and r in self.left]:
            if request.group.sequences[0] is request:
                tokens = plan.decodes.generated(request) + 1
                request.group.parents = self.parents(request, tokens)
        return stopped

    def parents(self, request: Request, tokens: int) -> list[int]:
        return chosen_parents(request.id, tokens, request.decoding.sequences)


@dataclass
class Memory(CountingSequences):
    """A model whose KV cache is real: each slot remembers which write filled it.

    Every write has a number of its own, so equal contents mean a common past. ``told`` is each sequence's
    past as it should be read back through its blocks.
    """

    block_size: int
    random: Random
    left: dict[Request, int] = field(default_factory=dict)
    slots: dict[tuple[int, int], int] = field(default_factory=dict)
    told: dict[Request, list[int]] = field(default_factory=dict)
    writes: count[int] = field(default_factory=count)

    def output_of(self, request: Request, sequence: Request, output: int) -> int:
        """Samples end when they like; beams together."""
        ragged = not request.decoding.beam_search
        return self.random.randint(1, output) if ragged and sequence is not request else output

    def parents(self, request: Request, tokens: int) -> list[int]:
        width = request.decoding.sequences
        return [self.random.randrange(width) for _ in range(width)] if self.random.random() < 0.8 else []

    def begin(self, plan: Plan) -> None:
        """Move, copy, then write every new token's KV, and read everything back."""
        for request, _ in plan.swapped_out:
            assert all(not row.blocks for row in together(request))
        for request in plan.preempted:
            self.told[request] = []
        for request, _ in plan.swapped_in:
            self._restore(request, plan)
        for _, source, target in plan.copies:
            for offset in range(self.block_size):
                self._put(target, offset, self.slots.get((source, offset)))
        for request, start, tokens, _ in plan.prefills:
            told = self.told.setdefault(request, [])
            self._find_cached(request, told, start)
            self._write(request, told, start, tokens)
        for request in () if plan.paused else list(plan.decodes.members):
            told = self.told[request]
            self._write(request, told, len(told), 1)

    def branch(self, request: Request, parents: list[int]) -> None:
        sequences = request.group.sequences
        pasts = [self.told[sequence] for sequence in sequences]
        for sequence, parent in zip(sequences, parents, strict=True):
            self.told[sequence] = list(pasts[parent])

    def _find_cached(self, request: Request, told: list[int], start: int) -> None:
        """A prompt's beginning that another request has computed is taken over as it is."""
        while len(told) < start:
            place = len(told)
            told.append(self.slots[request.blocks[place // self.block_size], place % self.block_size])

    def _write(self, request: Request, told: list[int], start: int, tokens: int) -> None:
        assert len(told) == start, "a gap in the KV"
        for place in range(start, start + tokens):
            told.append(next(self.writes))
            self._put(request.blocks[place // self.block_size], place % self.block_size, told[-1])

    def _put(self, block: int, offset: int, value: int | None) -> None:
        if value is not None:
            self.slots[block, offset] = value

    def _restore(self, request: Request, plan: Plan) -> None:
        """What the host kept, written to the new blocks before anything is copied from them."""
        sources = {target: source for _, source, target in plan.copies}
        for row in together(request):
            for place, value in enumerate(self.told.get(row, [])):
                block = row.blocks[place // self.block_size]
                self._put(sources.get(block, block), place % self.block_size, value)

    def read_back(self, sequence: Request, stored: int) -> list[int | None]:
        """What attention would see for a sequence."""
        size = self.block_size
        return [self.slots.get((sequence.blocks[i // size], i % size)) for i in range(stored)]
