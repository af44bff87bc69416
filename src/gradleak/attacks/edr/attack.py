"""EDR: the words are read from the embeddings' gradient, their order is annealed, and misfits are moved."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradleak.assignment.history import Trail
from gradleak.assignment.position_sums import read_places, shows_places
from gradleak.assignment.problem import Puzzle
from gradleak.assignment.scoring import Judge, Scores, Search, padded, side_by_side
from gradleak.attacks.base import Attack, register
from gradleak.attacks.edr.annealing import Heat, Start
from gradleak.attacks.edr.state import Case, Progress, Quest
from gradleak.attacks.edr.token_adjustment import Text, adjust, open_places
from gradleak.attacks.edr.token_fusion import LexemeMoves, draw_lexemes
from gradleak.exchange import Finding, Knowledge, Reporter, Update, Victim
from gradleak.leakage.tokens import require_words
from gradleak.matching import L2L1, Cosine, Distance, Matcher, free_bytes
from gradleak.search import Annealed, Schedule, anneal
from gradleak.targets import Target

# A gradient that differs by less than this share is the same but for rounding; wrong orders differ ten times as much.
SAME = 3e-3
# Section 5.1: temperature, cooling rate and iterations by batch size.
PUBLISHED = {1: (300.0, 0.95, 3_000), 2: (400.0, 0.99, 4_000), 4: (500.0, 0.99, 5_000)}
# Victims of lengths up to each of these are attacked together: few groups keep a GPU busy, many leave out padding. On a
# CPU they take turns: leaving one out of a call would copy the gradients of all the others.
TOGETHER = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
ONE_BY_ONE = frozenset({"cpu"})
COPIES = 40  # room for so many copies of a gradient makes a place for one more victim


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

    `positions` is not the paper's, and preset `fast` therefore a part of gradleak's own Mosaic: it reads the order from
    the position embeddings' gradient, where it was sent.
    On a GPU victims of about the same length are attacked side by side.
    """

    name: ClassVar[str] = "edr"
    paper: ClassVar[str] = "EDR: Data Reconstruction Attack Exploiting Word Embedding by Metaheuristic (ACL submission)"
    needs: ClassVar[tuple[str, ...]] = ("word-embedding gradients", "gradients of layers")
    classifiers_only: ClassVar[bool] = True  # a language model's output shares the word embeddings: all rows are used
    assumes: ClassVar[tuple[str, ...]] = ("labels", "lengths")
    least: ClassVar[Mapping[str, float]] = {
        "starts": 1,
        "adjusted": 1,
        "adjustments": 0,
        "attempts": 1,
        "lengths_tried": 1,
    }
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
        self.schedule(1)

    def check(self, target: Target, update: Update, knowledge: Knowledge) -> None:
        """Raise a GradleakError if the attack cannot work on this update."""
        super().check(target, update, knowledge)
        require_words(self.name, target, update.tensors)

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

    def remarks(self) -> tuple[str, ...]:
        """Say what is not the paper's."""
        return ("edr:fast is gradleak's own mosaic, not EDR",) if self.positions else ()

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Search for the texts of victims of about the same length together."""
        quests = [Quest.of(target, victim, self.lengths_tried, reporter.deadline) for victim in victims]
        progress = Progress(reporter, [self._steps(quest) for quest in quests])
        trails = [Trail(progress.of(number), 0, 1, steps) for number, steps in enumerate(progress.totals)]
        found: dict[int, Finding] = {}
        for members in _groups(target, quests):
            some = [(quests[member], trails[member]) for member in members]
            found |= zip(members, self._reconstruct(target, some), strict=True)
        return [found[number] for number in range(len(victims))]

    def _side_by_side(self, target: Target) -> bool:
        return target.device.type not in ONE_BY_ONE

    def _steps(self, quest: Quest) -> int:
        iterations = self.schedule(quest.puzzles[0].sequences).iterations
        return len(quest.puzzles) * (self.attempts * iterations + (self.attempts + 1) * self.adjusted)

    def _reconstruct(self, target: Target, quests: Sequence[tuple[Quest, Trail]]) -> list[Finding]:
        """Try lengths until a text gives the observed gradient; return the nearest."""
        gradients = [quest.victim.gradient for quest, _ in quests]
        deadline = quests[0][1].deadline
        matcher = Matcher(target, gradients, self.judged_by(quests[0][0].puzzles[0].sequences)).until(deadline)
        enough = [self._enough(matcher, gradient) for gradient in gradients]
        found: list[list[tuple[Puzzle, Text]]] = [[] for _ in quests]
        for length in range(max(len(quest.puzzles) for quest, _ in quests)):
            going = [
                number
                for number, (quest, _) in enumerate(quests)
                if length < len(quest.puzzles) and all(text.loss > enough[number] for _, text in found[number])
            ]
            if not going or (length and deadline.passed):
                break
            cases = [Case.of(*quests[number], length, enough[number]) for number in going]
            judge = Judge(
                [case.puzzle for case in cases],
                torch.stack([quests[number][0].labels for number in going]),
                [gradients[number] for number in going],
                matcher.select(going),
            )
            for number, case, text in zip(going, cases, self._search(judge, cases), strict=True):
                found[number].append((case.puzzle, text))
        return [self._finding(*quest, own) for quest, own in zip(quests, found, strict=True)]

    def _finding(self, quest: Quest, trail: Trail, found: Sequence[tuple[Puzzle, Text]]) -> Finding:
        trail.finish()
        puzzle, text = min(found, key=lambda pair: pair[1].loss)
        return Finding(puzzle.sentences(text.solution), quest.labels.tolist(), text.loss, trail.snapshots, quest.notes)

    def _search(self, judge: Judge, cases: Sequence[Case]) -> list[Text]:
        """Anneal and adjust; then again what is not yet right, as long as there are attempts."""
        best = side_by_side(judge, {number: self._first(case) for number, case in enumerate(cases)})
        is_open = {number: torch.ones_like(case.words.sentences, dtype=torch.bool) for number, case in enumerate(cases)}
        for _ in range(self.attempts):
            going = [n for n, case in enumerate(cases) if best[n].loss > case.enough and bool(is_open[n].any())]
            if not going or cases[0].trail.deadline.passed:
                break
            starts = [Start(cases[n], best[n], is_open[n]) for n in going]
            annealed = self._annealed(judge.of(going), starts)
            searches = {n: self._adjusted(cases[n], found) for n, found in zip(going, annealed, strict=True)}
            for number, text in side_by_side(judge, searches).items():
                best[number] = min(best[number], text, key=lambda text: text.loss)
            if cases[0].trail.deadline.passed:
                break
            misfits = judge.of(going).misfits(torch.stack([padded(best[n].solution, judge.length) for n in going]))
            for number, own in zip(going, misfits, strict=True):
                solution = best[number].solution
                is_open[number] = open_places(own[: len(solution)], solution, cases[number].words.sentences)
        return [best[number] for number in range(len(cases))]

    def _first(self, case: Case) -> Search[Text]:
        """Return a random text, or what the position embeddings' gradient says about the order, adjusted."""
        gradient = case.victim.gradient
        if self.positions and shows_places(case.puzzle.target, gradient):
            read = read_places(case.puzzle, gradient, self.starts, case.victim.generator)
            losses = yield Scores(read)
            return (yield from self._adjusted(case, Annealed(read, losses), placed=True))
        solution = self._population(case)[0]
        losses = yield Scores(solution[None])
        text = Text(solution, float(losses))
        case.trail.step(case.puzzle, *text)
        return text

    def _annealed(self, judge: Judge, starts: Sequence[Start]) -> list[Annealed]:
        """Section 4.2: anneal several starts side by side; sentences that are right already stay as they are."""
        moves = LexemeMoves([start.case.words.part(start.is_open) for start in starts])
        # The sentences that are left keep their words; heat puts these in another order.
        states = [
            self._population(own.case) if bool(own.is_open.all()) else own.solution[own.is_open].repeat(self.starts, 1)
            for own in starts
        ]
        filled = [torch.nn.functional.pad(own, (0, moves.length - own.shape[1]), value=moves.filler) for own in states]
        heat = Heat(judge, starts, moves)
        found = anneal(
            torch.stack(filled),
            heat.score,
            heat,
            self.schedule(judge.sequences),
            [start.case.victim.generator for start in starts],
            enough=torch.tensor([start.case.enough for start in starts], dtype=torch.float64),
            span=2.0 if isinstance(self.judged_by(judge.sequences), Cosine) else math.inf,
            watch=heat.watch,
            leave=heat.leave,
            deadline=starts[0].case.trail.deadline,
        )
        return [
            Annealed(start.whole(states), losses)
            for start, states, losses in zip(starts, found.states, found.losses, strict=True)
        ]

    def _adjusted(self, case: Case, found: Annealed, *, placed: bool = False) -> Search[Text]:
        """Section 4.3: move what does not fit in the best texts that were found, and return the best of them."""
        sequences, deadline = case.puzzle.sequences, case.trail.deadline
        texts: list[Text] = []
        for number in found.losses.argsort()[: self.adjusted].tolist():
            start = Text(found.states[number], float(found.losses[number]))
            text = yield from adjust(
                case.words, start, self.adjustments, sequences, case.enough, placed=placed, deadline=deadline
            )
            texts.append(text)
            case.trail.step(case.puzzle, *text)
            if text.loss <= case.enough:
                break
        return min(texts, key=lambda text: text.loss)

    def _population(self, case: Case) -> Tensor:
        """Section 4.2: random texts of candidate words `[starts, places]`."""
        tokens = case.puzzle.vocabulary.tolist()
        generator = case.victim.generator
        drawn = [draw_lexemes(case.lexemes, tokens, case.puzzle.places, generator) for _ in range(self.starts)]
        number = {token: index for index, token in enumerate(tokens)}
        return torch.tensor([[number[token] for word in words for token in word] for words in drawn])

    def _enough(self, matcher: Matcher, gradient: Mapping[str, Tensor]) -> float:
        """Return the distance below which two gradients are the same but for rounding."""
        if isinstance(matcher.distance, Cosine):
            return SAME**2 / 2
        tensors = [gradient[name].double() for name in matcher.parameters]
        return SAME * sum(float(tensor.norm() + self.alpha * tensor.abs().sum()) for tensor in tensors)


def _groups(target: Target, quests: Sequence[Quest]) -> list[list[int]]:
    """Return which victims to attack together."""
    if target.device.type in ONE_BY_ONE:
        return [[number] for number in range(len(quests))]
    groups: dict[int, list[int]] = {}
    for number, quest in enumerate(quests):
        groups.setdefault(bisect_left(TOGETHER, quest.puzzles[0].slots.ids.shape[-1]), []).append(number)
    gradient = sum(tensor.nbytes for tensor in quests[0].victim.gradient.values())
    most = max(1, free_bytes(target.device) // (COPIES * gradient))
    return [members[first : first + most] for members in groups.values() for first in range(0, len(members), most)]
