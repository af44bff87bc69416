"""DLG: gradient descent on embeddings until their gradient matches the observed one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gradleak.attacks.base import Attack, register
from gradleak.exchange import Finding, Reporter, Victim
from gradleak.matching import Candidates, Distance, SquaredL2
from gradleak.optimisation.cohort import Cohort
from gradleak.optimisation.guess import Guess
from gradleak.optimisation.settings import DescentSettings
from gradleak.targets import Target


@register
@dataclass(frozen=True, kw_only=True)
class Dlg(DescentSettings, Attack):
    """Deep Leakage from Gradients (Zhu, Liu and Han, NeurIPS 2019), as LAMP's paper describes and tunes it.

    LAMP, section 5 and appendix D: Adam with learning rate 0.1 and no decay, 2,500 steps (10,000 with AdamW, linear
    decay and clipping at 1.0 for BERT-large: preset `large`), from unscaled Gaussian embeddings; special tokens are
    fixed. Labels that are not known are optimised with the embeddings, as DLG does; lengths that are not known are
    tried.
    """

    name: ClassVar[str] = "dlg"
    paper: ClassVar[str] = "Zhu et al. 2019, Deep Leakage from Gradients"
    needs: ClassVar[tuple[str, ...]] = ("gradients of layers",)
    assumes: ClassVar[tuple[str, ...]] = ("labels", "lengths")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "large": {"steps": 10_000, "optimizer": "adamw", "linear": True, "clip": 1.0},
        "fast": {"steps": 600},
    }

    def distance(self) -> Distance:
        """Return the distance that is minimised."""
        return SquaredL2()

    def cohort(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> Cohort:
        """Return the victims with the guesses that the descent starts from: unscaled Gaussian embeddings."""
        assumptions = [self.assumptions(target, victim) for victim in victims]
        return Cohort(target, victims, assumptions, self.distance(), reporter)

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Descend from noise; where lengths are tried, with all of them briefly, then with the best to the end."""
        cohort = self.cohort(target, victims, reporter)
        briefly = self.steps // 10 if cohort.guess.losses.shape[1] > self.lengths_kept else 0
        cohort.history.total = briefly + self.steps
        if briefly:
            cohort.guess = cohort.minimise(self.descent(briefly)).best_starts(self.lengths_kept)
        # The published code takes the last step; this takes the one with the smallest distance.
        best = cohort.minimise(self.descent(self.steps), after=briefly)
        return cohort.results(cohort.findings(_nearest_start(cohort, best)))


def _nearest_start(cohort: Cohort, guess: Guess) -> Guess:
    """Project all starts to words and classes, and return each victim's start with the nearest gradient."""
    ids, words = guess.words(cohort.target)
    classes = words.classes(cohort.target)
    losses = cohort.matcher(Candidates(ids, words.slots.mask, ids if classes is None else classes))
    return replace(words, losses=losses).best_starts(1)
