"""Examine an update before it is attacked: which gradients were sent, which defense shows, how many tokens there are.

Used by auto, which chooses attacks by it and quotes it in the notes of a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gradleak.exchange import Protocol
from gradleak.leakage.dropout import dropout_is_off
from gradleak.leakage.first_step import are_steps
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.perturbation import PRUNED, is_perturbed, is_rounded, noise_level, zero_fraction
from gradleak.leakage.row_space import row_space
from gradleak.leakage.tokens import words_hidden
from gradleak.targets import Target

CLEAR = 1e-2
"""Dropout is recognisable if the noise floor of the first layer is below this fraction of the signal."""

TINY = 1e-12

NO_ATTENTION = "no attention gradients: the text can be searched, not read out"
FIRST_ROUND = "the adapters' B is zero, as in a first round: the gradient of A says nothing"


@dataclass(frozen=True)
class Evidence:
    """What an update reveals about how it was made.

    Attributes:
        kept: the fraction of entries that are not zero.
        rounded: whether entries have few distinct values, as after half precision or subtraction of weights.
        only_signs: whether all entries are −1, 0 or 1.
        noise: standard deviation of added noise; None if it cannot be measured.
        attention: whether attention gradients of the first layer were sent.
        tokens: the rank of their row space, which is the number of tokens; None if the space is full or empty.
        margin: how many times the weakest of them exceeds the noise floor.
        dropout: whether the client uses dropout; None if it cannot be seen.
        embeddings: which embedding gradients were sent, in words.
        protocol: what is public of how it was made.
        as_steps: whether entries are steps of Adam, no gradient.
        adapters: what is to be said of the target's adapters, one line each; empty without them.
    """

    kept: float
    rounded: bool
    only_signs: bool
    noise: float | None
    attention: bool
    tokens: int | None
    margin: float
    dropout: bool | None
    embeddings: str
    protocol: Protocol
    as_steps: bool
    adapters: tuple[str, ...] = ()

    @property
    def pruned(self) -> bool:
        """Whether entries were removed: zeros that rounding does not explain."""
        return self.kept < 1 - PRUNED and not self.rounded

    @property
    def lines(self) -> list[str]:
        """The findings as notes, one line each."""
        said = [*self._stated, *self.adapters, f"embedding gradients: {self.embeddings}"]
        if self.only_signs:
            said.append("only signs were sent")
        elif self.pruned:
            said.append(f"pruned to {100 * self.kept:.2g} %")
        elif self.rounded:
            said.append("rounded to few distinct values: half precision, or a difference of weights")
        if self.noise and not self.only_signs and not self.rounded:
            said.append(f"noise about {self.noise:.1g}")
        if self.tokens is not None:
            sure = f"the weakest {self.margin:.2g} times as strong as the noise floor"
            said.append(f"about {self.tokens} tokens stand out of the first layer, {sure}")
        elif not self.attention and not self.adapters:
            said.append(NO_ATTENTION)
        if self.dropout is not None:
            said.append("dropout likely" if self.dropout else "no dropout")
        return said

    @property
    def _stated(self) -> list[str]:
        """What the update's metadata says of its making, one line each."""
        training, said = self.protocol.training, []
        if training is not None:
            said.append(f"stated: {training.in_words}")
            if training.optimizer != "sgd":
                told = "read as steps" if self.as_steps else "turned back into a gradient through its ε"
                said.append(f"{training.optimizer}: {told}")
        if self.protocol.precision != "fp32":
            said.append(f"stated: trained in {self.protocol.precision}")
        if self.protocol.send != "fp32":
            said.append(f"stated: sent as {self.protocol.send}")
        if self.protocol.clients > 1:
            said.append(f"stated: a sum over {self.protocol.clients} clients, read like one batch of all their texts")
        return said


def examine(target: Target, gradient: Mapping[str, Tensor], protocol: Protocol | None = None) -> Evidence:
    """Return what an update reveals before it is attacked.

    Args:
        target: the model.
        gradient: gradients by name.
        protocol: what is public of how the update was made.
    """
    protocol = protocol or Protocol()
    perturbed = is_perturbed(target, gradient, protocol)
    only_signs = all(bool(((t == 0) | (t.abs() == 1)).all()) for t in gradient.values())
    attention = bool(target.layers) and target.layers[0].query.weight in gradient
    tokens, margin, dropout = None, 0.0, None
    if attention:
        inputs = first_layer_inputs(target)  # refuses models without position embeddings, whatever was sent
        if not only_signs:
            maps = [projection.weight_in(gradient) for projection in inputs.maps]
            space = row_space(maps, perturbed=perturbed)
            if 0 < space.rank < space.width:
                tokens = space.rank
                margin = float(space.values[space.rank - 1]) / max(space.floor, TINY)
                dropout = not dropout_is_off(target, inputs, space) if space.error < CLEAR else None
    return Evidence(
        kept=1 - zero_fraction(target, gradient),
        rounded=not only_signs and is_rounded(target, gradient, protocol),
        only_signs=only_signs,
        noise=noise_level(target, gradient),
        attention=attention,
        tokens=tokens,
        margin=margin,
        dropout=dropout,
        embeddings=_embeddings_sent(target, gradient),
        protocol=protocol,
        as_steps=are_steps(gradient),
        adapters=_adapter_lines(target),
    )


def _adapter_lines(target: Target) -> tuple[str, ...]:
    if target.adapter is None:
        return ()
    zero = all(not bool(module.b_in(target.parameters).any()) for module in target.adapters)
    return (f"adapters alone: {target.adapter.in_words}", *((FIRST_ROUND,) if zero else ()))


def _embeddings_sent(target: Target, gradient: Mapping[str, Tensor]) -> str:
    if target.word_parameters <= gradient.keys():
        if words_hidden(target, gradient):
            return "sent, but every word's row changed, as noise or AdamW do"
        return "sent, so that the words are known"
    return "of positions, not of words" if target.embedding_parameters & gradient.keys() else "not sent"
