"""What the first linear map of a model is fed: x(t, p), for every token t at every position p.

In every family that gradleak loads it is a LayerNorm of a sum of embeddings,

    x(t, p) = γ ⊙ (E_t + P_p + T_0 − mean) / σ(t, p) + β,

so that the inner products of all vocabulary × positions vectors with anything come from products with the tables E and
P alone: the scan of a vocabulary costs one matrix product, not one for each position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.errors import GradleakError
from gradleak.targets import Projection, Target


@dataclass(frozen=True)
class Inputs:
    """The tables that x(t, p) is made of.

    Attributes:
        words: word plus type embeddings, each row's mean subtracted `[vocabulary, width]`.
        positions: position embeddings from the first position on, each row's mean subtracted `[positions, width]`.
        scale: γ of the LayerNorm.
        shift: β of the LayerNorm.
        epsilon: of the LayerNorm.
        word_means: the means that were subtracted from the words `[vocabulary]`.
        position_means: the same of the positions.
        dropout_first: whether dropout comes before the LayerNorm (GPT-2) or after it.
        rate: the model's dropout rate there; a client may have it switched off.
        maps: the linear maps that take x.
    """

    words: Tensor
    positions: Tensor
    scale: Tensor
    shift: Tensor
    epsilon: float
    word_means: Tensor
    position_means: Tensor
    dropout_first: bool
    rate: float
    maps: tuple[Projection, ...]

    @property
    def width(self) -> int:
        """How many numbers x has."""
        return self.words.shape[1]

    def sums(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return E_t + P_p + T_0 `[…, width]` in float64: what GPT-2's dropout gets to see."""
        means = self.word_means[tokens].double() + self.position_means[positions].double()
        return self.words[tokens].double() + self.positions[positions].double() + means[..., None]

    def normalised(self, sums: Tensor) -> Tensor:
        """Return the LayerNorm of vectors `[…, width]` in float64."""
        centred = sums - sums.mean(dim=-1, keepdim=True)
        deviation = (centred.square().mean(dim=-1, keepdim=True) + self.epsilon).sqrt()
        return self.scale.double() * centred / deviation + self.shift.double()

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return x(t, p) `[…, width]` in float64."""
        return self.normalised(self.sums(tokens, positions))

    @cached_property
    def _norms(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """‖E‖² and ‖γE‖² of words, then of positions."""
        squares, scaled = self.words.square().sum(dim=1), (self.words * self.scale).square().sum(dim=1)
        return squares, scaled, self.positions.square().sum(dim=1), (self.positions * self.scale).square().sum(dim=1)

    def captured(self, basis: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return ‖Vᵀx‖² / ‖x‖² of all tokens at all positions `[tokens, positions]` in the tables' precision.

        Args:
            basis: V, orthonormal columns `[width, rank]`.
            tokens: which tokens.
            positions: which positions.
        """
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


def first_inputs(target: Target) -> Inputs:
    """Read the tables off a target, whatever family it is of, by watching one forward pass."""
    family, model = target.family, target.model
    if family.position_embedding is None:
        raise GradleakError(f"sieve needs a table of position embeddings; {target.name} has none")
    norm, dropout_first, rate, first = _before_the_first_map(target)
    offset = family.position_offset(target.config)
    positions = _table(model, family.position_embedding)[offset:]
    words = target.word_embeddings.detach()
    if family.type_embedding is not None:
        words = words + _table(model, family.type_embedding)[0]
    layer = target.layers[0]
    attention = (layer.query, layer.key, layer.value)
    maps = attention if first in {projection.module for projection in attention} else (Projection(first),)
    word_means, position_means = words.mean(dim=1), positions.mean(dim=1)
    return Inputs(
        words - word_means[:, None],
        positions - position_means[:, None],
        norm.weight.detach(),
        norm.bias.detach(),
        float(norm.eps),
        word_means,
        position_means,
        dropout_first,
        rate,
        maps,
    )


def _table(model: nn.Module, path: str) -> Tensor:
    weight: Tensor = model.get_submodule(path).weight  # type: ignore[assignment]
    return weight.detach()


class _FirstMapReached(Exception):  # noqa: N818 - no error, a way out
    """Raised to leave a forward pass."""


def _before_the_first_map(target: Target) -> tuple[Any, bool, float, str]:
    """Return the LayerNorm before the first linear map, whether dropout comes before it, its rate, the map's path."""
    seen: list[tuple[str, nn.Module]] = []
    kinds = (nn.LayerNorm, nn.Dropout)
    linear = {layer for projection in _maps_of(target) for layer in (projection,)}

    def note(path: str) -> Any:  # noqa: ANN401
        def hook(module: nn.Module, *_: object) -> None:
            seen.append((path, module))
            if path in linear or isinstance(module, nn.Linear):
                raise _FirstMapReached

        return hook

    watched = {n: m for n, m in target.model.named_modules() if isinstance(m, (*kinds, nn.Linear)) or n in linear}
    with _hooks({module: note(path) for path, module in watched.items()}):
        try:
            ids = torch.zeros(1, 2, dtype=torch.long, device=target.device)
            mask = torch.ones_like(ids, dtype=torch.bool)
            target.family.logits(target.model, target.embed(ids), mask, target.task)
        except _FirstMapReached:
            pass
    norms = [index for index, (_, module) in enumerate(seen) if isinstance(module, nn.LayerNorm)]
    if not norms:
        raise GradleakError(f"sieve needs a LayerNorm before the first layer; {target.name} has none")
    drops = [(index, module.p) for index, (_, module) in enumerate(seen) if isinstance(module, nn.Dropout)]
    dropout_first = bool(drops) and drops[-1][0] < norms[-1]
    return seen[norms[-1]][1], dropout_first, drops[-1][1] if drops else 0.0, seen[-1][0]


def _maps_of(target: Target) -> set[str]:
    layer = target.layers[0]
    return {layer.query.module, layer.key.module, layer.value.module}


@contextmanager
def _hooks(hooks: Mapping[nn.Module, Any]) -> Iterator[None]:
    handles = [module.register_forward_pre_hook(hook) for module, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
