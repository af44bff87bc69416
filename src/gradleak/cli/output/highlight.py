"""Reconstructed text with its correct tokens in colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

RIGHT, ELSEWHERE = "bold green", "yellow"


def legend() -> Text:
    """Return a line that explains the colours."""
    from rich.text import Text

    return Text.assemble(("green", RIGHT), " right token, ", ("yellow", ELSEWHERE), " right token at another place")


def matched_tokens(tokenizer: Any, ids: Sequence[int], references: Sequence[str]) -> Text:  # noqa: ANN401
    """Return a reconstruction as text: correct tokens in green, tokens that belong to another position in yellow.

    Args:
        tokenizer: the target's tokenizer.
        ids: the reconstructed token ids; special tokens are omitted.
        references: the private texts; the one with the most tokens in common is compared.
    """
    from rich.text import Text

    special = set(tokenizer.all_special_ids)
    found = [i for i in ids if i not in special]
    truths = [[i for i in tokenizer(text)["input_ids"] if i not in special] for text in references]
    truth = max(truths, key=lambda row: len(set(row) & set(found)))
    text = Text()
    for place, (token, piece) in enumerate(zip(found, pieces(tokenizer, found), strict=True)):
        right = place < len(truth) and truth[place] == token
        text.append(piece, style=RIGHT if right else ELSEWHERE if token in truth else None)
    return text


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:  # noqa: ANN401
    """Return the part of the decoded text that each token adds."""
    parts: list[str] = []
    before = ""
    for count in range(1, len(ids) + 1):
        text = str(tokenizer.decode(list(ids[:count])))
        if not text.startswith(before):  # the tokenizer changed earlier text, such as the space before a comma
            return [f"{' ' if number else ''}{tokenizer.decode([i])}" for number, i in enumerate(ids)]
        parts.append(text[len(before) :])
        before = text
    return parts
