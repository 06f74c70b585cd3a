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
    "burstgpt": "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Log Type\n"
    "5,,2.5,GPT-4,472,18,API log\n",
    "bailian": '{"chat_id": 0, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 9, '
    '"output_length": 4}',
    "servegen": "0,1.5,1.2,Gamma,0.69,0.96\n600,0,0,,,\n",
    "weka": '{"id": "t", "block_size": 64, "hash_id_scope": "local", "tool_tokens": 0, "system_tokens": 0, '
    '"requests": [\n{"t": 0, "type": "n", "in": 9, "out": 3, "hash_ids": []}]}',
    "llmservingsim": '{"input_toks": 10, "output_toks": 70, "arrival_time_ns": 46926808}\n',
    "splitwise-sim": "request_id,request_type,arrival_timestamp,batch_size,prompt_size,token_size\n"
    "0,2,1,1,4,3\n",
    "openai-batch": '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", '
    '"body": {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 7}}\n',
    "measured": '{"duration": 2.0, "completed": 1, "request_throughput": 0.5, "output_throughput": 1.0, '
    '"input_lens": [7], "output_lens": [2], "ttfts": [0.1], "itls": [[0.2]], "start_times": [5.0]}',
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
    ("weka-claude-code", "weka"),
    ("servegen-mm-image", "servegen"),
]
MEASURED = [
    "vllm_bench/SYNTHETIC_detailed_result_schema_v0.33.json",
    "vllm_bench/inferencex_variant_real.json",
    "sglang_bench/SYNTHETIC_output_details_schema_v0.5.23.jsonl",
    "aiperf/profile_export.from_docs.jsonl",
    "guidellm/guidellm_report_v2.json",
    "inference_perf/summary_lifecycle_metrics.json",
]
PROMPT_AND_OUTPUT = ("azure", "vidur")  # formats whose columns of lengths are read without their times
LENGTHS_OF_CLIENT = '{"0": {"input_tokens": "{7: 1.0}", "output_tokens": "{3: 1.0}"}}'


def sample(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "chunk-1-trace.csv"
    path.write_text(SAMPLES[name])
    (tmp_path / "chunk-1-dataset.json").write_text(LENGTHS_OF_CLIENT)
    return path


@pytest.mark.parametrize("name", SAMPLES)
def test_each_format_is_told_by_its_first_lines(tmp_path: Path, name: str) -> None:
    assert detect(sample(tmp_path, name)) == name


@pytest.mark.parametrize(("file", "name"), REAL)
def test_real_files_are_told(shared: Callable[..., Path], file: str, name: str) -> None:
    assert detect(shared("data", "traces", *file.split("/"))) == name


@pytest.mark.parametrize("file", MEASURED)
def test_results_of_load_tools_are_told(shared: Callable[..., Path], file: str) -> None:
    assert detect(shared("data", "formats", *file.split("/"))) == "measured"


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


@pytest.mark.parametrize("name", SAMPLES)
def test_each_format_is_read_when_it_is_told_and_when_it_is_named(tmp_path: Path, name: str) -> None:
    path = sample(tmp_path, name)
    for asked in ("auto", name):
        trace = open_trace(path, asked)
        assert trace.format == name
        assert next(trace.rows()).prompt_tokens > 0


@pytest.mark.parametrize("asked", SAMPLES)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_wrong_format_is_never_read_on(tmp_path: Path, name: str, asked: str) -> None:
    """Above all: a file in milliseconds is never taken for one in seconds."""
    path = sample(tmp_path, name)
    if asked == name or (asked == "lengths" and name in PROMPT_AND_OUTPUT):
        assert open_trace(path, asked).format == asked
        return
    with pytest.raises(TraceError) as refused:
        open_trace(path, asked)
    assert str(refused.value) == f"{path}: this looks like {name}, not {asked}; set format: {name}"


def test_the_lengths_of_a_servegen_client_are_told_from_its_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "chunk-1-dataset.json"
    path.write_text(LENGTHS_OF_CLIENT)
    with pytest.raises(
        TraceError, match="holds the lengths of a ServeGen client; give the folder of the pool"
    ):
        detect(path)


def test_a_folder_of_something_else_is_refused(shared: Callable[..., Path]) -> None:
    with pytest.raises(
        TraceError, match="is a folder; a trace is one file, or a folder of ServeGen clients"
    ):
        detect(shared("data", "traces", "lmcache-agent-taubench"))


def test_an_unknown_format_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as refused:
        open_trace(sample(tmp_path, "mooncake"), "moonckae")
    assert str(refused.value).endswith("openai-batch, measured, not 'moonckae' (did you mean mooncake?)")


def test_formats_are_listed_with_a_line_each() -> None:
    assert set(format_descriptions()) == set(SAMPLES)
    assert all(format_descriptions().values())
