"""Victims whose texts are searched side by side: what each leaves to be found, and how far all are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.assignment.history import Trail
from gradleak.assignment.problem import Puzzle, likeliest_labels, puzzles
from gradleak.attacks.edr.token_fusion import Lexeme, Words, fuse, pieces_of_words
from gradleak.exchange import Deadline, Reporter, Victim
from gradleak.targets import Target

Look = Callable[[], tuple[float, tuple[str, ...]]]


@dataclass(frozen=True)
class Quest:
    """A victim, the puzzles that its update leaves, its labels, and notes on what was not told."""

    victim: Victim
    puzzles: Sequence[Puzzle]
    labels: Tensor
    notes: tuple[str, ...]

    @classmethod
    def of(cls, target: Target, victim: Victim, lengths_tried: int, deadline: Deadline | None = None) -> Quest:
        """Read from an update what can be read; as many lengths are tried at most."""
        frames, notes = puzzles(target, victim, lengths_tried)
        labels, more = likeliest_labels(target, victim, frames[0], deadline)
        return cls(victim, frames, labels, (*notes, *more))


@dataclass(frozen=True)
class Case:
    """One puzzle under attack: what its words are, when it is solved, and who is told."""

    victim: Victim
    puzzle: Puzzle
    words: Words
    lexemes: Sequence[Lexeme]
    enough: float
    trail: Trail

    @classmethod
    def of(cls, quest: Quest, trail: Trail, number: int, enough: float) -> Case:
        """Return one of a victim's puzzles, by its number."""
        puzzle = quest.puzzles[number]
        inside = puzzle.slots.free[0, 0].nonzero()[:, 0].cpu()
        outside = torch.full((puzzle.places - len(inside),), puzzle.sequences)  # a place of no sentence
        pieces = pieces_of_words(puzzle.target, puzzle.vocabulary)
        words = Words(pieces, torch.cat([inside, outside]), puzzle.places > puzzle.kinds)
        lexemes = fuse(puzzle.target, puzzle.vocabulary.tolist(), trail.deadline)
        return cls(quest.victim, puzzle, words, lexemes, enough, trail)


class Progress:
    """Adds up the steps of victims that are attacked side by side.

    Args:
        reporter: told at every step of anyone.
        totals: the most steps that each victim's search may take.
    """

    def __init__(self, reporter: Reporter, totals: Sequence[int]) -> None:
        self.totals = totals
        self._reporter, self._done = reporter, [0] * len(totals)

    def of(self, number: int) -> Reporter:
        """Return who listens to one victim's search."""
        return _Share(self, number, self._reporter.deadline)

    def tell(self, number: int, step: int, look: Look) -> None:
        """Take note of how far one search is, and tell how far all are."""
        self._done[number] = step
        self._reporter(sum(self._done), sum(self.totals), look)


class _Share(Reporter):
    """One victim's part of the progress."""

    def __init__(self, progress: Progress, number: int, deadline: Deadline) -> None:
        super().__init__(deadline=deadline)
        self._progress, self._number = progress, number

    def __call__(self, step: int, total: int, look: Look) -> None:
        """Pass it on."""
        self._progress.tell(self._number, step, look)
