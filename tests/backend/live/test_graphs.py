"""What a captured decode pass would compute; capturing itself needs a GPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from backend.attend import PagedAttention
from backend.graphs import SIZES, fill, fixed_inputs, padded_size
from tests.backend.live.test_models import engine, prompts
from tests.backend.live.tiny import kernels_of, serve


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 4), (9, 16), (17, 32), (256, 256), (257, None)])
def test_rows_are_filled_up_to_the_next_size(rows: int, size: int | None) -> None:
    assert padded_size(rows) == size
    assert list(SIZES) == sorted(set(SIZES))


def test_filled_up_rows_change_nothing_for_the_others(model_of) -> None:
    """Every decode pass runs through fixed inputs, as a graph's would: tokens stay the same, blocks too."""
    model, asked = model_of("llama", "fast"), prompts(5)
    plain = serve(model, engine(), 64, 8, asked).answers
    kernels = kernels_of(model)

    def through_fixed_inputs(batch, attend):
        size = padded_size(batch.decodes)
        if batch.chunks:
            return model.forward(batch, attend)
        inputs = fixed_inputs(size, batch.blocks.shape[1], torch.device("cpu"))
        fill(inputs, batch, attend.kv)
        before = [keys[:-1].clone() for keys in attend.kv.keys]
        logits = model.forward(inputs, PagedAttention(kernels, attend.kv, inputs))
        for was, keys in zip(before, attend.kv.keys, strict=True):
            changed = (was != keys[:-1]).flatten(2).any(2).flatten().nonzero().flatten()
            assert set(changed.tolist()) <= set(batch.slots.tolist()), "a filler wrote outside scratch"
        return logits[: batch.decodes]

    served = serve(dataclasses.replace(model, forward=through_fixed_inputs), engine(), 64, 8, asked)
    assert served.answers == plain


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_graphs_replay_what_the_plain_pass_computes(folder_of) -> None:
    from backend.models import load_live_model

    asked = prompts(5)
    model = load_live_model(str(folder_of("llama")), "float32", "cuda")
    plain = dataclasses.replace(model, path="general")  # the same forward, without graphs
    assert serve(model, engine(), 64, 8, asked).answers == serve(plain, engine(), 64, 8, asked).answers
