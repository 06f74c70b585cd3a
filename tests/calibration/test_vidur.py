"""Vidur's profiling CSVs become the operators that they cover."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calibration.vidur import LAYER_OPERATORS, import_csv
from simulator.errors import ProfileError
from simulator.hardware import load_hardware
from simulator.models import load_model

Shared = Callable[..., Path]
LLAMA_7B = load_model("meta-llama/Llama-2-7b-hf")
LLAMA_8B = load_model("meta-llama/Llama-3.1-8B")
LLAMA_70B = load_model("meta-llama/Llama-3.1-70B")
A100 = load_hardware("a100-80-sxm")
SHAPE = {"n_head": 32, "n_kv_head": 8, "n_embd": 4096, "n_expanded_embd": 14336}


def table(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text(
        "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n"
    )
    return path


def layer(tokens: int, ms: float, **changed: object) -> dict[str, object]:
    stats = {f"time_stats.{name}.median": ms for name in ("emb", *LAYER_OPERATORS)}
    return stats | SHAPE | {"num_tokens": tokens, "num_tensor_parallel_workers": 1} | changed


def test_a_pass_is_all_layers_with_two_residuals_and_one_embedding(tmp_path: Path) -> None:
    path = table(tmp_path / "mlp.csv", [layer(8, 0.5), layer(8, 0.5), layer(16, 1.0)])
    found = {s.at: s.ns for s in import_csv(path, LLAMA_8B, A100, 1).samples}
    kernels = (len(LAYER_OPERATORS) + 1) * 32 + 1
    assert found == {(8,): 0.5e6 * kernels, (16,): 1e6 * kernels}


def test_an_empty_cell_is_a_kernel_that_the_model_has_not(tmp_path: Path) -> None:
    path = table(tmp_path / "mlp.csv", [layer(8, 1.0, **{"time_stats.attn_rope.median": ""})])
    assert import_csv(path, LLAMA_8B, A100, 1).samples[0].ns == 1e6 * (len(LAYER_OPERATORS) * 32 + 1)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"num_tokens": "x"}, "num_tokens must be a number >= 1, not 'x'"),
        ({"num_tokens": 0}, "num_tokens must be a number >= 1, not '0'"),
        ({"num_tokens": 1.5}, "num_tokens must be a whole number, not 1.5"),
        ({"num_tokens": ""}, "num_tokens must be a number >= 1, not ''"),
        ({"time_stats.emb.median": "nan"}, "time_stats.emb.median must be a number >= 0, not 'nan'"),
        ({"time_stats.emb.median": "inf"}, "time_stats.emb.median must be a number >= 0, not 'inf'"),
        ({"time_stats.emb.median": -1}, "time_stats.emb.median must be a number >= 0, not '-1'"),
        ({"num_tensor_parallel_workers": "one"}, "num_tensor_parallel_workers must be a number >= 0"),
    ],
)
def test_a_wrong_cell_is_named_by_its_line(
    tmp_path: Path, changed: dict[str, object], complaint: str
) -> None:
    path = table(tmp_path / "mlp.csv", [layer(8, 1.0), layer(16, 1.0) | changed])
    with pytest.raises(ProfileError) as refused:
        import_csv(path, LLAMA_8B, A100, 1)
    assert str(refused.value).startswith(f"{path}:3: {complaint}")


def test_a_line_cut_short_is_named(tmp_path: Path) -> None:
    path = table(tmp_path / "mlp.csv", [layer(8, 1.0), layer(16, 1.0)])
    path.write_text(path.read_text().rpartition(",")[0])
    with pytest.raises(ProfileError, match=r"mlp.csv:3: has no num_tensor_parallel_workers; expected an"):
        import_csv(path, LLAMA_8B, A100, 1)


def test_another_models_table_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "mlp.csv", [layer(8, 1.0)])
    with pytest.raises(ProfileError, match=r"mlp.csv: its n_kv_head is 8, meta-llama/Llama-2-7b-hf has 32"):
        import_csv(path, LLAMA_7B, A100, 1)


def test_a_missing_parallelism_is_named(tmp_path: Path) -> None:
    path = table(tmp_path / "mlp.csv", [layer(8, 1.0)])
    with pytest.raises(ProfileError, match=r"holds no rows for 4 GPUs \(it has 1\)"):
        import_csv(path, LLAMA_8B, A100, 4)


def test_attention_of_chunks_and_rows(tmp_path: Path) -> None:
    def call(batch: int, chunk: int, keys: int, ms: float) -> dict[str, object]:
        return {
            "time_stats.attn_prefill.median": ms if chunk else "",
            "time_stats.attn_decode.median": "" if chunk else ms,
            "time_stats.attn_kv_cache_save.median": 0.25,
            "n_q_head": 32,
            "n_kv_head": 8,
            "n_embd": 4096,
            "batch_size": batch,
            "prefill_chunk_size": chunk,
            "kv_cache_size": keys,
            "is_prefill": bool(chunk),
            "num_tensor_parallel_workers": 1,
        }

    path = table(tmp_path / "attention.csv", [call(1, 128, 64, 2.0), call(4, 0, 100, 1.0)])
    prefill, decode = import_csv(path, LLAMA_8B, A100, 1).samples
    assert prefill == ("prefill_attention", (1, 128, 128 * 64 + 128 * 129 / 2), 2.25e6 * 32)
    assert decode == ("decode_attention", (4, 400), 1.25e6 * 32)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", ""])
def test_other_files_are_refused_with_a_hint(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(
        ProfileError, match=r"is no table of Vidur's; expected an mlp.csv, attention.csv or"
    ):
        import_csv(path, LLAMA_8B, A100, 1)


def test_the_published_layers_agree_with_the_weights_traffic(shared: Shared) -> None:
    """One token of Llama-3-8B reads 15 GB of layers at 80 to 95 % of 2.04 TB/s, kernels beside."""
    path = shared("data", "kernels", "vidur", "compute", "a100", "meta-llama", "Meta-Llama-3-8B", "mlp.csv")
    one = {s.at[0]: s.ns for s in import_csv(path, LLAMA_8B, A100, 1).samples}[1]
    weights_ns = 2 * 6.98e9 / A100.bandwidth_bytes_per_s * 1e9
    assert 1.1 < one / weights_ns < 1.5


def test_the_published_collectives_rise_with_the_message(shared: Shared) -> None:
    path = shared("data", "kernels", "vidur", "network", "a100_dgx", "all_reduce.csv")
    samples = import_csv(path, LLAMA_70B, A100, 4).samples
    assert samples[-1].at[0] > 1024
    assert samples[-1].ns > 5 * samples[0].ns
