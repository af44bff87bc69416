"""Private text made safe to show: hostile characters made visible, matching words marked, words left out.

Recovered text is written by whoever wrote the private data. It may hold markup, direction marks or control characters;
`clean` makes these visible, and the page escapes the rest.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST_WORD = 48
"""Characters of a word that are shown; a longer one is cut, and the number of the others is said."""

MOST_WORDS = 400
"""Words of a sentence that are compared and shown."""

SHOWN_BY_CODE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories whose characters are shown by their code: controls, direction marks, halves of characters."""

MOST_MARKS = 3
"""Combining marks on one letter; more than this climb over the lines above."""


def clean(text: str) -> str:
    """Return a text whose every character has a visible shape and stays in its line."""
    shown: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks > MOST_MARKS:
            continue
        if character in "\t\n\r\v\f ":
            shown.append(" ")
        elif unicodedata.category(character) in SHOWN_BY_CODE:
            shown.append(
                f"\N{MATHEMATICAL LEFT ANGLE BRACKET}U+{ord(character):04X}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
            )
        else:
            shown.append(character)
    return "".join(shown)


def cleaned(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    """Return a JSON value with every text in it cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value


@dataclass(frozen=True)
class MarkedWords:
    """The words of a sentence, each with whether it is also in the other sentence, in the same order."""

    words: tuple[str, ...]
    matched: tuple[bool, ...]

    @property
    def pattern(self) -> str:
        """One digit for each word: 1 if it matched."""
        return "".join("1" if hit else "0" for hit in self.matched)


def split_words(text: str) -> tuple[str, ...]:
    """Return the words of a cleaned text, the longest ones cut."""
    return tuple(_cut(word) for word in clean(text).split()[:MOST_WORDS])


def mark_matches(reference: str, reconstruction: str) -> tuple[MarkedWords, MarkedWords]:
    """Return both sentences with the words of their longest common subsequence marked, whatever their case.

    Words are compared by their runs of letters and digits, as in ROUGE: a tokenizer may return `it ' s` for `it's`.
    Punctuation that stands alone goes with the word before it.
    """
    truth, guess = split_words(reference), split_words(reconstruction)
    left, right = [list(map(_runs, words)) for words in (truth, guess)]
    pairs = _common([run for word in left for run in word], [run for word in right for run in word])
    return (
        MarkedWords(truth, _all_matched(left, {i for i, _ in pairs})),
        MarkedWords(guess, _all_matched(right, {j for _, j in pairs})),
    )


def _all_matched(words: Sequence[Sequence[str]], found: set[int]) -> tuple[bool, ...]:
    """Return for each word whether all its runs were found, counted over all words."""
    marks: list[bool] = []
    start = 0
    for runs in words:
        own = range(start, start + len(runs))
        start += len(runs)
        marks.append(all(number in found for number in own) if runs else bool(marks and marks[-1]))
    return tuple(marks)


def sentence_record(
    reference: str | None, reconstruction: str | None, scores: Mapping[str, float] | None, *, reveal: bool = False
) -> dict[str, Any]:
    """Return what a record holds of one sentence: lengths and which words matched; the words only if revealed.

    Args:
        reference: the private sentence; None if nobody here knows it.
        reconstruction: what was read of it; None for nothing.
        scores: of the reconstruction, from 0 to 100; None without a reference.
        reveal: also hold the words themselves.
    """
    truth, guess = mark_matches(reference or "", reconstruction or "")
    record: dict[str, Any] = {
        "words": None if reference is None else len(truth.words),
        "matched": None if reference is None else truth.pattern,
        "read_words": len(guess.words),
        "read_matched": guess.pattern if reference is not None else None,
        "scores": None if scores is None else {name: round(float(value), 2) for name, value in scores.items()},
    }
    if reveal:
        record |= {"reference": None if reference is None else list(truth.words), "read": list(guess.words)}
    return record


def _cut(word: str) -> str:
    if len(word) <= LONGEST_WORD:
        return word
    return f"{word[:LONGEST_WORD]}\N{HORIZONTAL ELLIPSIS}(+{len(word) - LONGEST_WORD})"


def _runs(word: str) -> list[str]:
    """Return the runs of letters and digits of a word; other signs as they are, and nothing for plain punctuation."""
    runs = re.findall(r"[^\W_]+", word.casefold())
    return runs or ([] if all(character in string.punctuation for character in word) else [word])


def _common(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of the longest common subsequence."""
    lengths = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in range(len(left) - 1, -1, -1):
        for j in range(len(right) - 1, -1, -1):
            longer = max(lengths[i + 1][j], lengths[i][j + 1])
            lengths[i][j] = lengths[i + 1][j + 1] + 1 if left[i] == right[j] else longer
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] == right[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs
