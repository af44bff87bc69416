"""EDR: the words are read from the embeddings' gradient, their order is annealed, and misfits are moved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradleak.attacks.adjustment import Judge, Text, adjust, only_one, open_places
from gradleak.attacks.base import Attack, Finding, Victim, register
from gradleak.attacks.lexemes import Lexeme, LexemeMoves, draw_lexemes, fuse, pieces_of_words
from gradleak.attacks.places import read_places, shows_places
from gradleak.attacks.puzzle import Puzzle, likeliest_labels, puzzles
from gradleak.attacks.trail import Trail
from gradleak.errors import GradleakError
from gradleak.exchange import Reporter
from gradleak.matching import L2L1, Cosine, Distance, Matcher
from gradleak.search import Annealed, Schedule, anneal
from gradleak.targets import Target

# A gradient that differs by less than this share is the same but for rounding; wrong orders differ ten times as much.
SAME = 3e-3
# Section 5.1: temperature, cooling rate and iterations by batch size.
PUBLISHED = {1: (300.0, 0.95, 3_000), 2: (400.0, 0.99, 4_000), 4: (500.0, 0.99, 5_000)}
LEAST = {"starts": 1, "adjusted": 1, "adjustments": 0, "attempts": 1, "lengths_tried": 1}


@register
@dataclass(frozen=True, kw_only=True)
class Edr(Attack):
    """EDR (ACL submission, authors not named): TokenFusion, annealing with a tabu list, gradient analysis.

    Section 4.1: tokens are the rows of the word embeddings' gradient that are not zero; pieces are fused to words.
    Section 4.2, algorithm 1: random sentences of them are annealed, judged by the cosine for one sentence and by
    L2 + α · L1 for a batch. Section 4.3: of the best, tokens whose row differs from the observed one are moved, and
    sentences whose rows agree are left alone. Section 3.5: what is not yet right may be attacked again (`attempts`).

    Temperature, cooling rate and iterations are those of section 5.1 unless they are set. The paper does not say how
    many starts there are, how long the tabu list is, how a misfit is moved, nor α (LAMP's is taken).

    `positions` is not the paper's: it reads the order from the position embeddings' gradient, where it was sent.
    """

    name: ClassVar[str] = "edr"
    paper: ClassVar[str] = "EDR: Data Reconstruction Attack Exploiting Word Embedding by Metaheuristic (ACL submission)"
    needs: ClassVar[tuple[str, ...]] = ("word-embedding gradients", "gradients of layers")
    classifiers_only: ClassVar[bool] = True  # a language model's output shares the word embeddings: all rows are used
    assumes: ClassVar[tuple[str, ...]] = ("labels", "lengths")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "fast": {"positions": True, "distance": "cosine", "attempts": 1, "iterations": 1_000.0},
    }

    temperature: float | None = None
    cooling: float | None = None
    iterations: float | None = None
    failures: float = 0.1
    starts: int = 4
    tabu: int = 500
    distance: Literal["published", "cosine", "l2+l1"] = "published"
    alpha: float = 0.01
    adjusted: int = 2
    adjustments: int = 100
    attempts: int = 2
    positions: bool = False
    lengths_tried: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise GradleakError(f"{name} must be at least {least}, not {getattr(self, name)}")
        self.schedule(1)

    def schedule(self, sequences: int) -> Schedule:
        """Return how a batch of that size is annealed; a size that was not published as the next larger one."""
        size = next((size for size in PUBLISHED if size >= sequences), max(PUBLISHED))
        temperature, cooling, iterations = PUBLISHED[size]
        return Schedule(
            temperature=temperature if self.temperature is None else self.temperature,
            cooling=cooling if self.cooling is None else self.cooling,
            iterations=iterations if self.iterations is None else int(self.iterations),
            failures=self.failures,
            tabu=self.tabu,
        )

    def judged_by(self, sequences: int) -> Distance:
        """Return the distance: as published, equation 2 for one sentence and equation 3 for a batch."""
        if self.distance == "cosine" or (self.distance == "published" and sequences == 1):
            return Cosine()
        return L2L1(alpha=self.alpha, squared=False)

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Search for one victim's text after the other's: each has a vocabulary of its own."""
        findings = []
        for number, victim in enumerate(victims):
            frames, notes = puzzles(target, victim, self.lengths_tried)
            iterations = self.schedule(frames[0].sequences).iterations
            steps = len(frames) * (self.attempts * iterations + (self.attempts + 1) * self.adjusted)
            finding = self._reconstruct(target, victim, frames, Trail(reporter, number, len(victims), steps))
            findings.append(replace(finding, notes=(*notes, *finding.notes)))
        return findings

    def _reconstruct(self, target: Target, victim: Victim, frames: Sequence[Puzzle], trail: Trail) -> Finding:
        """Try lengths until a text gives the observed gradient; return the nearest."""
        labels, notes = likeliest_labels(target, victim, frames[0])
        matcher = Matcher(target, [victim.gradient], self.judged_by(frames[0].sequences))
        enough = self._enough(matcher, victim.gradient)
        found: list[tuple[Puzzle, Text]] = []
        for puzzle in frames:
            judge = Judge(puzzle, labels, matcher, victim.gradient, enough)
            found.append((puzzle, self._search(_Case.of(judge, victim.generator, trail))))
            if found[-1][1].loss <= enough:
                break
        trail.finish()
        puzzle, text = min(found, key=lambda pair: pair[1].loss)
        return Finding(puzzle.sentences(text.solution), labels.tolist(), text.loss, trail.glimpses, tuple(notes))

    def _search(self, case: _Case) -> Text:
        """Anneal and adjust; then again what is not yet right, as long as there are attempts."""
        best, is_open = self._first(case), torch.ones_like(case.moves.sentences, dtype=torch.bool)
        for _ in range(self.attempts):
            if best.loss <= case.judge.enough or not bool(is_open.any()):
                break
            best = min(best, self._adjusted(case, self._annealed(case, best, is_open)), key=lambda text: text.loss)
            is_open = open_places(case.judge.misfits(best.solution), best.solution, case.moves.sentences)
        return best

    def _first(self, case: _Case) -> Text:
        """Return a random text, or what the position embeddings' gradient says about the order, adjusted."""
        judge = case.judge
        if self.positions and shows_places(judge.puzzle.target, judge.gradient):
            read = read_places(judge.puzzle, judge.gradient, self.starts, case.generator)
            return self._adjusted(case, Annealed(read, judge.score(read)))
        solution = self._population(case)[0]
        text = Text(solution, float(judge.score(solution[None])))
        case.trail.step(judge.puzzle, *text)
        return text

    def _annealed(self, case: _Case, text: Text, is_open: Tensor) -> Annealed:
        """Section 4.2: anneal several starts side by side; sentences that are right already stay as they are."""
        judge = case.judge

        def whole(states: Tensor) -> Tensor:
            solutions = text.solution.repeat(len(states), 1)
            solutions[:, is_open] = states
            return solutions

        def watch(_: int, best: Annealed) -> None:
            nearest = best.losses[0].argmin()
            case.trail.step(judge.puzzle, whole(best.states[:, nearest])[0], float(best.losses[0, nearest]))

        # The sentences that are left keep their words; heat puts these in another order.
        starts = self._population(case) if bool(is_open.all()) else text.solution[is_open].repeat(self.starts, 1)
        judge.hold(text.solution, only_one(case.moves.sentences[is_open]))
        found = anneal(
            starts[None],
            lambda states: judge.score(whole(states[0]))[None],
            case.moves.part(is_open),
            self.schedule(judge.puzzle.sequences),
            [case.generator],
            enough=judge.enough,
            span=2.0 if isinstance(judge.matcher.distance, Cosine) else math.inf,
            watch=watch,
        )
        judge.hold(text.solution, None)
        return Annealed(whole(found.states[0]), found.losses[0])

    def _adjusted(self, case: _Case, found: Annealed) -> Text:
        """Section 4.3: move what does not fit in the best texts that were found, and return the best of them."""
        texts: list[Text] = []
        for number in found.losses.argsort()[: self.adjusted].tolist():
            start = Text(found.states[number], float(found.losses[number]))
            texts.append(adjust(case.judge, case.moves, start, self.adjustments))
            case.trail.step(case.judge.puzzle, *texts[-1])
            if texts[-1].loss <= case.judge.enough:
                break
        return min(texts, key=lambda text: text.loss)

    def _population(self, case: _Case) -> Tensor:
        """Section 4.2: random texts of candidate words `[starts, places]`."""
        puzzle = case.judge.puzzle
        tokens = puzzle.vocabulary.tolist()
        drawn = [draw_lexemes(case.lexemes, tokens, puzzle.places, case.generator) for _ in range(self.starts)]
        number = {token: index for index, token in enumerate(tokens)}
        return torch.tensor([[number[token] for word in words for token in word] for words in drawn])

    def _enough(self, matcher: Matcher, gradient: Mapping[str, Tensor]) -> float:
        """Return the distance below which two gradients are the same but for rounding."""
        if isinstance(matcher.distance, Cosine):
            return SAME**2 / 2
        tensors = [gradient[name].double() for name in matcher.parameters]
        return SAME * sum(float(tensor.norm() + self.alpha * tensor.abs().sum()) for tensor in tensors)


@dataclass(frozen=True)
class _Case:
    """One puzzle under attack: who judges, what moves, what words there are, and who is told."""

    judge: Judge
    moves: LexemeMoves
    lexemes: Sequence[Lexeme]
    generator: torch.Generator
    trail: Trail

    @classmethod
    def of(cls, judge: Judge, generator: torch.Generator, trail: Trail) -> _Case:
        puzzle = judge.puzzle
        inside = puzzle.slots.free[0, 0].nonzero()[:, 0].cpu()
        outside = torch.full((puzzle.places - len(inside),), puzzle.sequences)  # a place of no sentence
        pieces = pieces_of_words(puzzle.target, puzzle.vocabulary)
        moves = LexemeMoves(pieces, torch.cat([inside, outside]), puzzle.places > puzzle.kinds)
        return cls(judge, moves, fuse(puzzle.target, puzzle.vocabulary.tolist()), generator, trail)
