"""Words to a live model's tokens and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backend.serve.seam import ChatMessage, Prompt, content_of_ids
from simulator.errors import ModelError, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BROKEN = "\ufffd"  # what a decoder makes of half a character


def checked(ids: Sequence[int], vocabulary: int, block_size: int) -> Prompt:
    """A prompt of token ids that the model knows."""
    wrong = next((i for i in ids if not 0 <= i < vocabulary), None)
    if wrong is not None:
        raise UserError(f"token id {wrong} is not in the vocabulary of {vocabulary:,}")
    return Prompt(len(ids), tuple(ids), content_of_ids(ids, block_size))


class Bytes:
    """For models without a tokenizer: a token for every byte of UTF-8, and answers as their token ids."""

    def __init__(self, vocabulary: int, block_size: int) -> None:
        self.vocabulary = vocabulary
        self.block_size = block_size

    def prompt(self, text: str) -> Prompt:
        """A prompt by its bytes."""
        ids = [byte % self.vocabulary for byte in text.encode("utf-8", "surrogatepass")]
        return self.token_ids(ids)

    def chat(self, messages: Sequence[ChatMessage]) -> Prompt:
        """A conversation, a line for each message."""
        lines = [f"{message.role}: {message.text}\n" for message in messages]
        return self.prompt("".join([*lines, "assistant:"]))

    def token_ids(self, ids: Sequence[int]) -> Prompt:
        """A prompt given exactly."""
        return checked(ids, self.vocabulary, self.block_size)

    def decoder(self) -> Numbers:
        """A decoder for one answer."""
        return Numbers()


class Numbers:
    """Token ids as numbers."""

    def add(self, tokens: Sequence[int], *, last: bool) -> str:  # noqa: ARG002 nothing is ever held back
        """The numbers of these tokens."""
        return "".join(f" {token}" for token in tokens)


class FolderText:
    """The tokenizer and the chat template of a model's folder. Nothing is downloaded and no code is run."""

    def __init__(self, folder: Path, vocabulary: int, block_size: int) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except (ValueError, OSError, KeyError) as error:
            raise ModelError(f"{folder}: {str(error).strip().splitlines()[0]}") from None
        self.vocabulary = vocabulary
        self.block_size = block_size

    def prompt(self, text: str) -> Prompt:
        """A prompt as the tokenizer would begin it, with its opening token if it has one."""
        return self.token_ids(self._encode(text, opening=True))

    def chat(self, messages: Sequence[ChatMessage]) -> Prompt:
        """A conversation under the model's template, which writes the opening token itself."""
        if not self._tokenizer.chat_template:
            raise UserError("this model has no chat template; use /v1/completions")
        turns = [{"role": message.role, "content": message.text} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates are programs and complain in their own ways
            raise UserError(f"the chat template refuses them: {error}") from None
        return self.token_ids(self._encode(str(text), opening=False))

    def token_ids(self, ids: Sequence[int]) -> Prompt:
        """A prompt given exactly."""
        return checked(ids, self.vocabulary, self.block_size)

    def decoder(self) -> PieceDecoder:
        """A decoder for one answer."""
        return PieceDecoder(self._tokenizer)

    def _encode(self, text: str, *, opening: bool) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=opening))
        except (TypeError, UnicodeError):
            raise UserError("it holds half a surrogate pair, which is no text") from None


class PieceDecoder:
    """Decodes token by token although a token's text may depend on its neighbours.

    Text is the difference between decoding with and without the new tokens, over a short window; while it
    ends in half a character it is held back.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._known = 0  # leading ids of the window whose text is out already

    def add(self, tokens: Sequence[int], *, last: bool) -> str:
        """The text that these tokens complete."""
        self._ids += tokens
        before, now = self._decode(self._ids[: self._known]), self._decode(self._ids)
        if now.endswith(BROKEN) and not last:
            return ""
        del self._ids[: self._known]
        self._known = len(self._ids)
        return now[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)
