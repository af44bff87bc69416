"""FET: the tokens from the embeddings' gradients, their order by a search over the text itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradleak.assignment.history import Trail
from gradleak.assignment.position_angles import read_grid
from gradleak.assignment.problem import Puzzle, likeliest_labels, puzzles
from gradleak.attacks.base import Attack, register
from gradleak.errors import GradleakError
from gradleak.exchange import Deadline, Finding, Knowledge, Reporter, Update, Victim
from gradleak.leakage.tokens import require_words
from gradleak.matching import DISTANCES, Matcher, select_parameters
from gradleak.matching.classifier_matcher import ClassifierMatcher
from gradleak.search import (
    Evolution,
    Exchanges,
    Features,
    Grid,
    GridFeatures,
    Learning,
    PooledMoves,
    Remembered,
    RowSurrogate,
    Surrogate,
    all_replacements,
    all_swaps,
    block_shifts,
    decode,
    encode,
    evolve,
    in_parts,
    likely_pairs,
    refine,
    search_by_learning,
    shifts,
)
from gradleak.targets import Target

# A gradient this near to the observed one, as a share of its size, is the same but for rounding. Wrong orders are a
# hundred times farther away.
SAME = {"classifier": 1e-4, "all": 1e-2}
EFFORT = 80  # of a search by learning, for each place: random solutions to start from, and steps of annealing
# Tokens at places and pairs of tokens that a search by learning tells apart at most: its matrices have as many rows.
LEARNABLE = 8_000
LEARNT_PER_SECOND = 5e8  # of the time left, counting a round of learning from n of them as n³
FRAMES = 256  # possibilities that are kept where several explain which words stand at which place
# How words whose places are known are put into sentences.
ARRANGED = Learning(first=300, asked=100, patience=6, chains=256)
EXCHANGES = 40  # steps of annealing for each place and each sentence but one
LEAST = {
    "population": 2,
    "generations": 0,
    "patience": 1,
    "tournament": 1,
    "hall_of_fame": 1,
    "iterations": 0,
    "block_every": 1,
    "lengths_tried": 1,
    "attempts": 1,
    "pairs": 0,
    "rounds": 0,
}


@register
@dataclass(frozen=True, kw_only=True)
class Fet(Attack):
    """FET (Gao et al., COLING 2025), algorithm 1: genetic exploration, then exhaustive fine-tuning.

    Hyperparameters are those of section 5.1; batches have twice the population and 50 iterations (table 3), unless
    `population` and `iterations` say otherwise. Ablations of table 4: `iterations=0` (exploration alone),
    `generations=0` (fine-tuning alone), `layers=all` (the gradients of all layers).

    What the paper leaves open, and where this differs knowingly: crossing exchanges two genes of a pair on average and
    mutating moves one; what was scored once is not scored again; "d = 0" means zero but for rounding; the nearest
    solution on the way is returned, not the last; a batch whose lengths are not told is searched with empty places
    among its tokens.

    Preset `thorough` is not FET, but a part of gradleak's own Mosaic: `rounds` of search by learning explore in place
    of the genetic search; fine-tuning shifts blocks in every third iteration, and tries `pairs` of moves, those that
    should come nearest by what each does alone; and there are more `attempts` where none ended at d = 0. It also reads
    from the gradient of the `positions`' embeddings which words stand at each place (`columns.py`), so that only the
    sentence of each is left to be searched; the paper reads the length from it, and no more.
    """

    name: ClassVar[str] = "fet"
    paper: ClassVar[str] = "Gao et al. 2025, Gradient Inversion Attack in Federated Learning: Exposing Text Data"
    needs: ClassVar[tuple[str, ...]] = ("word-embedding gradients", "classifier gradients")
    classifiers_only: ClassVar[bool] = True  # a language model's output shares the word embeddings: all rows are used
    assumes: ClassVar[tuple[str, ...]] = ("labels",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "fast": {"population": 50, "generations": 50, "iterations": 10},
        "thorough": {
            "positions": True,
            "rounds": 40,
            "block_every": 3,
            "pairs": 500,
            "iterations": 6,
            "attempts": 2,
        },
    }

    population: int | None = None
    generations: int = 100
    patience: int = 10
    tournament: int = 2
    crossover: float = 0.9
    mutation: float = 0.1
    hall_of_fame: int = 5
    iterations: int | None = None
    block_every: int = 5
    layers: Literal["classifier", "all"] = "classifier"
    distance: Literal["l2", "l1", "cosine"] = "l2"
    lengths_tried: int = 8
    attempts: int = 1
    pairs: int = 0
    rounds: int = 0
    positions: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and (value < least or value != int(value)):
                raise GradleakError(f"{name} takes a whole number from {least} up, not {value:g}")
            object.__setattr__(self, name, None if value is None else int(value))
        if not (0 <= self.crossover <= 1 and 0 <= self.mutation <= 1):
            raise GradleakError("crossover and mutation are probabilities, from 0 to 1")
        if (self.pairs or self.rounds) and self.layers != "classifier":
            raise GradleakError(
                "pairs and rounds foretell the classifier's gradient alone: they need layers=classifier"
            )
        if self.positions and not self.rounds:
            raise GradleakError("positions narrows the search by learning: it needs rounds=1 or more")

    def check(self, target: Target, update: Update, knowledge: Knowledge) -> None:
        """Raise a GradleakError if the attack cannot work on this update."""
        super().check(target, update, knowledge)
        require_words(self.name, target, update.tensors)

    def remarks(self) -> tuple[str, ...]:
        """Say what is not the paper's."""
        if self.positions:
            return ("fet:thorough is gradleak's own mosaic, not FET",)
        if self.rounds or self.pairs:
            return ("rounds and pairs are gradleak's own search, as in mosaic, not FET's",)
        return ()

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Search for one victim's text after the other's: each has a vocabulary of its own."""
        findings = []
        for number, victim in enumerate(victims):
            frames, grid, notes = self._read(target, victim, reporter.deadline)
            steps = len(frames) * self.attempts * (max(self.rounds, self.generations) + self._iterations(frames[0]) + 2)
            finding = self._reconstruct(target, victim, frames, grid, Trail(reporter, number, len(victims), steps))
            findings.append(replace(finding, notes=(*notes, *finding.notes)))
        return findings

    def _side_by_side(self, target: Target) -> bool:
        return False

    def _read(
        self, target: Target, victim: Victim, deadline: Deadline
    ) -> tuple[Sequence[Puzzle], Grid | None, list[str]]:
        """Return the puzzles that are left, and, if it is looked for and clear, which words stand at each place."""
        frames, notes = puzzles(target, victim, self.lengths_tried)
        if not self.positions:
            return frames, None, notes
        read = read_grid(target, victim, FRAMES, deadline)
        if read is None:
            return frames, None, [*notes, "which words stand at each place could not be read"]
        puzzle, grid = read
        return [puzzle], grid, [*notes, "words of each place: read from the position embeddings' gradient"]

    def _reconstruct(
        self, target: Target, victim: Victim, frames: Sequence[Puzzle], grid: Grid | None, trail: Trail
    ) -> Finding:
        """Try lengths and attempts until a text gives the observed gradient; return the nearest."""
        labels, note = likeliest_labels(target, victim, frames[0], trail.deadline)
        matcher = self._matcher(target, victim.gradient).until(trail.deadline)
        enough = self._enough(target, victim.gradient)
        tries = [
            _Try(frame, grid, matcher, labels, victim.generator, enough, trail, self._rounds(attempt, len(frames)))
            for attempt in range(1, self.attempts + 1)
            for frame in frames
        ]
        best, nearest, loss = frames[0], None, float("inf")
        for one in tries:
            solution, distance = self._search(one) if one.grid is None else self._arrange(one, one.grid)
            if distance < loss:
                best, nearest, loss = one.puzzle, solution, distance
            if loss <= enough or trail.deadline.passed:
                break
        assert nearest is not None
        trail.finish()
        return Finding(best.sentences(nearest), labels.tolist(), loss, trail.snapshots, tuple(note))

    def _search(self, one: _Try) -> tuple[Tensor, float]:
        """Algorithm 1: lines 1 to 8 explore, lines 9 to 16 fine-tune."""
        return refine(
            self._explore(one),
            lambda solution, iteration: self._neighbours(one, solution, iteration),
            one.score,
            self._iterations(one.puzzle),
            enough=one.enough,
            watch=one.watch,
            deadline=one.trail.deadline,
        )

    def _explore(self, one: _Try) -> Tensor:
        """Return where fine-tuning starts: what a genetic search finds, or one by learning, or a random solution."""
        places = one.puzzle.places
        features = Features(places, one.puzzle.kinds)
        if one.rounds and features.count <= one.learnable:
            return search_by_learning(
                lambda count: one.puzzle.draw(count, one.generator),
                one.compare,
                Surrogate(features),
                lambda device: PooledMoves.draw(features, one.generator, device),
                Learning(first=EFFORT * places, steps=EFFORT * places, rounds=one.rounds),
                one.generator,
                enough=one.enough,
                watch=one.watch,
                deadline=one.trail.deadline,
            )[0]
        if self.generations:
            evolution = self._evolution(one.puzzle)
            chromosome, _ = evolve(
                encode(one.puzzle.draw(evolution.population, one.generator)),
                lambda chromosomes: one.score(decode(chromosomes, places)),
                evolution,
                one.generator,
                enough=one.enough,
                watch=lambda best, loss: one.watch(decode(best[None], places)[0], loss),
                deadline=one.trail.deadline,
            )
            return decode(chromosome[None], places)[0]
        return one.puzzle.draw(1, one.generator)[0]

    def _arrange(self, one: _Try, grid: Grid) -> tuple[Tensor, float]:
        """Search by learning for the sentence of each word, where the words of each place are known (not the paper's).

        The classifier's gradient is the sum of what the sentences add, so that each sentence teaches by itself.
        """
        assert isinstance(one.matcher, ClassifierMatcher)
        steps = EXCHANGES * grid.columns * max(1, grid.rows - 1)
        return search_by_learning(
            lambda count: grid.draw(count, one.generator),
            one.compare,
            RowSurrogate(one.features_of(grid), one.shares, one.matcher.goal[0]),
            lambda _: Exchanges(grid.rows, grid.padding),
            replace(ARRANGED, rounds=one.rounds, steps=steps),
            one.generator,
            enough=one.enough,
            watch=one.watch,
            deadline=one.trail.deadline,
        )

    def _neighbours(self, one: _Try, solution: Tensor, iteration: int) -> Iterator[Tensor]:
        """Every swap, shift and replacement; in every fifth iteration every shift of a block; and pairs of these.

        They come in one part, or, where there are too many of them, in several, and pairs are formed in the first.
        """
        length = len(solution)
        moves = itertools.chain([all_swaps(length)], shifts(length))
        if iteration % self.block_every == 0:
            moves = itertools.chain(moves, block_shifts(length))
        orders, replaced = in_parts(moves), all_replacements(solution, one.puzzle.kinds)
        first = next(orders)
        reached = torch.cat([solution[first], replaced])
        if self.pairs and len(first):
            reached = torch.cat([reached, one.pairs(solution, reached, first, self.pairs)])
        yield from in_parts([reached])
        for more in orders:
            yield solution[more]

    def _evolution(self, puzzle: Puzzle) -> Evolution:
        return Evolution(
            population=self.population or (100 if puzzle.sequences == 1 else 200),
            generations=self.generations,
            patience=self.patience,
            tournament=self.tournament,
            crossover=self.crossover,
            mutation=self.mutation,
            hall_of_fame=self.hall_of_fame,
        )

    def _iterations(self, puzzle: Puzzle) -> int:
        return self.iterations if self.iterations is not None else (20 if puzzle.sequences == 1 else 50)

    def _rounds(self, attempt: int, lengths: int) -> int:
        """Of several lengths all but one are wrong, so that only the last attempt at each takes long."""
        return self.rounds if lengths == 1 or attempt == self.attempts else -(-self.rounds // 4)

    def _matcher(self, target: Target, gradient: Mapping[str, Tensor]) -> Matcher | ClassifierMatcher:
        """Section 3.2: the fully connected layer alone, or all layers."""
        distance = DISTANCES[self.distance]()
        if self.layers == "classifier":
            return ClassifierMatcher(target, [gradient], distance)
        return Matcher(target, [gradient], distance)

    def _enough(self, target: Target, gradient: Mapping[str, Tensor]) -> float:
        """Return the distance below which two gradients are the same but for rounding."""
        share = SAME[self.layers]
        if self.distance == "cosine":
            return share**2 / 2
        norm = 1 if self.distance == "l1" else 2
        names = select_parameters(target, gradient, self.layers)
        return share * sum(float(gradient[name].double().flatten().norm(p=norm)) for name in names)


@dataclass(frozen=True)
class _Try:
    """One attempt at a puzzle, and what it is judged by."""

    puzzle: Puzzle
    grid: Grid | None
    matcher: Matcher | ClassifierMatcher
    labels: Tensor
    generator: torch.Generator
    enough: float
    trail: Trail
    rounds: int

    @property
    def learnable(self) -> int:
        """How many features a search by learning may tell apart: with fewer, a round of it takes less time."""
        deadline = self.trail.deadline
        if not deadline.limited:
            return LEARNABLE
        return min(LEARNABLE, int((LEARNT_PER_SECOND * max(0.0, deadline.left)) ** (1 / 3)))

    @cached_property
    def score(self) -> Remembered:
        """The distance of solutions `[count, places]`."""
        return Remembered(lambda solutions: self.matcher(self.puzzle.candidates(solutions, self.labels))[0])

    def compare(self, solutions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distances of solutions `[count]`, and what the classifier's gradient lacks `[count, entries]`."""
        assert isinstance(self.matcher, ClassifierMatcher)
        (distances,), (lacking,) = self.matcher.compare(self.puzzle.candidates(solutions, self.labels))
        self.score.note(solutions, distances)
        return distances, lacking

    def features_of(self, grid: Grid) -> GridFeatures:
        """Return what grids consist of, with pairs of words as far apart as there is room for."""
        _, classes = torch.unique(self.labels, return_inverse=True)
        ways = [GridFeatures.of(grid, classes, reach, self.matcher.target.device) for reach in (2, 1, 0)]
        return next((features for features in ways if features.count <= self.learnable), ways[-1])

    def shares(self, solutions: Tensor) -> Tensor:
        """Return what sentences would add to the classifier's gradient in each of the classes that there are.

        Args:
            solutions: solutions of the puzzle `[count, places]`.

        Returns:
            Gradients `[classes, count, sequences, entries]`.
        """
        assert isinstance(self.matcher, ClassifierMatcher)
        labelled = (
            self.puzzle.candidates(solutions, label.expand(self.puzzle.sequences))
            for label in torch.unique(self.labels)
        )
        return torch.cat([self.matcher.per_sequence_gradients(candidates) for candidates in labelled])

    def pairs(self, solution: Tensor, reached: Tensor, orders: Tensor, count: int) -> Tensor:
        """Return the solutions `[count, places]` that two moves in a row should bring nearest to the goal.

        Args:
            solution: where the moves begin.
            reached: what single moves made of it.
            orders: the moves behind the first of those.
            count: how many to return.
        """
        _, lacking = self.compare(torch.cat([solution[None], reached]))
        first, second = likely_pairs(lacking[0], lacking[0] - lacking[1:], count, len(orders))
        return reached[first.cpu()].gather(1, orders[second.cpu()])

    def watch(self, solution: Tensor, loss: float) -> None:
        self.trail.step(self.puzzle, solution, loss)
