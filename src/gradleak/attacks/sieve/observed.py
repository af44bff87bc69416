"""The update under attack and what its sentences may consist of; every reader of sieve takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from gradleak.attacks.sieve.hidden_states import HiddenStates
from gradleak.exchange import Deadline, Protocol
from gradleak.leakage.drift import copy_at_mean_weights
from gradleak.leakage.layer_inputs import LayerInputs, first_layer_inputs
from gradleak.leakage.noise_floor import NoiseFloor, Spectrum, whiten
from gradleak.leakage.perturbation import is_perturbed
from gradleak.leakage.restoration import KnownPart, restore
from gradleak.leakage.row_space import Subspace, row_space, scaled_rows, signal_space
from gradleak.priors import Prior
from gradleak.targets import Projection, Target

Sentence = tuple[int, ...]
"""Token ids of a text, special tokens included."""

ProgressCallback = Callable[[Sequence[Tensor], float], None]
"""Called with the sentences so far and their distance from the update."""


EVEN, DEEP = (1.0, 1.0, 1.0, 1.0), (0.25, 0.25, 1.0, 1.0, 1.0)
"""How much the contexts of each layer, from the first on, count in a sentence's score. Steps of Adam show contexts
roughly, and those of the first layers are much the same for other orders and forms of the words."""


@dataclass(frozen=True)
class ObservedUpdate:
    """An update, and what its sentences may consist of.

    Attributes:
        target: the model; if its client takes several steps of SGD, at the mean of its weights.
        inputs: the tables of x(t, p).
        gradient: gradients by name.
        words: the ids that may occur inside a text.
        longest: the greatest number of tokens of a sentence.
        progress: called before every step with the sentences so far; None for nobody.
        deadline: when to return the best found so far.
        protocol: what is public of how the update was made.
        floors: noise floors of the maps whose gradients were restored, by the module of the first of each group.
        sent: the gradients as they were sent, where some were restored; None where none was.
        before: the model before training, where `target` is not; None where it is.
        texts: the number of texts of a client that trained locally; None if it is not known.
        part_of_steps: whether this is the gradient of one of several steps of Adam, as the others show it.
        load_prior: returns a language model that proposes words, loaded when it is first needed; None for none.
    """

    target: Target
    inputs: LayerInputs
    gradient: Mapping[str, Tensor]
    words: Tensor
    longest: int
    progress: ProgressCallback | None = None
    deadline: Deadline = field(default_factory=Deadline)
    protocol: Protocol = field(default_factory=Protocol)
    floors: Mapping[str, NoiseFloor] = field(default_factory=dict)
    sent: Mapping[str, Tensor] | None = None
    before: Target | None = None
    texts: int | None = None
    part_of_steps: bool = False
    load_prior: Callable[[], Prior | None] = lambda: None

    @property
    def as_steps(self) -> bool:
        """Whether the update is a mean of several steps of Adam, whose entries have lost the size of a gradient's."""
        training = self.protocol.training
        return training is not None and training.optimizer != "sgd" and training.steps != 1

    @property
    def context_weights(self) -> Sequence[float]:
        """How much the contexts of each layer, from the first on, count in a sentence's score."""
        return DEEP if self.as_steps or self.part_of_steps else EVEN

    @property
    def map_gradients(self) -> list[Tensor]:
        """The gradients of the first maps, each `[outputs, width]`."""
        return [projection.weight_in(self.gradient) for projection in self.inputs.maps]

    @property
    def as_sent(self) -> Mapping[str, Tensor]:
        """The gradients as they were sent, with which a replay of the client is compared."""
        return self.gradient if self.sent is None else self.sent

    @property
    def untrained(self) -> Target:
        """The model before training."""
        return self.target if self.before is None else self.before

    def at_mean_weights(self) -> ObservedUpdate:
        """Return the update with the model as it was on average while the client trained."""
        moved = copy_at_mean_weights(self.target, self.gradient, self.protocol)
        if moved is self.target:
            return self
        return replace(self, target=moved, inputs=first_layer_inputs(moved), before=self.target)

    def counted(self, texts: int | None) -> ObservedUpdate:
        """Return the update of so many texts: if its client trained for some epochs, as one of that many steps."""
        training = self.protocol.training
        if training is None or texts is None:
            return self
        steps = training.in_steps(texts)
        factor = (training.epochs or 1) / (steps.steps or 1) if steps is not training else 1.0
        gradient = {name: factor * tensor for name, tensor in self.gradient.items()} if factor != 1 else self.gradient
        return replace(self, gradient=gradient, protocol=replace(self.protocol, training=steps), texts=texts)

    @cached_property
    def restored(self) -> ObservedUpdate:
        """The update with the rounding of a small difference of weights reduced in the maps of the first layers."""
        return self if self.sent is not None else self.restored_beside(None)

    def restored_beside(self, known: KnownPart | None) -> ObservedUpdate:
        """Return the same of the rest beside a part that is known and was subtracted."""
        contexts = [(layer.attention_output,) for layer in self.target.layers[: len(self.context_weights)]]
        hidden = [(self.target.layers[0].feed_forward_in,)] if self.hidden_states else []
        groups = [self.inputs.maps, *hidden, *contexts]
        found = restore(self.untrained, self.gradient, self.protocol, groups, self.deadline, self.texts, known)
        return replace(self, gradient=found.gradient, floors=found.floors, sent=self.gradient)

    @cached_property
    def hidden_states(self) -> HiddenStates | None:
        """What enters the first feed-forward map; None if it is not known, or the map's gradient was not sent."""
        sent = self.target.layers[0].feed_forward_in.weight in self.gradient
        return HiddenStates.of(self.target, self.inputs) if sent else None

    @cached_property
    def space(self) -> Subspace:
        """The row space of the first maps' gradients: the span of the batch's x(t, p)."""
        if self.inputs.maps[0].module in self.floors:
            return signal_space(self.spectrum(self.inputs.maps))
        return row_space(self.map_gradients, perturbed=is_perturbed(self.target, self.gradient, self.protocol))

    def noise_floor(self, parts: Sequence[Projection]) -> NoiseFloor:
        """Return what rounding or noise added to the gradients of maps with the same inputs, one above the other."""
        known = self.floors.get(parts[0].module)
        if known is not None:
            return known
        gradients = [part.weight_in(self.gradient).double() for part in parts]
        floor = whiten(scaled_rows(gradients)).floor
        norms = torch.cat([own.norm().expand(len(own)) for own in gradients])
        return NoiseFloor(floor.rows * norms[:, None], floor.columns)

    def spectrum(self, parts: Sequence[Projection]) -> Spectrum:
        """Return the singular values of maps with the same inputs, in units of their noise."""
        return self.noise_floor(parts).spectrum(torch.cat([part.weight_in(self.gradient) for part in parts]))

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
