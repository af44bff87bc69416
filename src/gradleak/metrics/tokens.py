"""Score reconstructed token ids against the true ones: the entry point of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar

from gradleak.errors import GradleakError, unknown_name
from gradleak.metrics.align import ALIGNMENTS, align
from gradleak.metrics.rouge import rouge
from gradleak.metrics.scores import ZERO, BatchScores, Scores
from gradleak.metrics.wording import Tokenizer, Wording, read_guess, read_truth

Alignment: TypeAlias = Literal["assignment", "best"]
Scoring: TypeAlias = Literal["plain", "lamp"]
Item = TypeVar("Item")

SCORINGS = ("plain", "lamp")


def score_tokens(
    reconstruction: Sequence[Sequence[int]],
    references: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    *,
    texts: Sequence[str] | None = None,
    copies: Sequence[int] = (),
    alignment: Alignment = "assignment",
    scoring: Scoring = "plain",
) -> BatchScores:
    """Score reconstructed sentences against the true ones.

    Special tokens and padding do not count, except the unknown token, which is never correct: in a
    reference nothing matches it, and in a reconstruction it is a wrong token.

    With `scoring="lamp"` ROUGE counts `[CLS]`, `[SEP]` and `[UNK]` as words like any other, and each
    reference is a separate secret, as in LAMP's published code. Use it to compare with LAMP's own table
    and for nothing else. Exact match and token accuracy are the same as with "plain".

    Args:
        reconstruction: Token ids of the reconstructed sentences, in any order and number.
        references: Token ids of the true sentences.
        tokenizer: The tokenizer of both.
        texts: The true sentences themselves. Without them only unknown tokens tell what the tokenizer lost.
        copies: How often each reconstructed sentence was found; once each if empty.
        alignment: "assignment" uses each reconstruction once for each copy, with the largest sum of
            ROUGE-1 over the batch; "best" matches each reference to the nearest reconstruction. Equal
            references are one secret and share what was found of it.
        scoring: "plain", or "lamp" for ROUGE as in LAMP's published code.

    Returns:
        One entry per reference; a reference left without a reconstruction scores zero.

    Raises:
        GradleakError: If there are no references, a name is unknown, or lengths differ.
    """
    if alignment not in ALIGNMENTS:
        raise unknown_name("alignment", alignment, ALIGNMENTS)
    if scoring not in SCORINGS:
        raise unknown_name("scoring", scoring, SCORINGS)
    if not references:
        raise GradleakError("there is nothing to score against: no reference sentences were given")
    for name, values, count in (("texts", texts, len(references)), ("copies", copies or None, len(reconstruction))):
        if values is not None and len(values) != count:
            raise GradleakError(f"{len(values)} {name} do not fit {count} sentences: one each is needed")

    found = [read_guess(ids, tokenizer, scoring) for ids in reconstruction]
    true = [
        read_truth(ids, tokenizer, scoring, texts[place] if texts is not None else None)
        for place, ids in enumerate(references)
    ]
    guesses, numbers = _distinct(found)
    secrets, rows = _distinct(true) if scoring == "plain" else (true, list(range(len(true))))
    members: list[list[int]] = [[] for _ in guesses]
    for place, number in enumerate(numbers):
        members[number] += [place] * (max(1, copies[place]) if copies else 1)
    table = [[_score(guess, truth) for guess in guesses] for truth in secrets]
    chosen, matches = align(table, rows, members, alignment)
    assigned = {guesses[number].text for number in chosen if number is not None}
    returned = {guess.text for guess in guesses}
    return BatchScores(
        sentences=tuple(
            ZERO if number is None else table[row][number] for row, number in zip(rows, chosen, strict=True)
        ),
        matches=matches,
        returned=len(returned),
        right=len({guess.text for number, guess in enumerate(guesses) if any(row[number].exact for row in table)}),
        surplus=min(len(returned - assigned), max(0, sum(map(len, members)) - len(references))),
        unrepresentable=tuple(place for place, truth in enumerate(true) if not truth.whole),
    )


def _distinct(items: Sequence[Item]) -> tuple[list[Item], list[int]]:
    """Return the distinct items in order, and for each item its index among them."""
    numbers: dict[Item, int] = {}
    places = [numbers.setdefault(item, len(numbers)) for item in items]
    return list(numbers), places


def _score(guess: Wording, truth: Wording) -> Scores:
    rouge1, rouge2, longest = rouge(guess.rouge_text, truth.rouge_text)
    return Scores(
        rouge1=rouge1,
        rouge2=rouge2,
        rougeL=longest,
        exact=100.0 if guess.text == truth.text else 0.0,
        token_accuracy=_token_accuracy(guess.ids, truth.ids),
    )


def _token_accuracy(guess: Sequence[int], truth: Sequence[int]) -> float:
    longest = max(len(guess), len(truth))
    if longest == 0:
        return 100.0
    # Positions that the shorter sentence lacks count as wrong.
    right = sum(a == b for a, b in zip(guess, truth, strict=False))
    return 100.0 * right / longest
