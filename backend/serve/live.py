"""The live backing: the same server over a real model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator, SeedSequence

from backend.clock import WallClock
from backend.executor import TorchExecutor
from backend.live import make_engine
from backend.prompts import Prompt
from backend.sampling import Sampling
from backend.serve.live_text import Bytes, FolderText
from backend.serve.seam import Backing, Emitted, Order, Text
from simulator.errors import ScenarioError
from simulator.policies import make_scheduler
from simulator.scenario import Scenario
from simulator.scenario_file import model_path

if TYPE_CHECKING:
    from backend.live import Engine
    from simulator.engine.plan import Plan
    from simulator.engine.request import Request

SEEDS = 1 << 63


class LiveExecutor:
    """Hands orders to the executor that live runs use. Requests without a seed get the next random one."""

    def __init__(self, executor: TorchExecutor, stops: frozenset[int], generator: Generator) -> None:
        self._executor = executor
        self._stops = stops
        self._generator = generator

    def expect(self, request: Request, order: Order) -> None:
        """Pass on what was asked: the token ids, how to sample, what ends the answer."""
        assert order.prompt.token_ids is not None, "a live model needs to know its prompt"
        stops = frozenset(order.stop_token_ids) | (frozenset() if order.ignore_eos else self._stops)
        temperature, top_p, top_k, seed = order.sampling
        if seed is None:
            seed = int(self._generator.integers(SEEDS))
        self._executor.admit(
            request,
            Prompt(
                order.prompt.token_ids,
                Sampling(temperature, top_k, top_p, seed),
                stops,
                least_tokens=order.min_tokens,
            ),
        )

    def forget(self, request: Request) -> None:
        """Drop a request that was cancelled."""
        self._executor.forget(request)

    def begin(self, plan: Plan) -> None:
        """Start the forward pass."""
        self._executor.begin(plan)

    def finish(self, plan: Plan) -> Sequence[Emitted]:
        """Wait for its tokens."""
        return [Emitted(*token) for token in self._executor.collect(plan)]

    def rest(self) -> None:
        """The device may idle."""


def live_backing(scenario: Scenario, folder: Path, device: str) -> Backing:
    """The backing of a scenario's model in this machine's memory; only its engine settings matter."""
    if not scenario.is_one_engine or scenario.parallel.tensor != 1:
        raise ScenarioError("replicas and parallel.tensor must be 1 to serve live: a server is one device")
    engine = make_engine(scenario, folder=folder, device=device)
    settings, model = scenario.engine, engine.model
    block_bytes = model.kv_shape.block_bytes(settings.block_size, model.dtype)
    longest = engine.max_model_len
    text, notes = _text(scenario, folder, engine)
    return Backing(
        kind=f"live on {model.device}, {model.path} path, attention {engine.kernels.name}",
        clock=WallClock(),
        model_name=model.name,
        scheduler=make_scheduler(settings, engine.kv.blocks, longest, lambda: longest, block_bytes),
        executor=LiveExecutor(
            TorchExecutor(model, engine.kv, engine.kernels), model.stops, _generator(scenario)
        ),
        text=text,
        kv_blocks=engine.kv.blocks,
        block_size=settings.block_size,
        max_model_len=longest,
        seats=settings.max_num_seqs,
        notes=(*engine.notes, *notes),
    )


def _generator(scenario: Scenario) -> Generator:
    """Seeds for requests without one: the fourth stream of the scenario's seed."""
    return np.random.default_rng(SeedSequence(scenario.seed, spawn_key=(3,)))


def _text(scenario: Scenario, folder: Path, engine: Engine) -> tuple[Text, tuple[str, ...]]:
    """The tokenizer of the model's folder, or a stand-in where there is none."""
    place = Path(model_path(scenario.model, folder))
    block_size, vocabulary = scenario.engine.block_size, engine.model.vocabulary
    if (place / "tokenizer.json").exists():
        return FolderText(place, vocabulary, block_size), ()
    note = "no tokenizer.json beside the model: a token for each byte of a prompt, answers in numbers"
    return Bytes(vocabulary, block_size), (note,)
