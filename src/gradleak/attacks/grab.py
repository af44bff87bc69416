"""GRAB: embeddings and dropout masks by gradient descent, token order by beam search, in turn."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from gradleak.attacks.base import Attack, register
from gradleak.exchange import Finding, Reporter, Victim
from gradleak.leakage.assumptions import Lengths
from gradleak.leakage.labels import told_clipped
from gradleak.leakage.lengths import longest_length
from gradleak.leakage.perturbation import looks_noisy, looks_pruned
from gradleak.matching import L2L1, Cosine, Distance, allow_tf32
from gradleak.optimisation.beam_reorder import BeamReorder
from gradleak.optimisation.cohort import Cohort
from gradleak.optimisation.descent import Descent
from gradleak.optimisation.dropout_masks import with_dropout_masks
from gradleak.optimisation.guess import Guess
from gradleak.optimisation.reorder import put_in_order
from gradleak.optimisation.settings import REORDERED, HybridSettings
from gradleak.optimisation.start import START_SHARE, best_lengths, best_permutation, best_sample
from gradleak.settings import setting
from gradleak.targets import Target

FURTHER: dict[str, Any] = {**REORDERED, "first_masks": "mean", "stop": "settled", "alternatives": 3, "rounds": 3}


@register
@dataclass(frozen=True, kw_only=True)
class Grab(HybridSettings, Attack):
    """GRAB (Feng et al., CCS 2024), algorithms 1 to 3.

    Hyperparameters are those of section 5.1; preset `large` has the tuned ones of section 5.4.1. Labels that are not
    known are optimised with the embeddings; where only the longest length is known, beam search ends sequences earlier.

    Preset `best` is not the paper's: there the words found are put in order at the end (`polish`). Presets `fast` and
    `thorough` differ further: masks start at their mean, the beams may also use the next nearest words of every token,
    and rounds end when one returns to the words that it started from; `fast` uses LAMP's cosine.
    """

    name: ClassVar[str] = "grab"
    paper: ClassVar[str] = "Feng et al. 2024, Uncovering Gradient Inversion Risks in Practical Language Model Training"
    needs: ClassVar[tuple[str, ...]] = ("gradients of layers",)
    assumes: ClassVar[tuple[str, ...]] = ("labels", "lengths", "dropout")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "best": REORDERED,
        "large": {"linear": True, "clip": 0.5},
        "thorough": {**FURTHER, "steps": 700, "passes": 2},
        "fast": {
            **FURTHER,
            **{"cosine": True, "mask_speed": 3.0},
            **{"steps": 300, "starts": 100, "permutations": 100, "passes": 3, "polish": 2},
        },
    }

    optimizer: Literal["adam", "adamw"] = setting("adamw", "the optimiser", paper="section 5.1")
    starts: int = setting(2_000, "random embeddings, of which the best is the start", least=1, paper="section 5.1")
    permutations: int = setting(2_000, "permutations that each search starts from", least=1, paper="section 5.1")
    rounds: int = setting(5, "rounds of descent and beam search", least=1, paper="section 5.1")
    passes: int = setting(5, "passes of beam search in a round", least=1, paper="section 5.1")
    beams: int = setting(4, "width of the beam", least=1, paper="section 5.1")
    alternatives: int = setting(0, "words beside the nearest one that beams may use", least=0, paper="0")
    alpha: float = setting(0.01, "weight of the L1 term", least=0, paper="section 4.2")
    squared: bool = setting(True, "square the L2 term", paper="section 4.2")
    cosine: bool = setting(False, "compare by LAMP's cosine instead", paper="not in the paper")
    learn_dropout: bool = setting(True, "optimise dropout masks with the embeddings", paper="section 4.3")
    first_masks: Literal["bernoulli", "mean"] = setting(
        "bernoulli", "initial masks: drawn as dropout does, or at their mean", paper="algorithm 1, line 1"
    )
    mask_speed: float = setting(1.0, "learning rate of masks, relative to that of embeddings", above=0, paper="1")
    pruning_mask: bool = setting(True, "compare a pruned update where it is not zero", paper="section 5.5")
    normalise: bool = setting(True, "compare the direction alone of a clipped or noisy update", paper="section 5.5")
    stop: Literal["no-gain", "settled"] = setting(
        "no-gain", "end when the search gains nothing, or when a round returns to its own words", paper="no-gain"
    )
    lengths_kept: int = setting(
        1, "lengths that are kept after a tenth of the steps", least=1, paper="not in the paper"
    )

    def distance(self) -> Distance:
        """L2 + α · L1, or the cosine."""
        return Cosine() if self.cosine else L2L1(alpha=self.alpha, squared=self.squared)

    def distance_to(self, target: Target, victim: Victim) -> Distance:
        """Section 5.5: compare what pruning has left, and the direction alone where the norm was changed."""
        return replace(
            self.distance(),
            kept_only=self.pruning_mask and looks_pruned(target, victim.gradient),
            normalised=self.normalise and (told_clipped(victim.knowledge) or looks_noisy(target, victim.gradient)),
        )

    def descent(self, steps: int) -> Descent:
        """Return the schedule of a descent of so many steps."""
        return replace(super().descent(steps), mask_speed=self.mask_speed)

    def lengths(self, target: Target, victim: Victim) -> Lengths:
        """Section 5.4.3: where the longest length is known, all sequences start with it and may become shorter."""
        known = victim.knowledge
        longest = known.longest or longest_length(target, victim.gradient)
        if known.lengths is not None or longest is None:
            return super().lengths(target, victim)
        return [[longest] * (known.sequences or 1)], f"lengths searched, at most {longest}"

    def batching_key(self, target: Target, victim: Victim) -> Hashable:
        """Return what victims must share to be optimised as one tensor, compared by one distance."""
        return super().batching_key(target, victim), self.distance_to(target, victim)

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Algorithm 1: descend and search in turn, until every victim has converged."""
        cohort = self.cohort(target, victims, reporter)
        cohort.history.total = self.rounds * self.steps
        with cohort.limited_to(START_SHARE):
            cohort.guess = best_sample(cohort, self.starts)  # line 2
            cohort.guess = best_lengths(cohort, self.lengths_kept, self.descent(max(1, self.steps // 10)))
        room = cohort.guess.slots.mask[:, 0].sum(dim=2)  # [victims, sequences]: how long sequences may become
        everyone = cohort.matcher
        nearest: dict[int, Guess] = {}
        for number in range(self.rounds):
            before = cohort.guess
            descended = self.continuous(cohort, after=number * self.steps)  # line 4
            words = cohort.nearest_words(descended)  # line 5
            searched = words if cohort.deadline.passed else self.discrete(cohort, descended, room[cohort.numbers])  # 6
            # Lines 9 to 12 return the nearer of the last round's words; this returns the nearest of all rounds.
            for place, victim in enumerate(cohort.numbers):
                if victim not in nearest or searched.losses[place] < nearest[victim].losses[0]:
                    nearest[victim] = searched.select([place])
            converged = self.converged(before, words, searched)
            if all(converged) or cohort.deadline.passed:
                break
            cohort.guess = searched  # line 7
            cohort.retire(converged)
        words = put_in_order(everyone, Guess.joined([nearest[number] for number in range(len(victims))]), self.polish)
        return cohort.results(cohort.findings(words, range(len(victims))))

    def cohort(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> Cohort:
        """Algorithm 1, line 1: return the victims with their first guesses, dropout masks included."""
        assumptions = [self.assumptions(target, victim) for victim in victims]
        cohort = Cohort(target, victims, assumptions, self.distance_to(target, victims[0]), reporter)
        if self.learn_dropout and all(victim.knowledge.dropout != 0 for victim in victims):
            bernoulli = self.first_masks == "bernoulli"
            cohort.guess = with_dropout_masks(target, cohort.guess, victims, bernoulli=bernoulli)
        return cohort

    def continuous(self, cohort: Cohort, *, after: int) -> Guess:
        """Algorithm 2: from the best permutation, descend by embeddings, labels and dropout masks.

        A token's dropout masks move with it when tokens are put in another order; the paper does not say.
        """
        with cohort.limited_to(START_SHARE):
            cohort.guess = best_permutation(cohort, self.permutations)  # line 1
        with allow_tf32():
            return cohort.minimise(self.descent(self.steps), after=after)  # lines 2 to 7

    def discrete(self, cohort: Cohort, guess: Guess, room: Tensor) -> Guess:
        """Algorithm 3: beam search over the tokens' order.

        In a batch the beams vary one sequence at a time while the others stay at their best, which lets the engine
        reuse the others' gradients; the paper varies all.
        """
        search = BeamReorder(
            beams=self.beams, passes=self.passes, permutations=self.permutations, alternatives=self.alternatives
        )
        return search(cohort, guess, room)

    def converged(self, before: Guess, words: Guess, searched: Guess) -> list[bool]:
        """Return which victims stop: as published those whose search gained nothing, or whose words are as before."""
        if self.stop == "no-gain":
            return (searched.losses >= words.losses).flatten().tolist()
        other = (searched.embeddings != before.embeddings).any(dim=-1) & searched.slots.mask
        return (~(other | (searched.slots.mask != before.slots.mask)).flatten(1).any(dim=1)).tolist()
