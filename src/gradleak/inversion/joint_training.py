"""Several trainers on the gradients of one stream, each tested on the same held-out text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.inversion.gradients import GradientSource
from gradleak.inversion.streams import Stream
from gradleak.inversion.trainer import InverterTrainer
from gradleak.targets import Target

HELD_OUT = 512
# Number of the chunk that seeds the defenses of held-out gradients: no chunk of the training or the probe has it.
HELD_OUT_NUMBER = -1_000


@dataclass(frozen=True)
class HeldOutExamples:
    """What one inverter is tested on.

    Attributes:
        features: `[examples, features]`.
        ids: the true tokens `[examples, sequences, tokens]`.
        counted: which of them count.
    """

    features: Tensor
    ids: Tensor
    counted: Tensor


class JointTraining:
    """Trainers that share the gradients of one stream, and held-out text that none of them is trained on.

    Args:
        target: the model.
        trainers: their recipes must agree on the clients and on the size of chunks.
        stream: the text they are trained on.
        held_out: the text they are tested on.
        examples: number of examples they are tested on.
    """

    def __init__(
        self,
        target: Target,
        trainers: Sequence[InverterTrainer],
        stream: Stream,
        held_out: Stream,
        examples: int = HELD_OUT,
    ) -> None:
        self.trainers = list(trainers)
        recipe = self.trainers[0].recipe
        wanted = {name for trainer in trainers for name in trainer.names}
        names = [name for name in recipe.sent(target) if name in wanted]
        self.chunk = recipe.chunk
        self.source = recipe.gradient_source(target, stream, names)
        self.tests = self._prepare(recipe.gradient_source(target, held_out, names), examples)

    def train(self, number: int) -> list[Tensor]:
        """Train all inverters on chunk `number`, and return their losses."""
        chunk = self.source.make(number, self.chunk)
        return [trainer.train(trainer.features(chunk, number), chunk.ids) for trainer in self.trainers]

    def accuracies(self) -> list[float]:
        """Return the percentage of held-out tokens that each inverter gets right."""
        return [
            trainer.accuracy(test.features, test.ids, test.counted)
            for trainer, test in zip(self.trainers, self.tests, strict=True)
        ]

    def _prepare(self, held_out: GradientSource, examples: int) -> list[HeldOutExamples]:
        """Return the held-out examples of each trainer; gradients are not kept."""
        chunk = held_out.make(0, examples)
        counted = countable(held_out.target, chunk.ids, chunk.mask)
        return [
            HeldOutExamples(trainer.features(chunk, HELD_OUT_NUMBER), chunk.ids, counted) for trainer in self.trainers
        ]


def countable(target: Target, ids: Tensor, mask: Tensor) -> Tensor:
    """Return which tokens count for accuracy: neither padding nor special tokens, whose positions are known."""
    frame = torch.tensor([*sum(target.special_tokens, ()), target.pad_id], device=ids.device)
    return mask & ~torch.isin(ids, frame)
