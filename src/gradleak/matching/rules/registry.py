"""How a layer's gradient follows from its inputs and the gradients of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gradleak.matching.factors import Factor


@dataclass(frozen=True)
class Use:
    """One use of a layer in a forward pass over all candidates at once.

    Attributes:
        inputs: what went in `[sequences, …]`.
        outputs: what came out `[sequences, …]`.
        gradients: the loss's gradient with respect to `outputs`.
        shape: `(victims, candidates, sequences of a candidate)`, whose product is `sequences`.
    """

    inputs: Tensor
    outputs: Tensor
    gradients: Tensor
    shape: tuple[int, int, int]

    def by_candidate(self, tensor: Tensor) -> Tensor:
        """Return `[sequences, …, features]` as `[victims, candidates, terms, features]`."""
        victims, candidates, _ = self.shape
        return tensor.reshape(victims, candidates, -1, tensor.shape[-1])


Rule = Callable[[Any, Use], dict[str, Factor]]
RULES: dict[type[nn.Module], Rule] = {}


def rule(*kinds: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Decorator: register the rule of one or more layer types.

    A rule takes the layer and one `Use` of it, and returns the gradient of each of the layer's own parameters as a
    factor. To add a layer type, write a file like `norm.py` beside this one and import it in `__init__.py`:

        @rule(MyScale)
        def my_scale(layer: MyScale, use: Use) -> dict[str, Factor]:
            return {"weight": Dense(use.by_candidate(use.inputs * use.gradients).sum(dim=2))}

    A rule that is wrong for some model does no harm: the engine checks every rule against autograd before it trusts
    it with a target.
    """

    def register(function: Rule) -> Rule:
        for kind in kinds:
            RULES[kind] = function
        return function

    return register
