"""An attack for tests that is quick and always finds the same: it tries every sentence of a short dictionary.

GRADLEAK_PLUGINS makes it known wherever a cell runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch

from gradleak.attacks import Attack, Finding, Victim, register
from gradleak.exchange import Reporter
from gradleak.leakage.recompute import batch_gradient
from gradleak.targets import Target

SENTENCES = (
    "the cat sat on a mat",
    "a big dog ran on the mat",
    "red cat ran on a big mat",
    "the dog sat on a red mat",
    "a cat ran",
    "the big red cat sat on the dog",
)


@register
@dataclass(frozen=True, kw_only=True)
class Dictionary(Attack):
    """Returns the sentences whose gradients point the same way as the update's."""

    name: ClassVar[str] = "dictionary"
    paper: ClassVar[str] = "none"

    least: float = 0.85
    seconds: float = 0.0

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        time.sleep(self.seconds)
        return [self._find(target, victim) for victim in victims]

    def _find(self, target: Target, victim: Victim) -> Finding:
        observed = _flat(victim.gradient)
        best, found = self.least, None
        for ids, guess in _guesses(target, tuple(victim.gradient)):
            similarity = float(torch.nn.functional.cosine_similarity(guess, observed, dim=0))
            if similarity > best:
                best, found = similarity, ids
        return Finding([] if found is None else [found], None, 1.0 - best)


@cache
def _guesses(target: Target, names: tuple[str, ...]) -> list[tuple[list[int], torch.Tensor]]:
    encoded = [target.encode([text]).ids[0].tolist() for text in SENTENCES]
    return [
        (ids, _flat(batch_gradient(target, [ids], [label], names)))
        for ids in encoded
        for label in range(target.num_labels if target.task == "classification" else 1)
    ]


def _flat(gradient: object) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in gradient.values()])  # type: ignore[attr-defined]
