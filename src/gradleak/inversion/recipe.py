"""A recipe: all settings of the training of an inverter, for clients with given defenses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.defenses import Defense, examples_needed
from gradleak.errors import GradleakError
from gradleak.federation import sent_parameters
from gradleak.inversion.gradients import GradientSource
from gradleak.inversion.streams import Shape, Stream
from gradleak.inverters.settings import TrainingSettings
from gradleak.settings import setting
from gradleak.targets import Target

RATES = (1e-3, 1e-4, 1e-5)
"""The learning rates that the paper chooses from, for each defense (section 4.2)."""


@dataclass(frozen=True, kw_only=True)
class Recipe(TrainingSettings):
    """How an inverter is trained; `PAPER` has the paper's values (section 4.2).

    Its fields are the settings of `TrainingSettings`, each documented there, and the defenses of the clients.
    """

    defenses: tuple[Defense, ...] = setting(
        (), "the clients' defenses, in order; applied to all gradients that are trained on"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if examples_needed(self.defenses) and self.sequences > 1:
            raise GradleakError(f"{self.defenses[0].name} is learnt for batches of one sentence only")

    @property
    def shape(self) -> Shape:
        """The lengths of sentences."""
        return Shape(self.tokens, self.shortest)

    def sent(self, target: Target) -> list[str]:
        """Return the parameters whose gradients the clients send."""
        return sent_parameters(target, self.embeddings)

    def gradient_source(self, target: Target, stream: Stream, names: Sequence[str]) -> GradientSource:
        """Return the source of some parameters' gradients, for batches of sentences of a stream."""
        return GradientSource(target, stream, names, sequences=self.sequences, dropout=self.dropout, seed=self.seed)


PAPER = Recipe(
    embeddings="words-frozen", reduction="hash", share=0.1, output="vocabulary", direct=False, decay=False, batch=64
)
"""LTI as published; the learning rate is one of `RATES`."""
