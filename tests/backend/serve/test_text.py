"""Placeholder text counts the same in both directions; stop texts cut wherever the pieces fall."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.serve.answers import Head, StopTexts
from backend.serve.seam import ChatMessage, content_of_ids
from backend.serve.simulated import WORDS, Placeholders
from simulator.engine.kv_cache import KVCache
from simulator.engine.request import Request
from simulator.errors import UserError
from tests.backend.serve.running import VOCABULARY

TEXT = Placeholders(VOCABULARY, 16)


@given(st.integers(1, 300))
def test_an_answer_sent_back_counts_the_same(tokens: int) -> None:
    answer = TEXT.decoder().add(range(tokens), last=True)
    assert len(answer.split()) == tokens
    assert TEXT.prompt(answer).tokens == tokens


def test_words_are_distinct_and_of_three_letters() -> None:
    assert {len(word) for word in WORDS} == {3}


def shared_tokens(first: Any, second: Any) -> int:
    """Prompt tokens that the second request finds in a cache that has computed the first."""
    kv = KVCache(1000, 16, prefix_caching=True)
    a, b = (Request(i, 0, p.tokens, 1, p.content) for i, p in enumerate((first, second)))
    a.blocks = kv.take(kv.blocks_for(a.prompt_tokens))
    kv.publish(a, a.prompt_tokens)
    return len(kv.lookup(b)) * 16


def test_a_growing_chat_finds_its_beginning_cached() -> None:
    turns = [ChatMessage("user", "x" * 399), ChatMessage("assistant", "y" * 401), ChatMessage("user", "z")]
    first, second = TEXT.chat(turns[:1]), TEXT.chat(turns)
    assert (first.tokens, second.tokens) == (4 + 100, 4 + 100 + 4 + 101 + 4 + 1)
    assert shared_tokens(first, second) == 96  # the whole blocks of the first 104 tokens
    other = TEXT.chat([ChatMessage("user", "X" + "x" * 398), *turns[1:]])
    assert shared_tokens(first, other) == 0


@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=80), st.integers(0, 79))
def test_ids_share_exactly_the_blocks_before_their_first_difference(ids: list[int], at: int) -> None:
    at %= len(ids)
    changed = [*ids[:at], (ids[at] + 1) % VOCABULARY, *ids[at + 1 :]]
    mine, other = content_of_ids(ids, 16).ids, content_of_ids(changed, 16).ids
    assert [a == b for a, b in zip(mine, other, strict=True)] == [
        (block + 1) * 16 <= at for block in range(len(mine))
    ]


@pytest.mark.parametrize("text", ["\ud800", "naïf", "日本語"])
def test_any_text_is_counted(text: str) -> None:
    assert TEXT.prompt(text).tokens == 1


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    with pytest.raises(UserError, match="token id 1000"):
        TEXT.token_ids([VOCABULARY])


@given(
    st.text("ab ", max_size=40),
    st.lists(st.text("ab ", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_a_stop_text_cuts_wherever_the_pieces_fall(text: str, stops: list[str], cuts: list[int]) -> None:
    at = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(at)] or [""]
    filtering, said = StopTexts(stops), ""
    for i, piece in enumerate(pieces):
        said += filtering.add(piece, last=i == len(pieces) - 1)
        if filtering.found:
            break
    places = [text.find(stop) for stop in stops if stop in text]
    assert filtering.found == bool(places)
    if not places:
        assert said == text
    else:
        assert any(text.startswith(said) and text.startswith(stop, len(said)) for stop in stops)


def test_a_frame_is_one_line_of_json() -> None:
    frame = Head("chat", "id", 5, "m").piece('a\n"b"\u2028', None, 0)
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 2
    assert json.loads(frame[6:])["choices"][0]["delta"]["content"] == 'a\n"b"\u2028'
