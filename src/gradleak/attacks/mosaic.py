"""Mosaic: where words stand is read from the embedding tables' gradients, and they are put together to sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from gradleak.assignment.position_angles import read_grid
from gradleak.assignment.position_sums import shows_places
from gradleak.attacks.base import NEEDS, Attack, register
from gradleak.attacks.edr.attack import Edr
from gradleak.attacks.fet import FRAMES, Fet
from gradleak.exchange import Finding, Knowledge, Reporter, Update, Victim
from gradleak.leakage.tokens import require_words
from gradleak.matching import Candidates, Cosine, Matcher
from gradleak.targets import Target

Look = Callable[[], tuple[float, tuple[str, ...]]]

# A text whose gradient is this near to the update's, as a cosine distance, explains it but for rounding.
EXPLAINED = 5e-6
# Steps of the progress bar that each way has for each victim, whatever it counts itself.
STEPS = 1_000

WAYS: Mapping[str, Attack] = {
    "angles": Fet.with_settings("thorough"),
    "sums": Edr.with_settings("fast"),
    "search": Fet.with_settings("thorough", {"positions": "false"}),
}
"""The parts that Mosaic is made of: what FET's and EDR's pieces become when places are read and not searched."""


@register
@dataclass(frozen=True, kw_only=True)
class Mosaic(Attack):
    """Gradleak's own: the words and their places are read in closed form, and only their sentences are searched.

    The gradient of a token's input is added to the row of its word and to the row of its position. Mosaic compares the
    two tables in one of two ways, and goes on to the other where the first does not explain the update:

    - `angles`: the input of the first LayerNorm is at a right angle to its gradient, which tells the one word and
      position that a row belongs to (`columns.py`). Which sentence of a batch has the word is searched by learning,
      judged by the classifier's gradient. Exact; needs a LayerNorm after the embeddings and an update without noise.
    - `sums`: a word's row is the sum of the rows of its positions, which least squares solve (`places.py`). What does
      not fit is exchanged between sentences and moved, judged by the gradients of all layers.
    - `search`: where no position embeddings are there to be read, the order is searched by learning.

    Attributes:
        first: the way to begin with; `fitting` takes the one that fits what was sent.
        ways: how many are tried, 1 or 2.
    """

    name: ClassVar[str] = "mosaic"
    paper: ClassVar[str] = "gradleak, docs/attacks/mosaic.md"
    needs: ClassVar[tuple[str, ...]] = ("word-embedding gradients", "gradients of layers")
    classifiers_only: ClassVar[bool] = True  # a language model's output shares the word embeddings: all rows are used
    assumes: ClassVar[tuple[str, ...]] = ("labels",)
    least: ClassVar[Mapping[str, float]] = {"ways": 1}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "best": {},
        "fast": {"ways": 1},
        "angles": {"first": "angles", "ways": 1},
        "sums": {"first": "sums", "ways": 1},
    }

    first: Literal["fitting", "angles", "sums", "search"] = "fitting"
    ways: int = 2

    def check(self, target: Target, update: Update, knowledge: Knowledge) -> None:
        """Raise a GradleakError if the attack cannot work on this update."""
        super().check(target, update, knowledge)
        require_words(self.name, target, update.tensors)

    def _side_by_side(self, target: Target) -> bool:
        return False

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Let victims go the same way together, each until a text explains its update."""
        plans = [self._plan(target, victim) for victim in victims]
        progress = _Progress(reporter, STEPS * sum(map(len, plans)))
        nearest: dict[int, Finding] = {}
        for turn in range(max(map(len, plans))):
            left = [n for n in range(len(victims)) if n not in nearest or nearest[n].loss > EXPLAINED]
            for way, attack in WAYS.items():
                members = [number for number in left if plans[number][turn : turn + 1] == (way,)]
                if not members or (turn and reporter.deadline.passed):
                    continue
                afresh = [_afresh(victims[number]) for number in members]
                findings = attack.run(target, afresh, progress.part(STEPS * len(members)))
                for number, finding in zip(members, findings, strict=True):
                    tried = replace(finding, loss=_distance(target, victims[number], finding))
                    nearest[number] = min(nearest.get(number, tried), tried, key=lambda one: one.loss)
        found = [nearest[number] for number in range(len(victims))]
        progress.finish(lambda: (found[-1].loss, tuple(target.decode(ids) for ids in found[-1].token_ids)))
        return found

    def _plan(self, target: Target, victim: Victim) -> tuple[str, ...]:
        """Return the ways to go, those that fit what was sent."""
        sent = Update(dict(victim.gradient))
        order = self._order(target, victim)
        return tuple(way for way in order if all(NEEDS[need](target, sent) for need in WAYS[way].needs))[: self.ways]

    def _order(self, target: Target, victim: Victim) -> tuple[str, str]:
        """Return the ways in the order in which they fit what can be read."""
        if self.first != "fitting":
            return self.first, "angles" if self.first == "sums" else "sums"
        if not shows_places(target, victim.gradient):
            return "search", "sums"
        return ("angles", "sums") if read_grid(target, victim, FRAMES) is not None else ("sums", "search")


class _Progress:
    """Joins the progress of the ways, each of which counts steps of its own, to that of one attack.

    Args:
        reporter: told at every step of any way.
        total: steps of all ways together.
    """

    def __init__(self, reporter: Reporter, total: int) -> None:
        self._reporter, self._total, self._done = reporter, total, 0

    def part(self, steps: int) -> Reporter:
        """Return the reporter of a way that has so many of the steps."""
        first, self._done = self._done, self._done + steps
        return _Part(self._reporter, lambda share: first + int(share * steps), self._total)

    def finish(self, look: Look) -> None:
        """Tell of the end, which may come early."""
        self._reporter(self._total, self._total, look)


class _Part(Reporter):
    """Passes one way's progress on; `place` turns the share of it that is done into a step of the whole."""

    def __init__(self, reporter: Reporter, place: Callable[[float], int], total: int) -> None:
        super().__init__(deadline=reporter.deadline)
        self._whole, self._place, self._total = reporter, place, total

    def __call__(self, step: int, total: int, look: Look) -> None:
        """Pass it on; the end of the whole is told by who knows what was found."""
        self._whole(min(self._place(step / total), self._total - 1), self._total, look)


def _afresh(victim: Victim) -> Victim:
    """Return a victim whose random stream starts from its seed: a way finds the same, whichever went before."""
    return replace(victim, generator=torch.Generator().manual_seed(victim.generator.initial_seed()))


def _distance(target: Target, victim: Victim, finding: Finding) -> float:
    """Return how far a text's gradient is from the update's, by the cosine of all tensors: one measure for all ways."""
    rows = [torch.tensor(list(ids)) for ids in finding.token_ids]
    mask = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True).to(target.device)
    ids = pad_sequence(rows, batch_first=True, padding_value=target.tokenizer.pad_token_id).to(target.device)
    labels = torch.tensor(list(finding.labels or ()), device=target.device)
    matcher = Matcher(target, [victim.gradient], Cosine())
    distance = float(matcher(Candidates(ids[None, None], mask[None, None], labels[None, None])))
    return max(distance, 0.0)  # a cosine may round to a little more than 1
