"""Per-layer profiles of LLMServingSim become the operators of a pass, mixed attention included."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calibration.cli import app
from calibration.fit import as_profile, fit_profile
from calibration.layer_profiles import import_layers, touched_experts
from calibration.uneven_rows import Spread, read_penalties
from simulator.cost_model import ProfileCostModel
from simulator.engine.plan import IterationShape
from simulator.errors import ProfileError
from simulator.hardware import load_hardware
from simulator.models import load_model
from simulator.profile import Profile
from simulator.roofline import Roofline

Shared = Callable[..., Path]
LLAMA_8B = load_model("meta-llama/Llama-3.1-8B")
RTX_4090 = load_hardware("rtx-4090")
LAYERS = 32
META = "vllm_version: 0.19.0\ngpu: some GPU\nmodel: meta-llama/Llama-3.1-8B\nvariant: bf16\n"
PER_LAYER = ("layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")
ONCE = ("embedding", "final_layernorm")


def written(folder: Path, **tables: str) -> Path:
    """A folder as the profiler writes it; tables by name, without heads, replace the small defaults."""
    dense = "".join(f"{layer},{t},{t}\n" for layer in (*PER_LAYER, *ONCE) for t in (1, 2, 4))
    attention = "".join(
        f"{chunk},0,{rows},{keys},{chunk + 8 * rows * keys if chunk else rows * keys}\n"
        for chunk in (0, 256, 512)
        for rows, keys in ((0, 0), (1, 16), (1, 32), (2, 16), (2, 32))
        if chunk or rows
    )
    heads = {
        "dense": "layer,tokens,time_us\n",
        "per_sequence": "layer,sequences,time_us\n",
        "attention": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n",
    }
    bodies = {
        "dense": dense,
        "per_sequence": "lm_head,1,100\nlm_head,2,100\nsampler,1,7\nsampler,2,9\n",
        "attention": attention,
    } | tables
    (folder / "tp1").mkdir(parents=True)
    (folder / "meta.yaml").write_text(META)
    for name, head in heads.items():
        (folder / "tp1" / f"{name}.csv").write_text(head + bodies[name])
    return folder


def times(folder: Path, operator: str) -> dict[tuple[float, ...], float]:
    return {s.at: s.ns for s in import_layers(folder, LLAMA_8B, RTX_4090).of(operator)}


def test_a_pass_is_every_layer_with_two_norms_and_the_ends_once(tmp_path: Path) -> None:
    per_layer = (len(PER_LAYER) + 1) * LAYERS
    assert times(written(tmp_path), "dense") == {
        (t,): 1e3 * t * (per_layer + len(ONCE)) for t in (1.0, 2.0, 4.0)
    }


def test_the_head_is_logits_and_sampling(tmp_path: Path) -> None:
    assert times(written(tmp_path), "head") == {(1,): 107e3, (2,): 109e3}


def test_rows_beside_a_chunk_cost_what_they_add_to_it(tmp_path: Path) -> None:
    folder = written(tmp_path)
    assert times(folder, "decode_attention")[2, 64] == 64e3 * LAYERS
    assert times(folder, "mixed_decode_attention")[2, 64] == 8 * 64e3 * LAYERS


@pytest.mark.parametrize(
    ("table", "body", "complaint"),
    [
        ("dense", "rms_norm,1,2\n", "layer 'rms_norm' is not known"),
        ("per_sequence", "lm_head,1,2\n", "holds no layer 'sampler'"),
    ],
)
def test_an_unknown_or_missing_layer_is_named(
    tmp_path: Path, table: str, body: str, complaint: str
) -> None:
    with pytest.raises(ProfileError, match=complaint):
        import_layers(written(tmp_path, **{table: body}), LLAMA_8B, RTX_4090)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "tp1" / "dense.csv").write_text("layer,tokens,time_ms\n")
    with pytest.raises(
        ProfileError, match=r"dense.csv:1: columns must be layer,tokens,time_us, not .*time_ms"
    ):
        import_layers(folder, LLAMA_8B, RTX_4090)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("lm_head,x,100", "sequences must be a whole number >= 0, not 'x'"),
        ("lm_head,1.5,100", "sequences must be a whole number >= 0, not '1.5'"),
        ("lm_head,1,nan", "time_us must be a number >= 0, not 'nan'"),
        ("lm_head,1,inf", "time_us must be a number >= 0, not 'inf'"),
        ("lm_head,1,-5", "time_us must be a number >= 0, not '-5'"),
        ("lm_head,1", "time_us must be a number >= 0, not empty"),
    ],
)
def test_a_wrong_cell_is_named_by_its_line(tmp_path: Path, line: str, complaint: str) -> None:
    folder = written(tmp_path, per_sequence=f"lm_head,2,100\n{line}\nsampler,1,7\nsampler,2,9\n")
    with pytest.raises(ProfileError) as refused:
        import_layers(folder, LLAMA_8B, RTX_4090)
    assert str(refused.value) == f"{folder / 'tp1' / 'per_sequence.csv'}:3: {complaint}"


def test_a_meta_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "meta.yaml").write_text("{gpu: [")
    with pytest.raises(ProfileError, match=r"meta\.yaml: is not YAML"):
        import_layers(folder, LLAMA_8B, RTX_4090)


def test_a_folder_without_meta_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"holds no meta.yaml; expected a folder of LLMServingSim"):
        import_layers(tmp_path, LLAMA_8B, RTX_4090)


def test_a_missing_parallelism_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"holds no tp2 \(it has tp1\)"):
        import_layers(written(tmp_path), LLAMA_8B, RTX_4090, 2)


def test_touched_experts_are_those_of_independent_choices() -> None:
    model = load_model("Qwen/Qwen3-30B-A3B")
    assert touched_experts(model, 1) == pytest.approx(8)
    assert touched_experts(model, 2) == pytest.approx(8 + 8 * 120 / 128)


def test_uneven_rows_cost_alpha_of_the_way_to_the_longest(tmp_path: Path) -> None:
    head = "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples\n"
    (tmp_path / "tp1").mkdir()
    table = tmp_path / "tp1" / "skew_fit.csv"
    table.write_text(head + "0,n<=2,sr<=40%,kvB<=1k,kp=0,0.5,4\n")
    samples = import_layers(written(tmp_path / "profile"), LLAMA_8B, RTX_4090).of("decode_attention")
    uneven = read_penalties(table, Spread(2.0, 0.3)).applied(samples, mixed=False)
    even, changed = ({s.at: s.ns for s in found} for found in (samples, uneven))
    assert changed[2, 32] == even[2, 32] + 0.5 * (even[2, 64] - even[2, 32])
    assert changed[1, 16] == even[1, 16]


def clock(profile: Profile) -> ProfileCostModel:
    return ProfileCostModel(profile, Roofline(LLAMA_8B, RTX_4090, "bfloat16", 1))


def test_the_clock_takes_the_mixed_price_only_beside_prompts(tmp_path: Path) -> None:
    measurements = import_layers(written(tmp_path), LLAMA_8B, RTX_4090)
    cost = clock(as_profile(fit_profile(measurements, measurements.header.host, check=False), "small"))
    alone = cost.iteration_ns(IterationShape(0, 0, 0, 2, 64)) - cost.iteration_ns(
        IterationShape(0, 0, 0, 2, 32)
    )
    chunk = (1, 256, 256 * 257 // 2)
    beside = cost.iteration_ns(IterationShape(*chunk, 2, 64)) - cost.iteration_ns(
        IterationShape(*chunk, 2, 32)
    )
    assert beside == pytest.approx(8 * alone, rel=1e-6)


def test_the_published_profile_prices_mixed_batches_within_its_scatter(shared: Shared) -> None:
    """Sum of the parts alone is 32 % too low on this GPU; chunk plus added rows is 4.3 % off."""
    folder = shared(
        "data", "engines", "vllm_0.19_sharegpt", "profiler_perf", "RTX4090", "meta-llama", "Llama-3.1-8B"
    )
    found = import_layers(folder / "bf16", LLAMA_8B, RTX_4090)
    assert found.header.engine_version == "0.19.0"
    assert found.header.checks["mixed_attention"]["median"] < 0.05
    alone, beside = (
        {s.at: s.ns for s in found.of(name)} for name in ("decode_attention", "mixed_decode_attention")
    )
    assert 2 < beside[128, 128 * 1024] / alone[128, 128 * 1024] < 4  # four heads share their keys


def test_the_command_imports_and_fits(shared: Shared, tmp_path: Path) -> None:
    folder = shared(
        "data", "engines", "vllm_0.19_sharegpt", "profiler_perf", "RTX4090", "meta-llama", "Llama-3.1-8B"
    )
    measured, profile = tmp_path / "m.jsonl", tmp_path / "p.json"
    given = ["--model", "meta-llama/Llama-3.1-8B", "--hardware", "rtx-4090"]
    imported = CliRunner().invoke(
        app, ["import", "llmservingsim", str(folder / "bf16"), "--output", str(measured), *given]
    )
    assert imported.exit_code == 0, imported.output
    fitted = CliRunner().invoke(app, ["fit", str(measured), "--output", str(profile)])
    assert fitted.exit_code == 0, fitted.output
    fields = json.loads(profile.read_text())
    assert fields["host"]["iteration_ns"] == 0
    assert fields["source"]["licence"] == "MIT"


def test_rows_beside_prompts_beyond_what_was_measured_count_as_extrapolated(tmp_path: Path) -> None:
    """Two rows were timed alone, next to a chunk only one."""
    attention = "".join(
        f"{chunk},0,{rows},{keys},{1 + chunk + rows * keys}\n"
        for chunk in (0, 256, 512)
        for rows, keys in ((0, 0), (1, 16), (1, 32), (2, 16), (2, 32))
        if (chunk or rows) and not (chunk and rows == 2)
    )
    heads = "".join(f"{layer},{count},9\n" for layer in ("lm_head", "sampler") for count in (1, 4))
    folder = written(tmp_path, attention=attention, per_sequence=heads)
    measurements = import_layers(folder, LLAMA_8B, RTX_4090)
    cost = clock(as_profile(fit_profile(measurements, measurements.header.host, check=False), "small"))
    columns = {
        "prefills": [0, 1, 1],
        "prefill_tokens": [0, 1, 1],
        "prefill_pairs": [0, 1, 1],
        "decodes": [2, 1, 2],
        "context_tokens": [64, 32, 64],
    }
    found = cost.extrapolated({name: np.asarray(values) for name, values in columns.items()})
    assert found.tolist() == [False, False, True]
