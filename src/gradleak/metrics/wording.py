"""The tokens and the text of a sentence that are scored, with what the tokenizer cannot represent marked as lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gradleak.metrics.rouge import UNKNOWN_IN_GUESS, UNKNOWN_IN_TRUTH

LOST = -1
"""Id of a token in a private text that does not tell what it replaced, such as [UNK]; no guess has this id."""

LOST_IN_GUESS = -2
"""Id of an unknown token in a guess; no private text has this id."""

_WORDS = {LOST: UNKNOWN_IN_TRUTH, LOST_IN_GUESS: UNKNOWN_IN_GUESS}
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how SentencePiece writes a space


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that scoring uses."""

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of all special tokens, padding among them."""
        ...

    @property
    def pad_token_id(self) -> int | None:
        """Id of the padding token."""
        ...

    @property
    def sep_token_id(self) -> int | None:
        """Id of the token that ends a sentence in encoders."""
        ...

    @property
    def unk_token_id(self) -> int | None:
        """Id of the token that replaces what the vocabulary cannot represent."""
        ...

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:  # noqa: ANN401 (a mapping with `input_ids`)
        """Return the ids of a text."""
        ...

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str | list[str]:
        """Return the text of the ids."""
        ...


@dataclass(frozen=True)
class Wording:
    """A sentence as it is scored.

    Attributes:
        ids: its tokens without special ones; `LOST` and `LOST_IN_GUESS` in place of unknown tokens.
        text: their text, with a separate word for each unknown token.
        rouge_text: the text that ROUGE counts.
        secret: the private text if the tokenizer lost a part of it; two texts with the same tokens may differ there.
    """

    ids: tuple[int, ...]
    text: str
    rouge_text: str
    secret: str = ""

    @property
    def whole(self) -> bool:
        """Whether the tokenizer lost nothing of it."""
        return LOST not in self.ids


def read_guess(ids: Sequence[int], tokenizer: Tokenizer, scoring: str) -> Wording:
    """Return a reconstructed sentence as it is scored."""
    plain = [int(i) for i in ids]  # entries may be those of a tensor
    return _wording(plain, _content(plain, tokenizer, LOST_IN_GUESS), tokenizer, scoring)


def read_truth(ids: Sequence[int], tokenizer: Tokenizer, scoring: str, text: str | None = None) -> Wording:
    """Return a private sentence as it is scored.

    Args:
        ids: its token ids.
        tokenizer: the tokenizer that made them.
        scoring: what ROUGE counts.
        text: the sentence itself. Only it shows special tokens that are written out ("[SEP]") and characters that the
            tokenizer dropped without a trace: both are lost.
    """
    plain = [int(i) for i in ids]
    if text is None:
        return _wording(plain, _content(plain, tokenizer, LOST), tokenizer, scoring)
    special = set(tokenizer.all_special_ids)
    written = [int(i) for i in tokenizer(text, add_special_tokens=False)["input_ids"]]
    content = [LOST if i in special else i for i in written]
    if LOST not in content and _drops(text, written, tokenizer):
        content.append(LOST)
    return _wording(plain, content, tokenizer, scoring, text if LOST in content else "")


def _wording(ids: list[int], content: list[int], tokenizer: Tokenizer, scoring: str, secret: str = "") -> Wording:
    text = _text(content, tokenizer)
    return Wording(
        tuple(content), text, _decode(_as_lamp(ids, tokenizer), tokenizer) if scoring == "lamp" else text, secret
    )


def _content(ids: list[int], tokenizer: Tokenizer, lost: int) -> list[int]:
    special = set(tokenizer.all_special_ids)
    unknown = _unknown(tokenizer)
    return [lost if i == unknown else i for i in ids if i == unknown or i not in special]


def _unknown(tokenizer: Tokenizer) -> int | None:
    """Return the id of the unknown token; None if another special token has the same id, as in GPT-2."""
    names = ("pad_token_id", "sep_token_id", "cls_token_id", "bos_token_id", "eos_token_id")
    unknown = tokenizer.unk_token_id
    return None if unknown in [getattr(tokenizer, name, None) for name in names] else unknown


def _text(ids: list[int], tokenizer: Tokenizer) -> str:
    """Return the text of the ids, with a separate word for each lost one."""
    parts: list[str] = []
    run: list[int] = []
    for token in ids:
        if token in _WORDS:
            parts += [_decode(run, tokenizer), _WORDS[token]]
            run = []
        else:
            run.append(token)
    return " ".join([*parts, _decode(run, tokenizer)]) if parts else _decode(run, tokenizer)


def _decode(ids: list[int], tokenizer: Tokenizer) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def _drops(text: str, ids: list[int], tokenizer: Tokenizer) -> bool:
    """Return whether characters of a text are in none of its tokens, as with a vocabulary without an unknown token.

    Characters that the tokenizer's normaliser removes (accents, control characters) and spaces are not counted.
    """
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    normalised = text if normalizer is None else str(normalizer.normalize_str(text))
    # The shorter one: a normaliser may also write a character as several (its bytes, say), which decoding undoes.
    return _letters(_decode(ids, tokenizer)) < min(_letters(text), _letters(normalised))


def _letters(text: str) -> int:
    return len("".join(text.replace(_SPACE, " ").split()))


def _as_lamp(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    # LAMP cuts each sentence after its last separator, which also removes the padding behind it.
    separator = tokenizer.sep_token_id
    if separator is not None and separator in ids:
        ids = ids[: len(ids) - ids[::-1].index(separator)]
    return [i for i in ids if i != tokenizer.pad_token_id]
