"""FET: read the tokens from the embeddings' gradients, and search over their orders for the text itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradleak.assignment.history import SearchHistory
from gradleak.assignment.reading import ReadVictim
from gradleak.attacks.base import Attack, register
from gradleak.attacks.fet.scored_problem import ScoredProblem, matcher_of, tolerance_of
from gradleak.attacks.fet.surrogate import arrange_columns, explore_by_learning, promising_pairs, rounds_of_attempt
from gradleak.errors import GradleakError
from gradleak.exchange import Finding, Knowledge, Reporter, Update, Victim
from gradleak.leakage.tokens import require_words
from gradleak.search import (
    Evolution,
    all_replacements,
    all_swaps,
    block_shifts,
    decode,
    encode,
    evolve,
    in_parts,
    refine,
    shifts,
)
from gradleak.settings import setting
from gradleak.targets import Target


@register
@dataclass(frozen=True, kw_only=True)
class Fet(Attack):
    """FET (Gao et al., COLING 2025), algorithm 1: genetic exploration, then exhaustive fine-tuning.

    Ablations of table 4: `iterations=0` (exploration alone), `generations=0` (fine-tuning alone), `layers=all` (the
    gradients of all layers).

    Where this differs from the paper, knowingly: a solution is scored once, however often it occurs; a batch whose
    lengths are not known is searched with padding among its tokens. Other differences are noted where they are made.

    Settings `rounds`, `pairs` and `positions` are not the paper's, and preset `thorough`, which uses them, is not FET
    but a part of gradleak's own Mosaic (`surrogate.py`): exploration by learning, pairs of moves in fine-tuning, and
    words whose positions are read from the position embeddings' gradient. The paper reads the length from it, and no
    more.
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

    population: int | None = setting(
        None,
        "chromosomes in a generation; if not set, by batch size",
        least=2,
        paper="section 5.1: 100; table 3: 200 for batches",
    )
    generations: int = setting(100, "the most generations; 0 for fine-tuning alone", least=0, paper="section 5.1")
    patience: int = setting(
        10, "generations without a better chromosome that end exploration", least=1, paper="section 5.1"
    )
    tournament: int = setting(2, "chromosomes that contend for a place as parent", least=1, paper="section 5.1")
    crossover: float = setting(0.9, "probability that two parents are crossed", least=0, most=1, paper="section 5.1")
    mutation: float = setting(0.1, "probability that a child is mutated", least=0, most=1, paper="section 5.1")
    hall_of_fame: int = setting(
        5, "best chromosomes that pass to the next generation unchanged", least=1, paper="section 5.1"
    )
    iterations: int | None = setting(
        None,
        "the most iterations of fine-tuning, 0 for exploration alone; if not set, by batch size",
        least=0,
        paper="section 5.1: 20; table 3: 50 for batches",
    )
    block_every: int = setting(
        5, "fine-tuning also shifts blocks in every iteration divisible by this", least=1, paper="section 5.1"
    )
    layers: Literal["classifier", "all"] = setting(
        "classifier", "whose gradients are matched", paper="section 3.2; all is FET-full-layer of table 4"
    )
    distance: Literal["l2", "l1", "cosine"] = setting("l2", "distance of gradients", paper="section 3.2")
    lengths_tried: int = setting(
        8, "lengths to try where none is known or shown by the position embeddings", least=1, paper="section 4.1"
    )
    attempts: int = setting(1, "the most attempts, as long as none ends at distance zero", least=1)
    pairs: int = setting(
        0, "promising pairs of moves that each iteration of fine-tuning tries", least=0, paper="not in the paper"
    )
    rounds: int = setting(
        0, "rounds of learning that explore in place of the genetic search", least=0, paper="not in the paper"
    )
    positions: bool = setting(
        False, "read which words are at each position; needs rounds", paper="not in the paper (see mosaic)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.pairs or self.rounds) and self.layers != "classifier":
            raise GradleakError("pairs and rounds predict the classifier's gradient alone: they need layers=classifier")
        if self.positions and not self.rounds:
            raise GradleakError("positions narrows the search by learning: it needs rounds=1 or more")

    def check(self, target: Target, update: Update, knowledge: Knowledge) -> None:
        """Raise a GradleakError if the attack cannot work on this update."""
        super().check(target, update, knowledge)
        require_words(self.name, target, update.tensors)

    def remarks(self) -> tuple[str, ...]:
        """Return a remark where the settings are not the paper's attack."""
        if self.positions:
            return ("fet:thorough is gradleak's own mosaic, not FET",)
        if self.rounds or self.pairs:
            return ("rounds and pairs are gradleak's own search, as in mosaic, not FET's",)
        return ()

    def evolution(self, sequences: int) -> Evolution:
        """Return the settings of the genetic search for a batch size."""
        return Evolution(
            population=self.population or (100 if sequences == 1 else 200),
            generations=self.generations,
            patience=self.patience,
            tournament=self.tournament,
            crossover=self.crossover,
            mutation=self.mutation,
            hall_of_fame=self.hall_of_fame,
        )

    def fine_tuning_iterations(self, sequences: int) -> int:
        """Return the most iterations of fine-tuning for a batch size."""
        return self.iterations if self.iterations is not None else (20 if sequences == 1 else 50)

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Read every victim, then search for one victim's text after the other: each has its own vocabulary."""
        read = [
            ReadVictim.read(target, victim, self.lengths_tried, columns=self.positions, deadline=reporter.deadline)
            for victim in victims
        ]
        steps = [self._steps(one) for one in read]
        histories = [SearchHistory(part, total) for part, total in zip(reporter.split(steps), steps, strict=True)]
        return [self._reconstruct(target, one, history) for one, history in zip(read, histories, strict=True)]

    def _reconstruct(self, target: Target, read: ReadVictim, history: SearchHistory) -> Finding:
        """Search until a text gives the observed gradient, for all lengths and attempts; return the nearest text."""
        gradient, generator = read.victim.gradient, read.victim.generator
        matcher = matcher_of(target, gradient, self.layers, self.distance).until(history.deadline)
        tolerance = tolerance_of(target, gradient, self.layers, self.distance)
        best, nearest, loss = read.problems[0], None, float("inf")
        for attempt, problem in itertools.product(range(1, self.attempts + 1), read.problems):
            one = ScoredProblem(problem, matcher, read.labels, generator, tolerance, history)
            rounds = rounds_of_attempt(self.rounds, attempt, self.attempts, len(read.problems))
            if read.columns is None:
                solution, distance = self._search(one, rounds)
            else:  # not the paper's
                solution, distance = arrange_columns(one, read.columns, rounds)
            if distance < loss:
                best, nearest, loss = problem, solution, distance
            if loss <= tolerance or history.deadline.passed:
                break
        assert nearest is not None
        history.finish()
        return Finding(best.sentences(nearest), read.labels.tolist(), loss, history.snapshots, read.notes)

    def _search(self, one: ScoredProblem, rounds: int) -> tuple[Tensor, float]:
        """Algorithm 1: explore (lines 1 to 8), then fine-tune (lines 9 to 16).

        The nearest solution on the way is returned, where the paper returns the last.
        """
        return refine(
            self._explore(one, rounds),
            lambda solution, iteration: self._neighbours(one, solution, iteration),
            one.score,
            self.fine_tuning_iterations(one.problem.sequences),
            one.control,
        )

    def _explore(self, one: ScoredProblem, rounds: int) -> Tensor:
        """Lines 1 to 8: return the best solution of a genetic search over chromosomes with connectors (section 4.2)."""
        learnt = explore_by_learning(one, rounds)  # not the paper's
        if learnt is not None:
            return learnt
        if not self.generations:
            return one.draw(1)[0]
        places, evolution = one.problem.places, self.evolution(one.problem.sequences)
        chromosome, _ = evolve(
            encode(one.draw(evolution.population)),
            lambda chromosomes: one.score(decode(chromosomes, places)),
            evolution,
            one.generator,
            replace(one.control, watch=lambda best, loss: one.record(decode(best[None], places)[0], loss)),
        )
        return decode(chromosome[None], places)[0]

    def _neighbours(self, one: ScoredProblem, solution: Tensor, iteration: int) -> Iterator[Tensor]:
        """Lines 9 to 16: yield every swap, shift and replacement, in every fifth iteration every shift of a block.

        They come in one part, or in several where there are too many; pairs are formed of the first part.
        """
        length = len(solution)
        moves = itertools.chain([all_swaps(length)], shifts(length))
        if iteration % self.block_every == 0:
            moves = itertools.chain(moves, block_shifts(length))
        orders, replaced = in_parts(moves), all_replacements(solution, one.problem.kinds)
        first = next(orders)
        reached = torch.cat([solution[first], replaced])
        if self.pairs and len(first):  # not the paper's
            reached = torch.cat([reached, promising_pairs(one, solution, reached, first, self.pairs)])
        yield from in_parts([reached])
        for more in orders:
            yield solution[more]

    def _side_by_side(self, target: Target) -> bool:
        return False

    def _steps(self, read: ReadVictim) -> int:
        """Return the most steps that the search for a victim's text takes."""
        iterations = self.fine_tuning_iterations(read.problems[0].sequences)
        return len(read.problems) * self.attempts * (max(self.rounds, self.generations) + iterations + 2)
