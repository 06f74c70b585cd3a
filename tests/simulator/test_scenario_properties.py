"""Properties of scenario files: what is written reads back, and nonsense is refused, never a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import ScenarioError
from simulator.scenario import Scenario
from simulator.scenario_file import load_scenario, to_yaml

COMPLETE = """\
model: meta-llama/Llama-3.1-8B
hardware: h100-sxm
engine: {policy: vllm-v1, max_num_seqs: 64}
workload:
  arrivals: {process: poisson, rate_per_s: 8}
  lengths: {uniform: {prompt: [1, 9], output: [3, 4]}}
  requests: 1000
slo: {ttft_ms: 200}
"""

positive = st.floats(1e-6, 1e6, allow_nan=False)
count = st.integers(1, 10_000)
text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
shares = st.floats(0.01, 1.0)


def optional(**values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({}, optional=values)


def spans() -> st.SearchStrategy[list[int]]:
    return st.tuples(count, count).map(sorted)


arrivals = st.one_of(
    st.fixed_dictionaries({"process": st.just("poisson"), "rate_per_s": positive}),
    st.fixed_dictionaries({"process": st.just("gamma"), "rate_per_s": positive, "cv": st.floats(0.1, 30)}),
    st.fixed_dictionaries({"process": st.just("burst")}),
    st.fixed_dictionaries({"process": st.just("closed"), "concurrency": count}),
    st.fixed_dictionaries(
        {"process": st.just("trace"), "file": text, "rate_scale": positive, "spread_ticks": st.booleans()}
    ),
)
lengths = st.one_of(
    st.fixed_dictionaries({"preset": st.sampled_from(["sharegpt", "arxiv"])}),
    st.fixed_dictionaries({"fixed": st.fixed_dictionaries({"prompt": count, "output": count})}),
    st.fixed_dictionaries({"uniform": st.fixed_dictionaries({"prompt": spans(), "output": spans()})}),
    st.fixed_dictionaries({"empirical": text}, optional={"output_limit": count}),
)
engines = st.one_of(
    optional(
        kv_blocks=st.just("auto") | count, gpu_memory_utilization=shares, prefix_caching=st.booleans()
    ),
    st.fixed_dictionaries(
        {"policy": st.just("static"), "stop_rule": st.sampled_from(["batch-max", "global-max"])}
    ),
    st.fixed_dictionaries(
        {"policy": st.just("orca"), "reservation": st.sampled_from(["max", "pow2", "oracle"])}
    ),
    st.fixed_dictionaries({"policy": st.just("single")}, optional={"max_model_len": count}),
    st.fixed_dictionaries(
        {"policy": st.just("bucketed"), "bucket_edges": st.sets(count, max_size=4).map(sorted)}
    ),
    st.fixed_dictionaries(
        {
            "policy": st.just("dynamic"),
            "priority_levels": st.just(2),
            "default_priority_level": st.integers(1, 2),
            "priority_queue_policy": st.dictionaries(
                st.sampled_from(["1", "2"]), st.fixed_dictionaries({"max_queue_size": count}), max_size=2
            ),
        }
    ),
)
scenarios = st.fixed_dictionaries(
    {
        "model": text,
        "hardware": text,
        "workload": st.fixed_dictionaries({"arrivals": arrivals, "lengths": lengths, "requests": count}),
        "engine": engines,
        "name": text,
    },
    optional={
        "slo": optional(e2e_ms=positive).filter(bool),
        "seed": st.integers(0, 2**60),
        "replicas": count,
    },
).map(Scenario.model_validate)


@given(scenario=scenarios)
@settings(max_examples=200, deadline=None)
def test_a_resolved_scenario_reads_back_equal(
    scenario: Scenario, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "resolved.yaml"
    path.write_text(to_yaml(scenario), encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulator.scenario_file._outside", lambda *_: iter(()))
        again = load_scenario(path)
    assert again == scenario
    assert to_yaml(again) == to_yaml(scenario)


def loads_or_says_why(path: Path, overrides: list[str]) -> None:
    """Load; whatever is wrong must come as a ScenarioError of whole lines, each with its place."""
    try:
        load_scenario(path, overrides)
    except ScenarioError as error:
        for line in str(error).splitlines():
            assert line.startswith((str(path), "--set ")), line
            assert ": " in line


@given(
    contents=st.binary(max_size=60)
    | st.text("-:[]{}&*?!|>'\"%@`#,. \n\tabmodel01", max_size=60).map(str.encode)
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_scenario_or_refused(
    contents: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(contents)
    loads_or_says_why(path, [])


values = st.recursive(
    st.sampled_from(
        ["0", "-1", "1e3", "true", "no", "~", "x", "'3'", ".nan", ".inf", "017", "1e999", "gamma"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.tuples(st.sampled_from(["policy", "process", "prompt", "x"]), inner).map(
            lambda pair: f"{{{pair[0]}: {pair[1]}}}"
        )
    ),
    max_leaves=4,
)
keys = st.sampled_from(
    [
        *(
            "model",
            "engine",
            "engine.policy",
            "engine.kv_blocks",
            "engine.watermark",
            "slo",
            "slo.ttft_ms",
            "seed",
        ),
        *("workload", "workload.arrivals", "workload.arrivals.process", "workload.arrivals.cv", "parallel"),
        *(
            "workload.lengths",
            "workload.lengths.uniform",
            "workload.lengths.uniform.prompt",
            "a.b.c",
            "name",
        ),
    ]
)


@given(overrides=st.lists(st.tuples(keys, values).map("=".join), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_any_override_is_taken_or_refused(
    overrides: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "complete.yaml"
    path.write_text(COMPLETE, encoding="utf-8")
    loads_or_says_why(path, overrides)
