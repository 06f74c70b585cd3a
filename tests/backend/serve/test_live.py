"""The same server over a real model: a tiny one with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="live execution needs torch: pip install 'servetwin[live]'")
pytest.importorskip("transformers", reason="live runs need transformers: pip install 'servetwin[live]'")

from backend.serve.live import live_backing
from backend.serve.live_text import Bytes, FolderText, PieceDecoder
from backend.serve.seam import Backing, ChatMessage
from simulator.errors import UserError
from simulator.scenario_file import load_scenario
from tests.backend.live.tiny import Oracle, save_model
from tests.backend.serve.running import Running, running

SCENARIO = """\
name: live
model: model
hardware: cpu
dtype: float32
engine: {{policy: {policy}, max_num_seqs: 8, kv_blocks: 64}}
workload:
  arrivals: {{process: poisson, rate_per_s: 8}}
  lengths: {{fixed: {{prompt: 100, output: 10}}}}
  requests: 20
"""
PROMPT = [5, 17, 200, 3, 42, 42, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario and, in ``model``, a tiny Llama."""
    found = tmp_path_factory.mktemp("live")
    save_model("llama", found / "model")
    return found


def backing_of(folder: Path, policy: str = "vllm-v1") -> Backing:
    path = folder / f"{policy}.yaml"
    path.write_text(SCENARIO.format(policy=policy), encoding="utf-8")
    return live_backing(load_scenario(path), folder, "cpu")


@pytest.fixture(scope="module")
def live(folder: Path) -> Any:
    with running(backing_of(folder)) as found:
        yield found


def ids(answer: Any) -> list[int]:
    return [int(word) for word in answer["choices"][0]["text"].split()]


def greedy(folder: Path, tokens: int) -> list[int]:
    return list(Oracle(folder / "model").answer(PROMPT, tokens))


def test_greedy_answers_are_those_of_generate(live: Running, folder: Path) -> None:
    answer = live.complete(prompt=PROMPT, max_tokens=20, temperature=0, ignore_eos=True)
    assert ids(answer) == greedy(folder, 20)
    assert answer["usage"]["completion_tokens"] == 20


def test_a_stop_id_ends_the_answer(live: Running, folder: Path) -> None:
    expected = greedy(folder, 20)
    stop = next(token for i, token in enumerate(expected) if i and token not in expected[:i])
    answer = live.complete(prompt=PROMPT, max_tokens=20, temperature=0, stop_token_ids=[stop])
    assert ids(answer) == expected[: expected.index(stop) + 1]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_seed_repeats_and_none_does_not(live: Running) -> None:
    ask = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "temperature": 1.5}
    one, two = (ids(live.complete(**ask, seed=7)) for _ in range(2))
    assert one == two
    assert len({tuple(ids(live.complete(**ask))) for _ in range(3)}) == 3


@pytest.mark.parametrize("policy", ["static", "orca"])
def test_other_policies_serve_the_same_tokens(folder: Path, policy: str) -> None:
    with running(backing_of(folder, policy)) as server:
        answer = server.complete(prompt=PROMPT, max_tokens=12, temperature=0, ignore_eos=True)
        assert ids(answer) == greedy(folder, 12)
        server.settle()
        assert server.service.backing.scheduler.used_blocks == 0


def test_without_a_tokenizer_text_is_bytes(live: Running) -> None:
    assert live.complete(prompt="häuser", max_tokens=1)["usage"]["prompt_tokens"] == 7
    assert Bytes(256, 16).chat([ChatMessage("user", "hi")]).tokens == len("user: hi\nassistant:")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small byte-level tokenizer."""
    from tools.make_tokenizer import main

    found = tmp_path_factory.mktemp("tokenizer")
    main(found)
    return found


def test_a_folders_tokenizer_is_used(tokenizer: Path) -> None:
    text = FolderText(tokenizer, 1000, 16)
    prompt = text.prompt("The scheduler gives")
    assert prompt.token_ids is not None
    assert text.decoder().add(prompt.token_ids, last=True) == "The scheduler gives"
    chat = text.chat([ChatMessage("user", "hi")])
    assert text.decoder().add(chat.token_ids or (), last=True) == "user: hi\nassistant:"
    with pytest.raises(UserError, match="not in the vocabulary of 10"):
        FolderText(tokenizer, 10, 16).prompt("The scheduler gives")


def test_pieces_join_to_the_text_whatever_is_cut(tokenizer: Path) -> None:
    """Every byte of a character may be a token of its own: no half of one is ever sent."""
    text = "Grüße, 日本語 and 🙂 in a line"
    found = FolderText(tokenizer, 1000, 16)
    tokens = found.prompt(text).token_ids or ()
    assert len(tokens) > len(text)
    for width in (1, 2, 3, 5):
        decoder: PieceDecoder = found.decoder()
        cuts = range(0, len(tokens), width)
        pieces = [decoder.add(tokens[i : i + width], last=i + width >= len(tokens)) for i in cuts]
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)
