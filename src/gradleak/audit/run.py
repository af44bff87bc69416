"""Run an attack on many batches, in groups that fit into memory, and score what it finds.

Used by `gradleak attack` and `gradleak demo`, and by the workers of a study.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice

from gradleak.attacks import Attack
from gradleak.audit.scenario import CapturedBatch, Scenario
from gradleak.audit.scoring import score
from gradleak.audit.threads import fitting_threads
from gradleak.exchange import Listener, Reconstruction, Update
from gradleak.metrics import SCORE_NAMES, BatchScores, share
from gradleak.targets import Target

MAX_GROUP = {"cpu": 16, "cuda": 64}
"""Batches attacked together unless the caller decides; an interrupt loses the results of the running group."""
MAX_GROUP_VALUES = {"cpu": 2**28, "cuda": 2**32}
"""Values that the updates of a group may hold together: they are all in memory at once.

Constant, not derived from the machine's free memory: rounding depends on which batches are attacked together, and a
study that was interrupted must end with the same records as one that was not.
"""


@dataclass(kw_only=True)
class AttackPlan:
    """An attack and the batches that it is going to run on.

    Attributes:
        attack: the attack with its hyperparameters.
        target: the model.
        batches: the batches, each computed when it is needed because updates are large; can be consumed once.
        count: number of batches.
        seed: seed of everything random in the attack.
        budget: seconds for each update; None for no limit.
    """

    attack: Attack
    target: Target
    batches: Iterator[CapturedBatch]
    count: int
    seed: int = 0
    budget: float | None = None

    @classmethod
    def simulate(
        cls, attack: Attack, target: Target, scenario: Scenario, *, seed: int = 0, budget: float | None = None
    ) -> AttackPlan:
        """Plan an attack on all batches of a simulated client."""
        batches = scenario.batches(target)
        return cls(attack=attack, target=target, batches=batches, count=scenario.count, seed=seed, budget=budget)

    def first(self) -> CapturedBatch:
        """Compute the first batch without consuming it: errors in the input are raised before anything runs."""
        batch = next(self.batches)
        self.batches = chain([batch], self.batches)
        return batch


@dataclass(frozen=True)
class BatchResult:
    """The reconstruction of one batch, and its scores if the private texts are known."""

    references: tuple[str, ...] | None
    reconstruction: Reconstruction
    scores: BatchScores | None

    @classmethod
    def of(cls, batch: CapturedBatch, reconstruction: Reconstruction) -> BatchResult:
        """Score a reconstruction if the private texts are known."""
        references = batch.references
        scores = None if references is None else score(reconstruction, references)
        return cls(references, reconstruction, scores)

    @property
    def order(self) -> list[int | None]:
        """The index of the reconstructed text that matches each reference, then the indices of unmatched texts."""
        every = range(len(self.reconstruction.texts))
        if self.scores is None:
            return list(every)
        return [*self.scores.matches, *(i for i in every if i not in self.scores.matches)]


GroupWatch = Callable[[Sequence[CapturedBatch]], AbstractContextManager[Listener | None]]
"""Opens a context for a group of batches; it yields the listener of the attack on them."""


def run_plan(
    plan: AttackPlan, watch: GroupWatch, *, max_group: int | None = None, adapt_threads: bool = False
) -> Iterator[list[BatchResult]]:
    """Attack the batches of a plan, as many together as fit, and yield the results of each group when it is done.

    Args:
        plan: what to attack, and how.
        watch: called with every group before it is attacked.
        max_group: the most batches in a group; `MAX_GROUP` of the device by default.
        adapt_threads: use one CPU thread where more would slow a group down.
    """
    while group := list(islice(plan.batches, 1)):
        group += islice(plan.batches, group_size(plan.target, group[0].update, max_group) - 1)
        updates, knowledge = [batch.update for batch in group], [batch.knowledge for batch in group]
        threads = fitting_threads(plan.target, knowledge) if adapt_threads else nullcontext()
        with watch(group) as listener, threads:
            found = plan.attack.many(
                plan.target, updates, knowledge, seed=plan.seed, listener=listener, budget=plan.budget
            )
        yield [BatchResult.of(batch, result) for batch, result in zip(group, found, strict=True)]


def group_size(target: Target, update: Update, max_group: int | None = None) -> int:
    """Return how many updates like this one to attack together."""
    kind = "cuda" if target.device.type == "cuda" else "cpu"
    most = MAX_GROUP[kind] if max_group is None else max_group
    return max(1, min(most, MAX_GROUP_VALUES[kind] // max(1, update.num_values)))


def mean_scores(results: Sequence[BatchResult]) -> dict[str, float | None]:
    """Return each score averaged over all sentences (None if no private text is known), and the seconds in all.

    `precision` is that of all returned texts together; `surplus` and `unrepresentable` count texts.
    """
    batches = [result.scores for result in results if result.scores is not None]
    sentences = [s for scores in batches for s in scores.sentences]
    means: dict[str, float | None] = {
        name: math.fsum(getattr(s, name) for s in sentences) / len(sentences) if sentences else None
        for name in SCORE_NAMES
    }
    return means | {
        "precision": share(sum(s.right for s in batches), sum(s.returned for s in batches)),
        "surplus": sum(s.surplus for s in batches) if batches else None,
        "unrepresentable": sum(len(s.unrepresentable) for s in batches) if batches else None,
        "seconds": math.fsum(result.reconstruction.seconds for result in results),
    }
