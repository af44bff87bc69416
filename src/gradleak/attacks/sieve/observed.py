"""The update under attack and what its sentences may consist of; every reader of sieve takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from gradleak.exchange import Deadline, Protocol
from gradleak.leakage.layer_inputs import LayerInputs
from gradleak.leakage.perturbation import is_perturbed
from gradleak.leakage.row_space import Subspace, row_space
from gradleak.leakage.weight_rounding import restored
from gradleak.targets import Target

Sentence = tuple[int, ...]
"""Token ids of a text, special tokens included."""

ProgressCallback = Callable[[Sequence[Tensor], float], None]
"""Called with the sentences so far and their distance from the update."""


RESTORED_LAYERS = 4
"""How many layers' contexts are restored: as many as a sentence is scored by."""


@dataclass(frozen=True)
class ObservedUpdate:
    """An update, and what its sentences may consist of.

    Attributes:
        target: the model.
        inputs: the tables of x(t, p).
        gradient: gradients by name.
        words: the ids that may occur inside a text.
        longest: the greatest number of tokens of a sentence.
        progress: called before every step with the sentences so far; None for nobody.
        deadline: when to return the best found so far.
        protocol: what is public of how the update was made.
    """

    target: Target
    inputs: LayerInputs
    gradient: Mapping[str, Tensor]
    words: Tensor
    longest: int
    progress: ProgressCallback | None = None
    deadline: Deadline = field(default_factory=Deadline)
    protocol: Protocol = field(default_factory=Protocol)

    @property
    def as_steps(self) -> bool:
        """Whether the update is a mean of several steps of Adam, whose entries have lost the size of a gradient's."""
        training = self.protocol.training
        return training is not None and training.optimizer != "sgd" and training.steps != 1

    @property
    def map_gradients(self) -> list[Tensor]:
        """The gradients of the first maps, each `[outputs, width]`."""
        return [projection.weight_in(self.gradient) for projection in self.inputs.maps]

    @cached_property
    def restored(self) -> ObservedUpdate:
        """The update with the rounding of a small difference of weights reduced in the maps of the first layers."""
        contexts = [(layer.attention_output,) for layer in self.target.layers[:RESTORED_LAYERS]]
        gradient = restored(self.target, self.gradient, self.protocol, [self.inputs.maps, *contexts])
        return replace(self, gradient=gradient)

    @cached_property
    def space(self) -> Subspace:
        """The row space of the first maps' gradients: the span of the batch's x(t, p)."""
        return row_space(self.map_gradients, perturbed=is_perturbed(self.target, self.gradient, self.protocol))

    @cached_property
    def common(self) -> Tensor:
        """Directions that nearly all rows share `[rows, width]`: mean words at a few positions, and the first token."""
        inputs, words = self.inputs, self.words
        some = words[:: max(1, len(words) // 2000)]
        places = torch.tensor([1, 6, 12], device=words.device).clamp(max=inputs.positions.shape[0] - 1)
        means = [inputs(some, place.expand(len(some))).mean(dim=0) for place in places]
        start = torch.tensor(self.target.special_tokens[0][:1], device=words.device, dtype=torch.long)
        return torch.cat([torch.stack(means), inputs(start, torch.zeros_like(start))])

    def report(self, sentences: Sequence[Tensor], distance: float) -> None:
        """Call the progress callback, if there is one."""
        if self.progress is not None:
            self.progress(sentences, distance)
