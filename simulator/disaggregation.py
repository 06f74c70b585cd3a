"""Prompts computed on some replicas, answers generated on others, and the KV that travels between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import simpy

from simulator.alarm import OUTSIDE, Alarm, SimulatedClock
from simulator.engine.disaggregated import AnswerSide, PromptSide
from simulator.engine.request import Request
from simulator.engine.scheduler import Scheduler
from simulator.engine.vllm_v1 import VllmV1
from simulator.replica import Replica
from simulator.routers import LeastLoaded, Router, prompt_tokens


class Link(NamedTuple):
    """What KV travels on from a replica that computed it; one request's at a time."""

    latency_ns: int
    ns_per_token: float

    def transfer_ns(self, tokens: int) -> int:
        """How long the KV of so many tokens takes, at least 1 ns."""
        return max(1, int(self.latency_ns + self.ns_per_token * tokens))


class Split(NamedTuple):
    """A fleet in two parts: its first ``prompt_replicas`` compute prompts, all others generate answers."""

    prompt_replicas: int
    link: Link


class Answer(NamedTuple):
    """What is known of a request while its prompt is computed elsewhere under another name."""

    request: Request
    output_tokens: int


class Handover:
    """Leads every request through both sides.

    The router given shares prompts out. An answer goes to the replica with the fewest prompt tokens of
    unanswered requests, which is nearly the one with the most free KV blocks.
    """

    def __init__(
        self,
        env: SimulatedClock,
        split: Split,
        router: Router,
        on_answer: Callable[[Request, int], None],
    ) -> None:
        self.env = env
        self.fetches = 0
        self.fetched_tokens = 0
        self._split = split
        self._router = router
        self._answer_router = LeastLoaded(prompt_tokens)
        self._on_answer = on_answer
        self._replicas: Sequence[Replica] = ()
        self._prompt_sides: list[PromptSide] = []
        self._answer_sides: list[AnswerSide] = []
        self._link_free_ns = [0] * split.prompt_replicas
        self._answers: dict[Request, Answer] = {}  # prompt on its way -> what it belongs to
        self._prompts: dict[Request, tuple[Request, int, int]] = {}  # request -> its prompt, source, target

    def side(self, index: int, engine: Scheduler) -> PromptSide | AnswerSide:
        """The scheduler of a replica: half of an engine, which must be vLLM V1's."""
        assert isinstance(engine, VllmV1), "no other engine is modelled with its two halves apart"
        if index < self._split.prompt_replicas:
            self._prompt_sides.append(PromptSide(engine))
            return self._prompt_sides[-1]
        self._answer_sides.append(AnswerSide(engine, self._fetch))
        return self._answer_sides[-1]

    def open(self, replicas: Sequence[Replica]) -> None:
        """These are the replicas, in the order in which `side` was asked."""
        self._replicas = replicas
        for index in range(self._split.prompt_replicas):
            self._router.open(index)
        for index in range(self._split.prompt_replicas, len(replicas)):
            self._answer_router.open(index)

    def take(self, request: Request, output_tokens: int) -> int:
        """Let a request's prompt be computed, on the replica returned; `RequestRefused` if nobody can."""
        self._answer_sides[0].engine.refuse_hopeless(request)
        prompt = replace(request, output_limit=1)
        index = self._router.choose(prompt)
        replica = self._replicas[index]
        try:
            replica.add(prompt)
        except Exception:
            self._router.left(prompt, index)
            raise
        replica.executor.expect(prompt, 1)
        self._answers[prompt] = Answer(request, output_tokens)
        return index

    def on_complete(self, request: Request, replica: int) -> None:
        """A replica is done with a request: with its prompt, or with its answer."""
        if replica < self._split.prompt_replicas:
            self._on_prompt(request, replica)
        else:
            self._answer_router.left(request, replica)
            self._on_answer(request, replica)

    def _on_prompt(self, prompt: Request, source: int) -> None:
        self._router.left(prompt, source)
        request, output_tokens = self._answers.pop(prompt)
        request.scheduled_ns, request.first_token_ns = prompt.scheduled_ns, prompt.first_token_ns
        request.cached_tokens, request.preemptions = prompt.cached_tokens, prompt.preemptions
        request.computed_tokens, request.generated_tokens = prompt.prompt_tokens, 1
        if min(output_tokens, request.output_limit) == 1:
            self._prompt_sides[source].release(prompt)
            self._on_answer(request, source)
            return
        target = self._answer_router.choose(request)
        self._prompts[request] = prompt, source, target
        replica = self._replicas[target]
        replica.add(request)
        replica.executor.expect(request, output_tokens)
        replica.log.follow(request, self.env.now_ns)

    def _fetch(self, request: Request) -> None:
        """The other side has room: send the KV, after what is on the same link already."""
        _, source, _ = self._prompts[request]
        now = self.env.now_ns
        start = max(now, self._link_free_ns[source])
        end = start + self._split.link.transfer_ns(request.prompt_tokens)
        self._link_free_ns[source] = end
        self.fetches += 1
        self.fetched_tokens += request.prompt_tokens
        Alarm(self.env, end - now, OUTSIDE, partial(self._on_arrival, request))

    def _on_arrival(self, request: Request, _: simpy.Event) -> None:
        prompt, source, target = self._prompts.pop(request)
        self._prompt_sides[source].release(prompt)
        self._answer_sides[target - self._split.prompt_replicas].arrived(request)
        self._replicas[source].look_again()
        self._replicas[target].look_again()
