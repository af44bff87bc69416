"""The inputs x(t, p) of a model's first linear maps, for every token t at every position p.

In every family that gradleak loads, x is a LayerNorm of a sum of embeddings,

    x(t, p) = γ ⊙ (E_t + P_p + T_0 − mean) / σ(t, p) + β,

or, in Llama and its relatives, the same without mean, P and β: an RMSNorm of the word embedding alone. Decoders with
rotary positions apply them later, to queries and keys, and x(t) is the same at every position.

So the inner products of all vocabulary × positions vectors with any basis follow from products with the tables E and P
alone: scanning a vocabulary costs one matrix product, not one per position. Used by sieve and by `examine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.errors import GradleakError
from gradleak.targets import Projection, Target
from gradleak.targets.hooks import ModuleCall, captured_calls
from gradleak.targets.norms import RmsNorm

NORMS = (nn.LayerNorm, RmsNorm)


@dataclass(frozen=True)
class LayerInputs:
    """The tables from which x(t, p) is computed.

    Attributes:
        words: word plus type embeddings, each row's mean subtracted if the norm is centred `[vocabulary, width]`.
        positions: position embeddings from the first position on, each row's mean subtracted `[positions, width]`; one
            row of zeros if x is the same at every position.
        scale: γ of the norm.
        shift: β of the norm; zero for an RMSNorm.
        epsilon: ε of the norm.
        word_means: the means that were subtracted from the words `[vocabulary]`.
        position_means: the means that were subtracted from the positions `[positions]`.
        dropout_before_norm: whether dropout precedes the norm (GPT-2) or follows it.
        rate: the model's dropout rate there; a client may have switched dropout off.
        maps: the linear maps that take x as input.
        centred: whether the norm subtracts the mean: LayerNorm does, RMSNorm does not.
        by_position: whether x depends on the position.
    """

    words: Tensor
    positions: Tensor
    scale: Tensor
    shift: Tensor
    epsilon: float
    word_means: Tensor
    position_means: Tensor
    dropout_before_norm: bool
    rate: float
    maps: tuple[Projection, ...]
    centred: bool = True
    by_position: bool = True

    @property
    def width(self) -> int:
        """The number of entries of x."""
        return self.words.shape[1]

    def embedding_sums(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return E_t + P_p + T_0 `[…, width]` in float64: the input of GPT-2's first dropout."""
        places = self._rows(positions)
        means = self.word_means[tokens].double() + self.position_means[places].double()
        return self.words[tokens].double() + self.positions[places].double() + means[..., None]

    def _rows(self, positions: Tensor) -> Tensor:
        """Return the rows of the position table that belong to positions."""
        return positions if self.by_position else torch.zeros_like(positions)

    def layer_norm(self, sums: Tensor) -> Tensor:
        """Return the norm of vectors `[…, width]` in float64."""
        centred = sums - sums.mean(dim=-1, keepdim=True) if self.centred else sums
        deviation = (centred.square().mean(dim=-1, keepdim=True) + self.epsilon).sqrt()
        return self.scale.double() * centred / deviation + self.shift.double()

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return x(t, p) `[…, width]` in float64."""
        return self.layer_norm(self.embedding_sums(tokens, positions))

    @cached_property
    def _norms(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """‖E‖² and ‖γE‖² of words, then of positions."""
        squares, scaled = self.words.square().sum(dim=1), (self.words * self.scale).square().sum(dim=1)
        return squares, scaled, self.positions.square().sum(dim=1), (self.positions * self.scale).square().sum(dim=1)

    def captured_energy(self, basis: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return ‖Vᵀx‖² / ‖x‖² of all tokens at all positions `[tokens, positions]` in the tables' precision.

        Args:
            basis: V, orthonormal columns `[width, rank]`.
            tokens: token ids.
            positions: position indices.
        """
        positions = self._rows(positions)
        words, places = self.words[tokens], self.positions[positions]
        squares, scaled, place_squares, place_scaled = self._norms
        directions = basis.to(self.words)
        inner = words @ places.T
        deviation = ((squares[tokens, None] + 2 * inner + place_squares[positions]) / self.width + self.epsilon).sqrt()
        both = scaled[tokens, None] + 2 * words @ (places * self.scale.square()).T + place_scaled[positions]
        slope = (words @ (self.scale * self.shift))[:, None] + places @ (self.scale * self.shift)
        length = both / deviation.square() + 2 * slope / deviation + self.shift.square().sum()
        scaled_directions = self.scale[:, None] * directions
        word_parts, place_parts = words @ scaled_directions, places @ scaled_directions
        rest = self.shift @ directions
        inside = word_parts.square().sum(dim=1)[:, None] + 2 * word_parts @ place_parts.T
        inside = (inside + place_parts.square().sum(dim=1)) / deviation.square()
        inside = inside + 2 * ((word_parts @ rest)[:, None] + place_parts @ rest) / deviation + rest.square().sum()
        return inside / length


def first_layer_inputs(target: Target) -> LayerInputs:
    """Read the tables off a target of any family by observing one forward pass."""
    family, model = target.family, target.model
    norm, dropout_before_norm, rate, first = _modules_before_first_map(target)
    words = target.word_embeddings.detach() * family.embedding_scale(target.config)
    if family.type_embedding is not None:
        words = words + _table(model, family.type_embedding)[0]
    if family.position_embedding is not None:
        positions = _table(model, family.position_embedding)[family.position_offset(target.config) :]
    elif family.rotary:
        positions = torch.zeros_like(words[:1])
    else:
        raise GradleakError(f"sieve needs to know where positions enter; {target.name} has no position embeddings")
    layer = target.layers[0]
    attention = (layer.query, layer.key, layer.value)
    centred = isinstance(norm, nn.LayerNorm)
    word_means, position_means = (table.mean(dim=1) * centred for table in (words, positions))
    scale = norm.weight.detach()
    return LayerInputs(
        words=words - word_means[:, None],
        positions=positions - position_means[:, None],
        scale=scale if centred else scale + norm.offset,
        shift=norm.bias.detach() if centred else torch.zeros_like(scale),
        epsilon=float(norm.eps),
        word_means=word_means,
        position_means=position_means,
        dropout_before_norm=dropout_before_norm,
        rate=rate,
        maps=attention if first in {projection.module for projection in attention} else (Projection(first),),
        centred=centred,
        by_position=family.position_embedding is not None,
    )


def _table(model: nn.Module, path: str) -> Tensor:
    weight: Tensor = model.get_submodule(path).weight  # type: ignore[assignment]
    return weight.detach()


def _modules_before_first_map(target: Target) -> tuple[Any, bool, float, str]:
    """Return the norm before the first linear map, whether dropout precedes it, its rate, and the map's path."""
    layer = target.layers[0]
    linear = {layer.query.module, layer.key.module, layer.value.module}  # GPT-2's are no nn.Linear

    def at_first_map(calls: Sequence[ModuleCall]) -> bool:
        return calls[-1].path in linear or isinstance(calls[-1].module, nn.Linear)

    kinds = (*NORMS, nn.Dropout, nn.Linear)
    watched = [path for path, m in target.model.named_modules() if isinstance(m, kinds) or path in linear]
    with captured_calls(target, watched, stop=at_first_map) as calls:
        ids = torch.zeros(1, 2, dtype=torch.long, device=target.device)
        target.logits(target.embed(ids), torch.ones_like(ids, dtype=torch.bool))
    visited = [(call.path, call.module) for call in calls]
    norms = [index for index, (_, module) in enumerate(visited) if isinstance(module, NORMS)]
    if not norms:
        raise GradleakError(f"sieve needs a norm before the first layer; {target.name} has none")
    drops = [(index, module.p) for index, (_, module) in enumerate(visited) if isinstance(module, nn.Dropout)]
    dropout_before_norm = bool(drops) and drops[-1][0] < norms[-1]
    return visited[norms[-1]][1], dropout_before_norm, drops[-1][1] if drops else 0.0, visited[-1][0]
