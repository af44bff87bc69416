"""Where an update shows a decoder's activations: the inputs that its linear maps share, and the rows that combine them.

The gradient of a linear map W is Σ δᵢ xᵢᵀ over the tokens i; that of a LoRA matrix A is s·Bᵀ Σ δᵢ xᵢᵀ. Either way
each row is a combination of the same vectors xᵢ, the map's inputs. Maps that read one input (query, key and value of a
layer) form a site: their rows are stacked. In the first round B = 0 and A has no gradient; that of B is s·Σ δᵢ (A xᵢ)ᵀ,
whose rows combine the r numbers A xᵢ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gradleak.targets import Target
from gradleak.targets.hooks import captured_calls


@dataclass(frozen=True)
class MapRows:
    """The rows that one linear map contributes.

    Attributes:
        path: the module.
        rows: combinations of its inputs `[rows, width]`.
        outputs: factors by which gradients of the map's outputs became these rows `[rows, outputs]`; None for the
            identity. Bᵀ times the scaling for a LoRA matrix A.
        slots: the outputs of the module that belong to this map; all by default.
        reduction: A where the rows combine A x rather than x `[r, width]`; else None.
    """

    path: str
    rows: Tensor
    outputs: Tensor | None = None
    slots: slice | list[int] = field(default_factory=lambda: slice(None))
    reduction: Tensor | None = None

    def coefficients_of(self, gradients: Tensor) -> Tensor:
        """Return the coefficients in the rows, scaled to unit norm, that gradients of the module's outputs make.

        Args:
            gradients: of all outputs `[n, outputs]`.
        """
        own = gradients[:, self.slots].double()
        own = own if self.outputs is None else own @ self.outputs.to(own).T
        return own / self.rows.double().norm()


@dataclass(frozen=True)
class InputSite:
    """Linear maps with one input, and their rows of the update.

    Attributes:
        maps: the maps, in the order in which they run.
        tokenwise: whether the input depends on one token alone (and its position), as in the first layer.
    """

    maps: tuple[MapRows, ...]
    tokenwise: bool = False

    @property
    def path(self) -> str:
        """The module whose input this is."""
        return self.maps[0].path

    @property
    def height(self) -> int:
        """The number of rows."""
        return sum(len(part.rows) for part in self.maps)

    @property
    def reduction(self) -> Tensor | None:
        """The matrix that is applied to the input before it is compared with the rows; None for none."""
        return self.maps[0].reduction

    @property
    def width(self) -> int:
        """The number of entries of a row."""
        return self.maps[0].rows.shape[1]

    @cached_property
    def rows(self) -> Tensor:
        """All rows in float64, each map's scaled to unit norm `[rows, width]`."""
        parts = [part.rows.double() for part in self.maps]
        return torch.cat([part / part.norm().clamp(min=1e-300) for part in parts])

    def reduced(self, inputs: Tensor) -> Tensor:
        """Return inputs `[…, width]` as the rows combine them."""
        return inputs if self.reduction is None else inputs @ self.reduction.to(inputs).T


def find_sites(target: Target, gradient: Mapping[str, Tensor]) -> list[InputSite]:
    """Return the sites of an update in the order in which a forward pass reaches them.

    Args:
        target: a decoder.
        gradient: gradients by name.
    """
    maps = _adapter_maps(target, gradient) if target.adapter is not None else _full_maps(target, gradient)
    by_path: dict[str, list[MapRows]] = {}
    for part in maps:
        by_path.setdefault(part.path, []).append(part)
    inputs = _inputs(target, list(by_path))
    groups: list[tuple[Tensor, list[MapRows]]] = []
    for path, given in inputs.items():
        shared = next((own for seen, own in groups if seen is given and _same_space(own[0], by_path[path][0])), None)
        if shared is None:
            groups.append((given, list(by_path[path])))
        else:
            shared += by_path[path]
    return [InputSite(tuple(own), _is_tokenwise(given)) for given, own in groups]


def sees_every_token(target: Target, site: InputSite) -> bool:
    """Return whether every token leaves a row at a site: not so after the attention of a classifier's last layer."""
    if target.task == "causal-lm":
        return True
    layer = target.layers[-1]
    after = {part.module for part in layer.projections} - {layer.key.module, layer.value.module}
    return site.path not in after


def _same_space(one: MapRows, other: MapRows) -> bool:
    return one.reduction is None and other.reduction is None


def _full_maps(target: Target, gradient: Mapping[str, Tensor]) -> list[MapRows]:
    parts = [part for layer in target.layers for part in layer.projections if part.weight in gradient]
    return [
        MapRows(part.module, part.weight_in(gradient), slots=part.rows)
        for part in parts
        if bool(part.weight_in(gradient).any())
    ]


def _adapter_maps(target: Target, gradient: Mapping[str, Tensor]) -> list[MapRows]:
    """Return the rows of the gradients of A, or of B where A has none.

    A text's first token attends to itself alone, so that its query has no gradient. Among the stacked rows of A that
    does no harm; of B's gradients, which stand alone, those of queries are left out.
    """
    queries = {layer.query.module for layer in target.layers} - {layer.value.module for layer in target.layers}
    maps = []
    for module in target.adapters:
        a, b = gradient.get(module.a), gradient.get(module.b)
        if a is not None and bool(a.any()):
            factors = module.scaling * module.b_in(target.parameters).detach().double().T
            maps.append(MapRows(module.path, a, factors))
        elif b is not None and bool(b.any()) and module.path not in queries:
            maps.append(MapRows(module.path, b, reduction=module.a_in(target.parameters).detach()))
    return maps


def _inputs(target: Target, paths: Sequence[str]) -> dict[str, Tensor]:
    """Return by path what each module takes when two texts run that differ in their first token alone."""
    ids = torch.tensor([[0, 2], [1, 2]], device=target.device)
    with torch.no_grad(), captured_calls(target, paths) as calls:
        target.logits(target.embed(ids), torch.ones_like(ids, dtype=torch.bool))
    return {call.path: call.inputs for call in calls}


def _is_tokenwise(inputs: Tensor) -> bool:
    first, second = inputs[:, 1]
    return bool(torch.allclose(first, second, rtol=1e-5, atol=1e-6 * float(first.abs().max())))
