"""Make a small byte-level tokenizer in a folder, for load generators that need one and have no network.

    python tools/make_tokenizer.py FOLDER      (needs: pip install tokenizers transformers)

It knows every byte and the commonest pieces of the sentence below, so any text can be encoded.
"""

from __future__ import annotations

import sys
from pathlib import Path

SENTENCES = (
    "The scheduler gives every request its blocks before an iteration and takes them back when it ends.",
    "A prompt is read in chunks, and each answer grows by a single token while the others wait for theirs.",
)

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def main(folder: Path) -> None:
    """Train it and write it where `AutoTokenizer.from_pretrained` finds it."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(SENTENCES, vocab_size=600, special_tokens=["<|end|>"])
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=trained._tokenizer, eos_token="<|end|>", model_max_length=131_072
    )
    wrapped.chat_template = TEMPLATE
    folder.mkdir(parents=True, exist_ok=True)
    wrapped.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
