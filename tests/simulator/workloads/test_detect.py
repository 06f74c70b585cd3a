"""Formats are told from a file's first lines, and a format wrongly given is never read on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.errors import TraceError
from simulator.workloads.traces.detect import detect
from simulator.workloads.traces.trace import format_descriptions, open_trace

SAMPLES = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
    "lengths": "TIMESTAMP,ContextTokens,GeneratedTokens\nXXX,42,285\n",
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n",
    "mooncake": '{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [0]}\n',
    "burstgpt": "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Log Type\n",
    "bailian": '{"chat_id": 0, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 9}',
    "servegen": "0,1.5,1.2,Gamma,0.69,0.96\n600,0,0,,,\n",
    "weka": '{"id": "t", "block_size": 64, "hash_id_scope": "local", "requests": [\n',
    "llmservingsim": '{"input_toks": 10, "output_toks": 70, "arrival_time_ns": 46926808}\n',
    "splitwise-sim": "request_id,request_type,arrival_timestamp,batch_size,prompt_size,token_size\n",
    "openai-batch": '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n',
}
REAL = [
    ("azure-llm-2023/AzureLLMInferenceTrace_conv.csv", "azure"),
    ("azure-llm-2024-excerpt/AzureLLMInferenceTrace_code_1week.excerpt.csv", "azure"),
    ("burstgpt-excerpt/BurstGPT_1.first3rows.csv", "burstgpt"),
    ("llmservingsim/example_trace.jsonl", "llmservingsim"),
    ("mooncake-fast25/conversation_trace.jsonl", "mooncake"),
    ("nanoflow-lengths/sharegpt.csv", "lengths"),
    ("qwen-bailian-excerpt/qwen_blksz_16.documented_records.jsonl", "bailian"),
    ("servegen-m-small/chunk-12-trace.csv", "servegen"),
    ("splitwise-sim/test_trace.csv", "splitwise-sim"),
    ("vidur-processed/splitwise_conv.csv", "vidur"),
    ("weka-claude-code/trace_0006.json", "weka"),
]
READABLE = ("azure", "mooncake", "vidur", "lengths")


def sample(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(SAMPLES[name])
    return path


@pytest.mark.parametrize("name", SAMPLES)
def test_each_format_is_told_by_its_first_lines(tmp_path: Path, name: str) -> None:
    assert detect(sample(tmp_path, name)) == name


@pytest.mark.parametrize(("file", "name"), REAL)
def test_real_files_are_told(shared: Callable[..., Path], file: str, name: str) -> None:
    assert detect(shared("data", "traces", *file.split("/"))) == name


def test_what_fits_nothing_is_refused_with_examples(shared: Callable[..., Path]) -> None:
    with pytest.raises(
        TraceError, match=r"sonnet\.txt: fits no trace format known here; CSV needs a header"
    ):
        detect(shared("data", "traces", "sonnet", "sonnet.txt"))


def test_json_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"prompt": "hello"}\n')
    with pytest.raises(TraceError, match="fits no trace format known here"):
        detect(path)


def test_a_first_line_beyond_any_header_is_still_told(tmp_path: Path) -> None:
    record = {
        "timestamp": 0,
        "input_length": 512 * 30_000,
        "output_length": 5,
        "hash_ids": list(range(30_000)),
    }
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(record))
    assert path.stat().st_size > 1 << 16
    assert detect(path) == "mooncake"


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - set(READABLE)))
def test_formats_not_readable_yet_are_refused_by_name(tmp_path: Path, name: str) -> None:
    path = sample(tmp_path, name)
    with pytest.raises(TraceError) as seen:
        open_trace(path)
    assert str(seen.value) == (
        f"{path}: this looks like {name}, which cannot be read yet; "
        "readable are azure, mooncake, vidur, lengths"
    )
    with pytest.raises(TraceError, match=f"format {name} cannot be read yet"):
        open_trace(path, name)


@pytest.mark.parametrize("asked", READABLE)
@pytest.mark.parametrize("name", READABLE)
def test_a_wrong_format_is_never_read_on(tmp_path: Path, name: str, asked: str) -> None:
    """Above all: a file in milliseconds is never taken for one in seconds."""
    path = sample(tmp_path, name)
    if asked == name or (asked == "lengths" and name != "mooncake"):
        assert open_trace(path, asked).format == asked
        return
    with pytest.raises(TraceError) as refused:
        open_trace(path, asked)
    assert str(refused.value) == f"{path}: this looks like {name}, not {asked}; set format: {name}"


def test_an_unknown_format_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as refused:
        open_trace(sample(tmp_path, "mooncake"), "moonckae")
    assert str(refused.value).endswith(
        "format must be one of auto, azure, mooncake, vidur, lengths, not 'moonckae' "
        "(did you mean mooncake?)"
    )


def test_formats_are_listed_with_a_line_each() -> None:
    assert tuple(format_descriptions()) == READABLE
    assert all(format_descriptions().values())
