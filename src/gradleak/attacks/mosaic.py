"""Mosaic: read the positions of words from the embedding tables' gradients, and search only for their sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from gradleak.assignment.position_angles import read_grid
from gradleak.assignment.position_sums import has_position_gradient
from gradleak.attacks.base import NEEDS, Attack, find_attack, register
from gradleak.exchange import Finding, Knowledge, Reporter, Update, Victim
from gradleak.leakage.recompute import cosine_to_update
from gradleak.leakage.tokens import require_words
from gradleak.settings import setting
from gradleak.targets import Target

# A text whose gradient is this near to the update's, as a cosine distance, explains it but for rounding.
EXPLAINED = 5e-6
# Steps of the progress bar that each way has for each victim, whatever it counts itself.
STEPS = 1_000

WAYS: Mapping[str, Callable[[], Attack]] = {
    "angles": lambda: find_attack("fet").with_settings("thorough"),
    "sums": lambda: find_attack("edr").with_settings("fast"),
    "search": lambda: find_attack("fet").with_settings("thorough", {"positions": "false"}),
}
"""The ways that Mosaic consists of: presets of FET and EDR that read positions where their papers search for them."""


@register
@dataclass(frozen=True, kw_only=True)
class Mosaic(Attack):
    """Gradleak's own: words and their positions are read in closed form, and only their sentences are searched.

    The gradient of a token's input is added to the row of its word and to the row of its position. Mosaic compares the
    two tables in one of two ways, and tries the other one where the first does not explain the update:

    - `angles`: the input of the first LayerNorm is orthogonal to its gradient, which identifies the word and the
      position that a row belongs to (`assignment/position_angles.py`). Which sentence of a batch has the word is
      searched by learning, judged by the classifier's gradient. Exact; needs a LayerNorm after the embeddings and an
      update without noise.
    - `sums`: a word's row is the sum of the rows of its positions, which is solved by least squares
      (`assignment/position_sums.py`). Tokens that do not fit are exchanged between sentences and moved, judged by the
      gradients of all layers.
    - `search`: where there is no gradient of position embeddings to read, the order is searched by learning.
    """

    name: ClassVar[str] = "mosaic"
    paper: ClassVar[str] = "gradleak, docs/attacks/mosaic.md"
    needs: ClassVar[tuple[str, ...]] = ("word-embedding gradients", "gradients of layers")
    classifiers_only: ClassVar[bool] = True  # a language model's output shares the word embeddings: all rows are used
    assumes: ClassVar[tuple[str, ...]] = ("labels",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "best": {},
        "fast": {"ways": 1},
        "angles": {"first": "angles", "ways": 1},
        "sums": {"first": "sums", "ways": 1},
    }

    first: Literal["fitting", "angles", "sums", "search"] = setting(
        "fitting", "the way to begin with; fitting takes the one that fits what was sent"
    )
    ways: int = setting(2, "the most ways that are tried: 1, or 2 where the first does not explain the update", least=1)

    def check(self, target: Target, update: Update, knowledge: Knowledge) -> None:
        """Raise a GradleakError if the attack cannot work on this update."""
        super().check(target, update, knowledge)
        require_words(self.name, target, update.tensors)

    def plan(self, target: Target, victim: Victim) -> tuple[str, ...]:
        """Return the ways to try, in order: those whose needs the update meets."""
        update = Update(dict(victim.gradient))
        possible = [
            way for way in self._order(target, victim) if all(NEEDS[need](target, update) for need in WAYS[way]().needs)
        ]
        return tuple(possible[: self.ways])

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Try the ways of each victim's plan until a text explains its update; victims on the same way run together."""
        plans = [self.plan(target, victim) for victim in victims]
        planned = Counter((turn, way) for plan in plans for turn, way in enumerate(plan))
        steps = [*(STEPS * count for count in planned.values()), 1]  # the last one is the choice of the nearest
        *parts, _ = reporter.split(steps)
        reporters = dict(zip(planned, parts, strict=True))
        nearest: dict[int, Finding] = {}
        for turn in range(max(map(len, plans))):
            unexplained = [n for n in range(len(victims)) if n not in nearest or nearest[n].loss > EXPLAINED]
            for way, build in WAYS.items():
                members = [number for number in unexplained if plans[number][turn : turn + 1] == (way,)]
                if not members or (turn and reporter.deadline.passed):
                    continue
                findings = build().run(target, [_restarted(victims[n]) for n in members], reporters[turn, way])
                for number, finding in zip(members, findings, strict=True):
                    tried = replace(finding, loss=_distance(target, victims[number], finding))
                    nearest[number] = min(nearest.get(number, tried), tried, key=lambda one: one.loss)
        found = [nearest[number] for number in range(len(victims))]
        texts = tuple(target.decode(ids) for ids in found[-1].token_ids)
        reporter(sum(steps), sum(steps), lambda: (found[-1].loss, texts))
        return found

    def _order(self, target: Target, victim: Victim) -> tuple[str, str]:
        """Return the ways in the order in which they fit what can be read."""
        if self.first != "fitting":
            return self.first, "angles" if self.first == "sums" else "sums"
        if not has_position_gradient(target, victim.gradient):
            return "search", "sums"
        return ("angles", "sums") if read_grid(target, victim) is not None else ("sums", "search")

    def _side_by_side(self, target: Target) -> bool:
        return False


def _restarted(victim: Victim) -> Victim:
    """Return a victim whose random stream starts from its seed: a way's result does not depend on earlier ways."""
    return replace(victim, generator=torch.Generator().manual_seed(victim.generator.initial_seed()))


def _distance(target: Target, victim: Victim, finding: Finding) -> float:
    """Return the cosine distance of a text's gradient to the update, over all tensors: one measure for all ways."""
    labels = torch.tensor(list(finding.labels or ()), device=target.device)
    return cosine_to_update(target, victim.gradient, finding.token_ids, labels)
