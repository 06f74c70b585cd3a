"""The official client talks to the server as to the original."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("openai", reason="the client library openai is not installed")

import openai

from tests.backend.serve.running import LONGEST, MODEL, Running, backing, running, scheduler

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "how far is the sun"}]


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "servetwin"


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5)
    assert answer.choices[0].message.content == "the sun has set and"
    assert answer.choices[0].finish_reason == "length"
    # 4 tokens of frame per message, 8 and 18 characters of text: 2 and 5 tokens
    assert answer.usage.prompt_tokens == 2 * 4 + 2 + 5
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 20)


def test_a_chat_ends_by_itself(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 12  # the hidden length that the toy engine draws


def test_a_streamed_chat_equals_a_whole_one(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=9)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_completion_tokens=9,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(c.delta.content or "" for c in choices) == whole.choices[0].message.content
    assert [c.finish_reason for c in choices if c.finish_reason] == ["length"]
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_several_answers_to_one_prompt_are_numbered_and_counted_together(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5, n=3)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert {choice.message.content for choice in whole.choices} == {"the sun has set and"}
    one = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5)
    assert whole.usage.prompt_tokens == one.usage.prompt_tokens
    assert whole.usage.completion_tokens == 15
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5, n=3, **options)
    )
    texts, endings = ["", "", ""], []
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
        endings += [choice.index] if choice.finish_reason == "length" else []
    assert texts == [choice.message.content for choice in whole.choices]
    assert sorted(endings) == [0, 1, 2]
    assert chunks[-1].usage.completion_tokens == 15


def test_a_streamed_completion(client: openai.OpenAI) -> None:
    stream = client.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=4, stream=True)
    choices = [chunk.choices[0] for chunk in stream]
    assert "".join(choice.text for choice in choices) == "the sun has set"
    assert choices[-1].finish_reason == "length"


def test_token_ids_count_exactly_and_completions_default_to_sixteen(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[7] * 33, extra_body={"ignore_eos": True})
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (33, 16)


@pytest.mark.parametrize(
    ("asked", "tokens", "reason"),
    [
        ({}, 12, "stop"),
        ({"ignore_eos": True}, 50, "length"),
        ({"min_tokens": 20}, 20, "stop"),
        ({"min_tokens": 50}, 50, "length"),
    ],
)
def test_how_long_an_answer_is(
    client: openai.OpenAI, asked: dict[str, object], tokens: int, reason: str
) -> None:
    answer = client.completions.create(model=MODEL, prompt="hi", max_tokens=50, extra_body=asked)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (tokens, reason)


def test_a_stop_text_ends_the_answer_and_frees_its_place(client: openai.OpenAI, server: Running) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt="hi",
        max_tokens=4000,
        stop=[" who can", "never"],
        extra_body={"ignore_eos": True},
    )
    assert answer.choices[0].text == "the sun has set and all"
    assert answer.choices[0].finish_reason == "stop"
    server.settle()
    assert server.service.backing.scheduler.used_blocks == 0


def test_errors_arrive_as_the_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt-4' is not served here"):
        client.completions.create(model="gpt-4", prompt="hi")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="hi", max_tokens=LONGEST)
    assert caught.value.code == "context_length_exceeded"


def test_a_full_queue_says_when_to_come_back() -> None:
    slow = backing(scheduler(seats=1), seats=1, iteration_ns=20_000_000)
    with running(slow, queue=1) as server:
        client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
        with client:
            ask = {"model": MODEL, "prompt": "hi", "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
            held = [client.completions.create(**ask, stream=True) for _ in range(2)]
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(**ask)
            assert caught.value.response.headers["retry-after"] == "1"
            for stream in held:
                stream.close()
            server.settle()
            assert (
                client.completions.create(model=MODEL, prompt="hi", max_tokens=2).usage.completion_tokens
                == 2
            )
