"""Drafts of a sentence, and the changes that turn one draft into another.

The words of a draft have names, which they keep when others are inserted, removed or moved. A change refers to names,
so it means the same in every draft that still has them: its last gain predicts its next, and several changes can be
applied at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, NamedTuple

START = 0
"""The name of the position before the first word."""

_names = count(START + 1)


class Change(NamedTuple):
    """A change of a draft.

    Attributes:
        kind: insert a word, replace one, delete one, move one, or swap two.
        name: the word that is changed; for an insertion, the word before it.
        other: the new token; for a move, the name of the word to move after; for a swap, that of the other word.
    """

    kind: Literal["insert", "replace", "delete", "move", "swap"]
    name: int
    other: int = 0


@dataclass(frozen=True)
class Draft:
    """The words of a sentence, without the tokens that begin and end every text.

    Attributes:
        tokens: their ids.
        names: their names.
    """

    tokens: tuple[int, ...]
    names: tuple[int, ...]

    @classmethod
    def of(cls, tokens: Iterable[int]) -> Draft:
        """Give names to words."""
        tokens = tuple(tokens)
        return cls(tokens, tuple(next(_names) for _ in tokens))

    def after(self, changes: Iterable[Change]) -> Draft:
        """Return the draft after changes; those that refer to words no longer there are skipped."""
        words = list(zip(self.names, self.tokens, strict=True))
        for change in changes:
            words = _changed(words, change)
        return Draft(tuple(token for _, token in words), tuple(name for name, _ in words))


def _changed(words: list[tuple[int, int]], change: Change) -> list[tuple[int, int]]:
    """Return words (name, token) after a change, unchanged if it does not apply."""
    places = {name: place for place, (name, _) in enumerate(words)} | {START: -1}
    kind, name, other = change
    if name not in places or (kind in ("move", "swap") and other not in places):
        return words
    place = places[name]
    if kind == "insert":
        return [*words[: place + 1], (next(_names), other), *words[place + 1 :]]
    if kind == "replace":
        return [*words[:place], (next(_names), other), *words[place + 1 :]]
    if kind == "swap":
        words = list(words)
        words[place], words[places[other]] = words[places[other]], words[place]
        return words
    rest = [word for word in words if word[0] != name]
    if kind == "delete":
        return rest
    at = 1 + next((n for n, (named, _) in enumerate(rest) if named == other), -1)
    return [*rest[:at], words[place], *rest[at:]]


def possible_changes(
    draft: Draft, tokens: Iterable[int], suggested: Sequence[Iterable[int]], *, resize: bool
) -> list[Change]:
    """Return all changes of a draft.

    Args:
        draft: the draft.
        tokens: the words that are tried everywhere.
        suggested: further words for the first position, the second, and so on, to the one after the last.
        resize: whether words may be inserted and deleted.
    """
    everywhere = set(tokens)
    names = (START, *draft.names)
    changes: list[Change] = []
    for place, before in enumerate(names):
        tried = everywhere | set(suggested[place])
        if resize:
            changes += [Change("insert", before, token) for token in tried]
        if place < len(draft.names):
            there = draft.tokens[place]
            changes += [Change("replace", names[place + 1], token) for token in tried if token != there]
    for number, name in enumerate(draft.names):
        if resize and len(draft.names) > 1:
            changes.append(Change("delete", name))
        changes += [Change("swap", name, other) for other in draft.names[number + 1 :]]
        changes += [Change("move", name, other) for other in names if other not in (name, names[number])]
    return changes
