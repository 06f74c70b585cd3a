"""The requests that decode together, kept so that an iteration costs O(changes), not O(rows)."""

from __future__ import annotations

from simulator.engine.request import Request


class DecodeGroup:
    """Rows that each add one token per iteration, described by offsets from one shared clock.

    ``steps`` counts the decode iterations so far. A member's ``origin`` is fixed when it joins, so that
    ``generated = steps - origin``; its stored tokens are ``width - 1 + generated``, where ``width`` is
    its prompt (or the padded prompt of a static batch). Hence one iteration is ``steps += 1``, sums over
    rows are ``n * steps + constant``, and the rows that need a new KV block at clock ``s`` are exactly
    the bucket ``s % block_size`` of a wheel.

    ``finished`` counts padded rows that have stopped but keep their seat (static batching).
    """

    __slots__ = ("_offsets", "block_size", "finished", "members", "steps", "wheel")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.steps = 0
        self.members: dict[Request, int] = {}  # the offset: stored tokens minus steps
        self.wheel: list[dict[Request, None]] = [{} for _ in range(block_size)]
        self.finished = 0
        self._offsets = 0

    def __len__(self) -> int:
        return len(self.members)

    @property
    def context_tokens(self) -> int:
        """Keys read by the next iteration, each row's own new token included."""
        return len(self.members) * (self.steps + 1) + self._offsets

    def due(self) -> dict[Request, None]:
        """The members whose next token starts a new KV block."""
        return self.wheel[self.steps % self.block_size]

    def advance(self, steps: int) -> list[Request]:
        """Move the clock; the members that start a new KV block on the way, once for each block."""
        size, wheel, start = self.block_size, self.wheel, self.steps
        self.steps = end = start + steps
        return [request for step in range(start + 1, end + 1) for request in wheel[step % size]]

    def steps_within(self, blocks: int) -> int:
        """How many steps the members' growth fits into this many blocks, or a lower bound when it is far.

        Whole laps of the wheel first, then bucket by bucket.
        """
        rows, size = len(self.members), self.block_size
        laps = blocks // rows if blocks > 0 else 0
        steps, left = laps * size, blocks - laps * rows
        if laps > 3:
            return steps
        for step in range(self.steps + 1, self.steps + size + 1):
            left -= len(self.wheel[step % size])
            if left < 0:
                break
            steps += 1
        return steps

    def join(self, request: Request, width: int | None = None) -> None:
        """Take in a request that has generated at least one token. ``width``: its padded prompt."""
        request.origin = origin = self.steps - request.generated_tokens
        offset = (request.prompt_tokens if width is None else width) - 1 - origin
        self.members[request] = offset
        self._offsets += offset
        self.wheel[-offset % self.block_size][request] = None

    def leave(self, request: Request) -> None:
        """Let a member go and settle its counters."""
        offset = self.members.pop(request)
        self._offsets -= offset
        del self.wheel[-offset % self.block_size][request]
        request.generated_tokens = self.steps - request.origin
        request.computed_tokens = self.steps + offset

    def generated(self, request: Request) -> int:
        """Tokens a member has generated so far."""
        return self.steps - request.origin
