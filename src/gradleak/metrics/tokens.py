"""From token ids to scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from gradleak.errors import GradleakError, unknown_name
from gradleak.metrics.align import ALIGNMENTS, preferences
from gradleak.metrics.rouge import rouge
from gradleak.metrics.scores import ZERO, BatchScores, Scores

Alignment: TypeAlias = Literal["assignment", "best"]
Scoring: TypeAlias = Literal["plain", "lamp"]


class Tokenizer(Protocol):
    """What scoring asks of a tokenizer; those of Hugging Face have it."""

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

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str | list[str]:
        """Return the text of the ids."""
        ...


@dataclass(frozen=True)
class _Sentence:
    ids: list[int]  # without special tokens
    text: str  # their text
    rouge_text: str  # the text that ROUGE counts


def score_tokens(
    reconstruction: Sequence[Sequence[int]],
    references: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    *,
    alignment: Alignment = "assignment",
    scoring: Scoring = "plain",
) -> BatchScores:
    """Score reconstructed sentences against the true ones.

    Special tokens and padding never count, except with `scoring="lamp"`: the published code of LAMP
    leaves `[CLS]` and `[SEP]` in the text, where ROUGE takes them for words that are always right.
    Use it to compare with LAMP's own table and for nothing else.

    Args:
        reconstruction: Token ids of the reconstructed sentences, in any order and number.
        references: Token ids of the true sentences.
        tokenizer: The tokenizer of both.
        alignment: "assignment" uses each reconstruction once so that ROUGE-1 is largest over the
            batch; "best" lets each reference take the reconstruction nearest to it.
        scoring: "plain", or "lamp" for ROUGE as LAMP's published code counts it.

    Returns:
        One entry per reference; a reference left without a reconstruction scores zero.

    Raises:
        GradleakError: If there are no references, or a name is unknown.
    """
    if alignment not in ALIGNMENTS:
        raise unknown_name("alignment", alignment, ALIGNMENTS)
    if scoring not in _ROUGE_IDS:
        raise unknown_name("scoring", scoring, _ROUGE_IDS)
    if not references:
        raise GradleakError("there is nothing to score against: no reference sentences were given")

    found = [_sentence(ids, tokenizer, scoring) for ids in reconstruction]
    true = [_sentence(ids, tokenizer, scoring) for ids in references]
    table = [[_score(guess, truth) for guess in found] for truth in true]
    matches = ALIGNMENTS[alignment](preferences(table))
    sentences = tuple(ZERO if match is None else row[match] for row, match in zip(table, matches, strict=True))
    return BatchScores(sentences, matches)


def _score(guess: _Sentence, truth: _Sentence) -> Scores:
    rouge1, rouge2, longest = rouge(guess.rouge_text, truth.rouge_text)
    return Scores(
        rouge1=rouge1,
        rouge2=rouge2,
        rougeL=longest,
        exact=100.0 if guess.text == truth.text else 0.0,
        token_accuracy=_token_accuracy(guess.ids, truth.ids),
    )


def _token_accuracy(guess: list[int], truth: list[int]) -> float:
    longest = max(len(guess), len(truth))
    if longest == 0:
        return 100.0
    # A shorter sentence ends where it ends: the positions it lacks count as wrong.
    right = sum(a == b for a, b in zip(guess, truth, strict=False))
    return 100.0 * right / longest


def _sentence(ids: Sequence[int], tokenizer: Tokenizer, scoring: str) -> _Sentence:
    plain = [int(i) for i in ids]  # entries of a tensor are welcome, too
    words = _without_special(plain, tokenizer)
    return _Sentence(
        ids=words,
        text=_text(words, tokenizer),
        rouge_text=_text(_ROUGE_IDS[scoring](plain, tokenizer), tokenizer),
    )


def _text(ids: list[int], tokenizer: Tokenizer) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def _without_special(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    special = set(tokenizer.all_special_ids)
    return [i for i in ids if i not in special]


def _as_lamp(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    # LAMP cuts each sentence after its last separator, which also removes the padding behind it.
    separator = tokenizer.sep_token_id
    if separator is not None and separator in ids:
        ids = ids[: len(ids) - ids[::-1].index(separator)]
    return [i for i in ids if i != tokenizer.pad_token_id]


_ROUGE_IDS = {"plain": _without_special, "lamp": _as_lamp}
