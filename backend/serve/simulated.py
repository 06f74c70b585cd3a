"""The simulated backing: a scheduler under a wall clock, placeholder tokens at the pace of a cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from backend.clock import WallClock
from backend.driver import Clock
from backend.serve.seam import Backing, ChatMessage, Emitted, Order, Prompt, content_of_ids, named_content
from simulator.cost_model import CostModel
from simulator.engine.plan import Plan
from simulator.engine.request import Request
from simulator.errors import ScenarioError, UserError
from simulator.executor import SimulatedExecutor
from simulator.models import load_model
from simulator.policies import make_scheduler
from simulator.pricing import clock_of
from simulator.scenario import Scenario
from simulator.scenario_file import model_path
from simulator.sizing import kv_size, longest_sequence
from simulator.workloads.arrival import Arrival
from simulator.workloads.workload import build_workload

MOST_LAG_NS = 250_000_000  # how far the pace may fall behind before what was lost is not caught up
CHARACTERS_PER_TOKEN = 4  # English text under today's vocabularies, roughly
MESSAGE_TOKENS = 4  # role and separators of one chat message, roughly, as chat templates write them
WORDS = (
    "the", "sun", "has", "set", "and", "all", "who", "can", "see", "how", "far", "our",
    "own", "sky", "may", "run", "out", "now", "for", "one", "day", "you", "and", "him",
    "her", "are", "not", "yet", "too", "old", "but", "new",
)  # fmt: skip


class PacedExecutor:
    """Plays the model on the wall clock: an iteration ends when the cost model says it would.

    While there is work, iterations follow each other without a gap on this clock, however late a sleep
    woke up, so that the pace holds on average. ``answer_tokens`` gives the hidden length of each answer.
    """

    def __init__(
        self, cost: CostModel, answer_tokens: Iterator[int], clock: Clock, block_copy_ns: float = 0.0
    ) -> None:
        self._model = SimulatedExecutor(cost, block_copy_ns)
        self._clock = clock
        self._answer_tokens = answer_tokens
        self._lengths: dict[Request, int] = {}  # requests under way -> tokens of their answers
        self._ends_ns: int | None = None  # of the latest iteration; None after a rest

    def expect(self, request: Request, order: Order) -> None:
        """Draw how long the answer will be, within what was asked."""
        drawn = order.output_limit if order.ignore_eos else next(self._answer_tokens)
        self._lengths[request] = tokens = min(max(drawn, order.min_tokens), order.output_limit)
        self._model.expect(request, tokens)

    def forget(self, request: Request) -> None:
        """Drop a request that was cancelled."""
        self._lengths.pop(request, None)
        self._model.forget(request)

    def rest(self) -> None:
        """The next iteration begins when it begins."""
        self._ends_ns = None

    def begin(self, plan: Plan) -> None:
        """Work out when this iteration ends."""
        now_ns, model = self._clock.now_ns(), self._model
        start_ns = now_ns if self._ends_ns is None else max(self._ends_ns, now_ns - MOST_LAG_NS)
        self._ends_ns = model.ends_ns(plan.shape(), 0, start_ns + model.copy_ns(plan), 1)[0]

    def finish(self, plan: Plan) -> Sequence[Emitted]:
        """Sleep until the iteration ends."""
        assert self._ends_ns is not None
        self._clock.sleep_until(self._ends_ns)
        self._model.finish(plan)
        return [self._emit(request, index) for request, index in self._due(plan)]

    def _due(self, plan: Plan) -> Iterator[tuple[Request, int]]:
        """Who gets a token, and which of its answer; seen before the plan's commit."""
        for request, _, _, completes in plan.prefills:
            if completes and request in self._lengths:
                yield request, request.generated_tokens
        if not plan.paused:
            group = plan.decodes
            for request in group.members:
                if request in self._lengths:
                    yield request, group.steps - request.origin

    def _emit(self, request: Request, index: int) -> Emitted:
        if index + 1 < self._lengths[request]:
            return Emitted(request, index)
        del self._lengths[request]
        return Emitted(request, index, "length" if index + 1 == request.output_limit else "stop")


class Placeholders:
    """Text of which only the amount matters.

    A prompt counts a token for every four characters, rounded up; a list of token ids counts exactly. An
    answer's tokens are words of four characters with their space, so one sent back counts the same again.
    """

    def __init__(self, vocabulary: int, block_size: int) -> None:
        self.vocabulary = vocabulary
        self.block_size = block_size

    def prompt(self, text: str) -> Prompt:
        """A prompt by its length in characters."""
        return self._counted(text)

    def chat(self, messages: Sequence[ChatMessage]) -> Prompt:
        """A conversation by its length, with a few tokens for each message's frame."""
        width = CHARACTERS_PER_TOKEN
        parts = (f"{m.role:{MESSAGE_TOKENS * width}.{MESSAGE_TOKENS * width}}{m.text}" for m in messages)
        return self._counted("".join(part + " " * (-len(part) % width) for part in parts))

    def token_ids(self, ids: Sequence[int]) -> Prompt:
        """A prompt given exactly."""
        wrong = next((i for i in ids if not 0 <= i < self.vocabulary), None)
        if wrong is not None:
            raise UserError(f"token id {wrong} is not in the vocabulary of {self.vocabulary:,}")
        return Prompt(len(ids), tuple(ids), content_of_ids(ids, self.block_size))

    def decoder(self) -> PlaceholderDecoder:
        """A decoder for one answer."""
        return PlaceholderDecoder()

    def _counted(self, text: str) -> Prompt:
        span = self.block_size * CHARACTERS_PER_TOKEN
        data = [text[i : i + span].encode("utf-8", "surrogatepass") for i in range(0, len(text), span)]
        tokens = -(-len(text) // CHARACTERS_PER_TOKEN)
        return Prompt(tokens, None, named_content(data, self.block_size))


class PlaceholderDecoder:
    """A word per token."""

    def add(self, tokens: Sequence[int], *, last: bool) -> str:  # noqa: ARG002 nothing is ever held back
        """The words of these tokens, which are their places in the answer."""
        return "".join(f" {WORDS[i % len(WORDS)]}" if i else WORDS[0] for i in tokens)


def answer_lengths(arrivals: Callable[[], Iterator[Arrival]]) -> Iterator[int]:
    """Output lengths of a workload's requests in order, over and over."""
    while True:
        stream = arrivals()
        first = next(stream, None)
        if first is None:
            raise ScenarioError("workload: has no request whose length an answer could take")
        yield first.output_tokens
        for arrival in stream:
            yield arrival.output_tokens


def simulated_backing(scenario: Scenario, folder: Path) -> Backing:
    """The backing that a scenario describes; its arrivals are left out, real clients take their place."""
    if scenario.replicas != 1:
        raise ScenarioError(f"replicas must be 1 to serve, not {scenario.replicas}: a server is one engine")
    if not scenario.is_one_engine:
        raise ScenarioError(
            "a server is one engine: no fleet, disaggregation, pipeline, failures or autoscaling"
        )
    model = load_model(model_path(scenario.model, folder))
    cost, profile = clock_of(scenario, model, folder)
    workload = build_workload(scenario.workload, scenario.seed, folder)
    engine, clock = scenario.engine, WallClock()
    longest, size = longest_sequence(scenario, model), kv_size(scenario, model)
    return Backing(
        kind=f"simulated {scenario.hardware}, profile {profile.name}",
        clock=clock,
        model_name=model.name,
        scheduler=make_scheduler(engine, size.blocks, longest, lambda: longest, size.block_bytes),
        executor=PacedExecutor(cost, answer_lengths(workload.arrivals), clock, size.block_copy_ns),
        text=Placeholders(model.vocabulary, engine.block_size),
        kv_blocks=size.blocks,
        block_size=engine.block_size,
        max_model_len=longest,
        seats=engine.max_num_seqs,
        notes=(*workload.notes, *profile.notes),
    )
