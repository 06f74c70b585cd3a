"""Reading scenario files: what is accepted, what is refused, and the exact words."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from simulator.errors import ScenarioError
from simulator.scenario import Scenario
from simulator.scenario_file import load_scenario, to_yaml
from simulator.scenario_messages import complaints

COMPLETE = """\
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
engine:
  policy: vllm-v1
  max_num_seqs: 64
workload:
  arrivals: {process: poisson, rate_per_s: 8}
  lengths: {preset: sharegpt}
  requests: 1000
"""
SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, so that messages name files as a person would."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "x.yaml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def problems(text: str, *overrides: str, seed: int | None = None) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(write(text), overrides, seed)
    return str(caught.value).splitlines()


POLICY_NAMES = (
    "single, static, faster-transformer, bucketed, dynamic, orca, vllm-v1, tensorrt-llm, sglang, vllm-0.1, "
    "vllm-v0, sarathi or tgi"
)
WRONG_VALUES = [
    # key=value laid over a complete scenario; what is said about it
    ("engine.max_num_seqs=0", "engine.max_num_seqs must be >= 1, not 0"),
    (
        "engine.max_num_seqs=true",
        "engine.max_num_seqs must be a whole number (most requests running at once), not true",
    ),
    (
        "engine.max_num_seqs='64'",
        "engine.max_num_seqs must be a whole number (most requests running at once), not '64'; "
        "leave out the quotes",
    ),
    (
        "engine.max_num_seqs=6.5",
        "engine.max_num_seqs must be a whole number (most requests running at once), not 6.5",
    ),
    (
        "engine.max_num_seqs=",
        "engine.max_num_seqs must be a whole number (most requests running at once), not empty",
    ),
    ("engine.max_num_seq=64", "engine.max_num_seq is not a known key (did you mean max_num_seqs?)"),
    (
        "engine.policy=vllm",
        f"engine.policy must be {POLICY_NAMES}, not 'vllm' (did you mean vllm-v1?)",
    ),
    ("engine.policy=", f"engine.policy must be {POLICY_NAMES}, not empty"),
    (
        "engine.reservation=max",
        "engine.reservation is not a key of vllm-v1; it knows policy, block_size, gpu_memory_utilization, "
        "kv_blocks, max_model_len, max_num_seqs, max_num_batched_tokens, chunked_prefill, "
        "long_prefill_token_threshold, scheduling, prefix_caching, full_isl_gate and watermark",
    ),
    (
        "engine.max_num_batched_tokens=63",
        "engine.max_num_batched_tokens must be >= max_num_seqs (64), a token for each, not 63",
    ),
    (
        "engine={max_num_seqs: 4, max_num_batched_tokens: 15}",
        "engine.max_num_batched_tokens must be >= block_size (16), not 15",
    ),
    (
        "engine={chunked_prefill: false, max_model_len: 8192}",
        "engine.max_num_batched_tokens must be >= max_model_len (8192) while chunked_prefill is false, "
        "or a long prompt could never be scheduled, not 2048",
    ),
    (
        "engine={policy: tensorrt-llm, max_num_batched_tokens: 255}",
        "engine.max_num_batched_tokens must be >= max_num_seqs (256), a token for each, not 255",
    ),
    (
        "engine={policy: tensorrt-llm, context_chunking: fcfs, block_size: 64, max_num_seqs: 8, "
        "max_num_batched_tokens: 63}",
        "engine.max_num_batched_tokens must be >= block_size (64), not 63",
    ),
    (
        "engine={policy: tensorrt-llm, capacity_policy: evict}",
        "engine.capacity_policy must be guaranteed-no-evict, max-utilization or static-batch, not 'evict'",
    ),
    (
        "engine={policy: sglang, block_size: 16, chunked_prefill_size: 100}",
        "engine.chunked_prefill_size must be a multiple of block_size (16), not 100",
    ),
    (
        "engine={policy: sglang, enable_mixed_chunk: true, chunked_prefill_size: 99, max_num_seqs: 99}",
        "engine.chunked_prefill_size must be > max_num_seqs (99) while enable_mixed_chunk is true, not 99",
    ),
    ("engine.block_size=0", "engine.block_size must be >= 1, not 0"),
    ("engine.block_size=016", "engine.block_size must not start with 0: write 16, or '016' for text"),
    ("engine.kv_blocks=0", "engine.kv_blocks must be auto or a whole number from 1 to 100000000, not 0"),
    (
        "engine.kv_blocks=many",
        "engine.kv_blocks must be auto or a whole number from 1 to 100000000, not 'many'",
    ),
    (
        "engine.kv_blocks=true",
        "engine.kv_blocks must be auto or a whole number from 1 to 100000000, not true",
    ),
    ("engine.gpu_memory_utilization=90", "engine.gpu_memory_utilization must be <= 1, not 90"),
    ("engine.gpu_memory_utilization=0", "engine.gpu_memory_utilization must be > 0, not 0"),
    ("engine.watermark=1", "engine.watermark must be < 1, not 1"),
    ("engine.watermark=-0.1", "engine.watermark must be >= 0, not -0.1"),
    ("engine.prefix_caching=no", "engine.prefix_caching must be true or false, not 'no'"),
    ("engine.prefix_caching=1", "engine.prefix_caching must be true or false, not 1"),
    ("engine.scheduling=fifo", "engine.scheduling must be fcfs or priority, not 'fifo'"),
    (
        "engine={policy: static, stop_rule: batch_max}",
        "engine.stop_rule must be batch-max or global-max, not 'batch_max' (did you mean batch-max?)",
    ),
    ("engine={policy: orca, reservation: 2}", "engine.reservation must be max, pow2 or oracle, not 2"),
    (
        "engine={policy: bucketed, bucket_edges: 64}",
        "engine.bucket_edges must be a list of numbers, not 64",
    ),
    (
        "engine={policy: bucketed, bucket_edges: [64, 32]}",
        "engine.bucket_edges must be ascending, not [64, 32]",
    ),
    ("engine={policy: bucketed, timeout_ms: -1}", "engine.timeout_ms must be >= 0, not -1"),
    (
        "engine={policy: dynamic, preferred_batch_sizes: [4, 9]}",
        "engine.preferred_batch_sizes must be <= max_num_seqs (8), not 9",
    ),
    (
        "engine={policy: dynamic, priority_levels: 2}",
        "engine.default_priority_level must be 1 to priority_levels (2), not 0",
    ),
    (
        "engine={policy: dynamic, priority_queue_policy: {1: {max_queue_size: 9}}}",
        "engine.priority_queue_policy.1 must be a level from 1 to priority_levels (0)",
    ),
    (
        "engine={policy: dynamic, priority_queue_policy: 9}",
        "engine.priority_queue_policy must be a mapping of keys, not 9",
    ),
    ("engine=vllm-v1", "engine must be a mapping of keys, not 'vllm-v1'"),
    ("engine=[]", "engine must be a mapping of keys, not []"),
    (
        "dtype=bf16",
        "dtype must be bfloat16, float16, float32 or float8, not 'bf16' (did you mean bfloat16?)",
    ),
    ("parallel.pipeline=0", "parallel.pipeline must be >= 1, not 0"),
    ("parallel.tensor=0", "parallel.tensor must be >= 1, not 0"),
    ("parallel=2", "parallel must be a mapping of keys, not 2"),
    ("replicas=0", "replicas must be >= 1, not 0"),
    ("replicas=2x", "replicas must be a whole number (copies of the model behind the router), not '2x'"),
    (
        "router=round_robin",
        "router must be round-robin, least-outstanding, power-of-two, join-shortest-queue or "
        "prefix-affinity, not 'round_robin' (did you mean round-robin?)",
    ),
    ("seed=-1", "seed must be >= 0, not -1"),
    ("name=7", "name must be text, not 7; put it in quotes"),
    ("name=''", "name must be some text, not ''"),
    ("model=", "model must be text, not empty"),
    ("hardware=h100", "hardware: 'h100' is not known; did you mean 'h100-sxm'?"),
    ("rate_per_s=4", "rate_per_s is not a known key (did you mean workload.arrivals.rate_per_s?)"),
    ("slo={}", "slo must give at least one of ttft_ms, tpot_ms, e2e_ms, itl_ms, queue_ms"),
    ("slo.ttft_ms=0", "slo.ttft_ms must be > 0, not 0"),
    ("slo.ttft=200", "slo.ttft is not a known key (did you mean ttft_ms?)"),
    (
        "slo.ttft_ms=200ms",
        "slo.ttft_ms must be a number (longest time to the first token, ms), not '200ms'",
    ),
    (
        "slo.e2e_ms=.nan",
        "slo.e2e_ms must be a finite number (longest time from arrival to the last token, ms), not nan",
    ),
    ("workload.requests=0", "workload.requests must be >= 1, not 0"),
    (
        "workload.requests=",
        "workload.requests is required (or duration_s): without either the run would never end",
    ),
    (
        "workload.duration_s=.inf",
        "workload.duration_s must be a finite number (no request arrives later than this, seconds), "
        "not inf",
    ),
    ("workload.duration_s=0", "workload.duration_s must be > 0, not 0"),
    ("workload.duration_s=1e12", "workload.duration_s must be <= 1e+09, not 1000000000000.0"),
    ("workload.arrivals.rate_per_s=-3", "workload.arrivals.rate_per_s must be > 0, not -3"),
    ("workload.arrivals.rate_per_s=1e-12", "workload.arrivals.rate_per_s must be >= 1e-09, not 1e-12"),
    (
        "workload.arrivals.rate_per_s=8/s",
        "workload.arrivals.rate_per_s must be a number (mean arrival rate, requests per second), not '8/s'",
    ),
    (
        "workload.arrivals.rate_per_s=12:30",
        "workload.arrivals.rate_per_s must be a number (mean arrival rate, requests per second), "
        "not '12:30'",
    ),
    (
        "workload.arrivals.process=poison",
        "workload.arrivals.process must be poisson, gamma, constant, burst, closed, clients or trace, "
        "not 'poison' (did you mean poisson?)",
    ),
    ("workload.arrivals={rate_per_s: 8}", "workload.arrivals.process is required"),
    ("workload.arrivals=poisson", "workload.arrivals must be a mapping of keys, not 'poisson'"),
    ("workload.arrivals.process=gamma", "workload.arrivals.cv is required"),
    ("workload.arrivals={process: gamma, rate_per_s: 8, cv: 0}", "workload.arrivals.cv must be > 0, not 0"),
    (
        "workload.arrivals.cv=2",
        "workload.arrivals.cv is not a key of poisson; it knows process and rate_per_s",
    ),
    ("workload.arrivals={process: closed}", "workload.arrivals.concurrency is required"),
    (
        "workload.arrivals={process: closed, concurrency: 0}",
        "workload.arrivals.concurrency must be >= 1, not 0",
    ),
    (
        "workload.arrivals={process: trace, file: azure.csv}",
        "workload.arrivals.file: no such file: azure.csv",
    ),
    (
        "workload.arrivals={process: trace, file: ., format: azur}",
        "workload.arrivals.format must be auto, azure, mooncake, vidur, lengths, burstgpt, bailian, "
        "servegen, weka, llmservingsim, splitwise-sim, openai-batch or measured, not 'azur' "
        "(did you mean azure?)",
    ),
    ("workload.lengths={empirical: .}", "workload.lengths.empirical: is a folder: ."),
    (
        "workload.lengths={}",
        "workload.lengths must give one of preset, fixed, uniform, lognormal, empirical, trace",
    ),
    (
        "workload.lengths.fixed={prompt: 3, output: 4}",
        "workload.lengths.fixed cannot stand beside preset: lengths have exactly one source",
    ),
    (
        "workload.lengths.preset=sharegtp",
        "workload.lengths.preset must be sharegpt, lmsys, azure-conv, azure-code, mooncake-conv or arxiv, "
        "not 'sharegtp' (did you mean sharegpt?)",
    ),
    (
        "workload.lengths={trace: true}",
        "workload.lengths.trace needs arrivals with process: trace, not poisson",
    ),
    ("workload.lengths={trace: yes}", "workload.lengths.trace must be true or false, not 'yes'"),
    ("workload.lengths={empirical: l.csv}", "workload.lengths.empirical: no such file: l.csv"),
    ("workload.lengths={fixed: {prompt: 3}}", "workload.lengths.fixed.output is required"),
    (
        "workload.lengths={fixed: {prompt: 0, output: 1}}",
        "workload.lengths.fixed.prompt must be >= 1, not 0",
    ),
    (
        "workload.lengths={fixed: {prompt: 9, output: 9}, output_limit: 8}",
        "workload.lengths.output_limit must be >= the longest output, 9, not 8",
    ),
    (
        "workload.lengths={uniform: {prompt: [9, 3], output: [1, 2]}}",
        "workload.lengths.uniform.prompt must be [lowest, highest], not [9, 3]",
    ),
    (
        "workload.lengths={uniform: {prompt: [1, 2, 3], output: [1, 2]}}",
        "workload.lengths.uniform.prompt must be a list of two numbers, not [1, 2, 3]",
    ),
    (
        "workload.lengths={uniform: {prompt: [1, x], output: [1, 2]}}",
        "workload.lengths.uniform.prompt[1] must be a whole number, not 'x'",
    ),
    (
        "workload.lengths={uniform: {prompt: 5, output: [1, 2]}}",
        "workload.lengths.uniform.prompt must be a list of two numbers, not 5",
    ),
    (
        "workload.lengths={lognormal: {prompt: {mean: 0.5, cv: 1}, output: {mean: 9, cv: 1}}}",
        "workload.lengths.lognormal.prompt.mean must be >= 1, not 0.5",
    ),
    (
        "workload.lengths={lognormal: {prompt: {mean: 9, cv: 0}, output: {mean: 9, cv: 1}}}",
        "workload.lengths.lognormal.prompt.cv must be > 0, not 0",
    ),
    ("workload.duration=3", "workload.duration is not a known key (did you mean duration_s?)"),
    (
        "workload={arrivals: {process: burst}, lengths: {preset: sharegpt}, duration_s: 60}",
        "workload.requests is required: burst arrivals all come at time 0, which duration_s cannot bound",
    ),
    ("name=\udc80", "is not UTF-8 text"),
    ("model.size=8", "model holds no keys, it is 'meta-llama/Llama-3.1-8B'"),
    ("engine.=8", "must be KEY=VALUE, such as engine.max_num_seqs=64"),
    ("engine.max_num_seqs", "must be KEY=VALUE, such as engine.max_num_seqs=64"),
    ("engine={policy: [}", "not YAML: did not find expected node content"),
    ("engine={a: 1, a: 2}", "duplicate key 'engine.a'"),
    ("engine.max_num_seqs=!!int 3", "tag !!int is not supported; leave it out"),
]


@pytest.mark.parametrize(
    ("override", "message"), WRONG_VALUES, ids=[ascii(override) for override, _ in WRONG_VALUES]
)
@pytest.mark.usefixtures("folder")
def test_wrong_overrides_are_said_in_one_line(override: str, message: str) -> None:
    assert problems(COMPLETE, override) == [f"--set {override}: {message}"]


def test_everything_wrong_in_a_file_is_said_at_once_in_order_of_line(folder: Path) -> None:
    text = """\
        model: meta-llama/Llama-3.1-8B
        max_num_seqs: 64
        engine:
          policy: vllm-v1
          max_num_seq: 64
          block_size: 017
          prefix_caching: no
        workload:
          arrivals:
            process: gamma
            rate_per_s: -3
          lengths: {preset: sharegpt}
          duration: 60
        slo: {ttft_ms: 200ms}
        """
    assert problems(dedent(text), "replicas=0", seed=-1) == [
        "x.yaml:1: hardware is required",
        "x.yaml:2: max_num_seqs is not a known key (did you mean engine.max_num_seqs?)",
        "x.yaml:5: engine.max_num_seq is not a known key (did you mean max_num_seqs?)",
        "x.yaml:6: engine.block_size must not start with 0: write 17, or '017' for text",
        "x.yaml:7: engine.prefix_caching must be true or false, not 'no'",
        "x.yaml:10: workload.arrivals.cv is required",
        "x.yaml:11: workload.arrivals.rate_per_s must be > 0, not -3",
        "x.yaml:13: workload.duration is not a known key (did you mean duration_s?)",
        "x.yaml:14: slo.ttft_ms must be a number (longest time to the first token, ms), not '200ms'",
        "--set replicas=0: replicas must be >= 1, not 0",
        "--seed -1: seed must be >= 0, not -1",
    ]


def test_a_profile_that_is_not_there_is_blamed_on_its_line(folder: Path) -> None:
    (line,) = problems(COMPLETE + "profile: h100s\n")
    assert line.startswith("x.yaml:10: profile 'h100s' is not known: give auto, roofline, a path")


def test_findings_without_a_sentence_of_ours_keep_that_of_pydantic() -> None:
    finding = {"type": "new_kind", "loc": ("seed",), "msg": "Input should be odd", "input": 2}
    assert list(complaints([finding], Scenario.model_json_schema())) == [
        ((("seed",),), "seed is not right: input should be odd, not 2")
    ]


def test_a_combination_is_blamed_on_the_key_that_was_written(folder: Path) -> None:
    text = COMPLETE.replace("max_num_seqs: 64", "max_num_seqs: 4096")
    assert problems(text) == [
        "x.yaml:5: engine.max_num_batched_tokens must be >= max_num_seqs (4096), a token for each, not 2048"
    ]
    text = COMPLETE.replace("max_num_seqs: 64", "max_num_batched_tokens: 32\n  max_num_seqs: 16")
    assert problems(text, "engine.max_num_seqs=64") == [
        "--set engine.max_num_seqs=64: engine.max_num_batched_tokens must be >= max_num_seqs (64), "
        "a token for each, not 32"
    ]


def test_unknown_names_are_blamed_on_their_line(folder: Path) -> None:
    text = COMPLETE.replace("h100-sxm", "h100-smx").replace("Llama-3.1-8B", "Llama-3.1-8X")
    hardware, model = sorted(problems(text), key=lambda line: "model:" in line)
    assert hardware == "x.yaml:2: hardware: 'h100-smx' is not known; did you mean 'h100-sxm'?"
    assert model.startswith("x.yaml:1: model: 'meta-llama/Llama-3.1-8X' is neither built in nor a path")


BROKEN_FILES = [
    ("", "x.yaml: is empty; a scenario gives at least model, hardware and workload"),
    ("\n# nothing\n", "x.yaml: is empty; a scenario gives at least model, hardware and workload"),
    ("- model: a\n", "x.yaml:1: a scenario is a mapping of keys such as 'model: ...', nothing else"),
    ("just text\n", "x.yaml:1: a scenario is a mapping of keys such as 'model: ...', nothing else"),
    ("model: a\nengine: {policy: b\nseed: 1\n", "x.yaml:3: not YAML: did not find expected ',' or '}'"),
    ("model: a\n\thardware: b\n", "x.yaml:2: a tab cannot indent YAML; use spaces"),
    ("engine:\n\tpolicy: b\n", "x.yaml:2: a tab cannot indent YAML; use spaces"),
    ("model: a: b\n", "x.yaml:1: not YAML: mapping values are not allowed in this context"),
    ("model: *other\n", "x.yaml:1: not YAML: found undefined alias"),
    (
        "model: a\n---\nmodel: b\n",
        "x.yaml:2: one file holds one scenario: remove the second '---' and what follows",
    ),
    ("model: a\nmodel: \0\n", "x.yaml:2: holds a control character; is this a text file?"),
    ("[" * 2000, "x.yaml:1: not YAML: exceeded maximum nesting depth"),
    (
        "a: &a [*a]\n",
        "x.yaml:1: holds too many or too deeply nested values; do aliases (*name) multiply?",
    ),
    (
        "a: &a [0,0,0,0,0,0,0,0,0,0]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
        "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n",
        "x.yaml:1: holds too many or too deeply nested values; do aliases (*name) multiply?",
    ),
]


@pytest.mark.parametrize(("text", "message"), BROKEN_FILES, ids=range(len(BROKEN_FILES)))
@pytest.mark.usefixtures("folder")
def test_a_text_that_is_no_scenario_is_refused_with_its_line(text: str, message: str) -> None:
    assert problems(text) == [message]


def test_duplicate_keys_and_odd_keys_are_refused(folder: Path) -> None:
    text = COMPLETE + "model: again\n? [a]\n: 1\n"
    assert problems(text) == [
        "x.yaml:10: duplicate key 'model' (first on line 1)",
        "x.yaml:11: a key must be text, not a list or a mapping",
    ]


def test_files_that_cannot_be_read_are_named(folder: Path) -> None:
    cases = {
        "missing.yaml": "missing.yaml: no such file or directory",
        "here": "here: is a folder, not a scenario file",
        "binary.yaml": "binary.yaml: is not UTF-8 text (byte 3), so not a scenario",
        "large.yaml": "large.yaml: is 2 MB, too large for a scenario; is it a trace?",
        "x.yaml/in.yaml": "x.yaml/in.yaml: not a directory",
    }
    Path("here").mkdir()
    Path("binary.yaml").write_bytes(b"a:\xff\xfe")
    Path("large.yaml").write_bytes(b"#" * 2_000_000)
    write("a: b")
    for name, message in cases.items():
        with pytest.raises(ScenarioError) as caught:
            load_scenario(Path(name))
        assert str(caught.value) == message


def test_the_traps_of_yaml_1_1_are_gone(folder: Path) -> None:
    text = COMPLETE.replace("1000", "1e3") + "name: no\nslo: {ttft_ms: 2.5E2, e2e_ms: +3.e3}\n"
    scenario = load_scenario(write(text))
    assert scenario.workload.requests == 1000
    assert scenario.name == "no"
    assert scenario.slo is not None
    assert (scenario.slo.ttft_ms, scenario.slo.e2e_ms) == (250.0, 3000.0)
    for text_value in ("12:30", "2024-01-01", "off", "1_000", "0x10", "=", "<<", "1e3x"):
        assert load_scenario(write(COMPLETE), [f"name={text_value}"]).name == text_value


def test_a_byte_order_mark_and_windows_lines_do_no_harm(folder: Path) -> None:
    path = Path("x.yaml")
    path.write_bytes(b"\xef\xbb\xbf" + COMPLETE.replace("\n", "\r\n").encode())
    assert load_scenario(path) == load_scenario(write(COMPLETE, "x.yaml"))


def test_aliases_may_share_a_value(folder: Path) -> None:
    text = COMPLETE.replace("{preset: sharegpt}", "{uniform: {prompt: &span [1, 9], output: *span}}")
    assert load_scenario(write(text)).workload.lengths.uniform is not None


def test_overrides_replace_add_and_remove_keys_and_the_last_one_wins(folder: Path) -> None:
    path = write(COMPLETE + "slo: {ttft_ms: 200}\n")
    changed = load_scenario(
        path,
        [
            "engine.max_num_seqs=16",
            "engine.max_num_seqs=32",
            "parallel.tensor=2",
            "slo=",
            "workload.lengths={fixed: {prompt: 3, output: 4}}",
        ],
        seed=7,
    )
    assert changed.engine.max_num_seqs == 32
    assert (changed.parallel.tensor, changed.slo, changed.seed) == (2, None, 7)
    assert changed.workload.lengths.preset is None
    assert changed.workload.lengths.source == "fixed"


def test_an_override_puts_a_wrong_value_right(folder: Path) -> None:
    text = COMPLETE.replace("max_num_seqs: 64", "max_num_seqs: 064")
    assert problems(text) == [
        "x.yaml:5: engine.max_num_seqs must not start with 0: write 64, or '064' for text"
    ]
    assert load_scenario(write(text), ["engine.max_num_seqs=64"]).engine.max_num_seqs == 64


def test_a_scenario_without_a_name_is_called_after_its_file(folder: Path) -> None:
    assert load_scenario(write(COMPLETE, "chat.yaml")).name == "chat"


def test_relative_files_are_taken_from_the_folder_of_the_scenario(folder: Path) -> None:
    Path("deep").mkdir()
    Path("deep/lengths.csv").write_text("prompt_tokens,output_tokens\n3,4\n")
    path = write(COMPLETE.replace("{preset: sharegpt}", "{empirical: lengths.csv}"), "deep/x.yaml")
    assert load_scenario(path).workload.lengths.empirical == "lengths.csv"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_scenario_that_ships_is_valid_and_described(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name != path.stem, "a shipped scenario carries a name of its own"
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_the_resolved_scenario_writes_every_default_in_a_fixed_order(folder: Path) -> None:
    assert to_yaml(load_scenario(write(COMPLETE))) == dedent("""\
        name: x
        model: meta-llama/Llama-3.1-8B
        hardware: h100-sxm
        profile: auto
        server_overhead_ms: auto
        dtype: bfloat16
        parallel:
          tensor: 1
          pipeline: 1
        replicas: 1
        router: round-robin
        engine:
          policy: vllm-v1
          block_size: 16
          gpu_memory_utilization: 0.9
          kv_blocks: auto
          max_num_seqs: 64
          max_num_batched_tokens: 2048
          chunked_prefill: true
          long_prefill_token_threshold: 0
          scheduling: fcfs
          prefix_caching: true
          full_isl_gate: true
          watermark: 0.0
        workload:
          arrivals:
            process: poisson
            rate_per_s: 8.0
          lengths:
            preset: sharegpt
            trace: false
          requests: 1000
        seed: 0
        """)
