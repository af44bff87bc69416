"""The registry of gradient rules: how a layer's gradients follow from its activations and backprops.

`trace.py` looks rules up here; the vocabulary (activations, backprops) is that of Opacus's `grad_sample` room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gradleak.matching.factors import Factor


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer in a forward pass over all candidates at once.

    Attributes:
        activations: the layer's input `[sequences, …]`.
        outputs: the layer's output `[sequences, …]`.
        backprops: the loss's gradient with respect to `outputs`.
        shape: `(victims, candidates, sequences of a candidate)`, whose product is `sequences`.
    """

    activations: Tensor
    outputs: Tensor
    backprops: Tensor
    shape: tuple[int, int, int]

    def by_candidate(self, tensor: Tensor) -> Tensor:
        """Return `[sequences, …, features]` as `[victims, candidates, terms, features]`."""
        victims, candidates, _ = self.shape
        return tensor.reshape(victims, candidates, -1, tensor.shape[-1])


GradRule = Callable[[Any, LayerCall], dict[str, Factor]]
RULES: dict[type[nn.Module], GradRule] = {}


def register_grad_rule(*kinds: type[nn.Module]) -> Callable[[GradRule], GradRule]:
    """Register the decorated function as the gradient rule of one or more layer types.

    A rule takes the layer and one `LayerCall`, and returns the gradient of each of the layer's own parameters as a
    factor. To add a layer type, write a file like `norm.py` beside this one and import it in `__init__.py`:

        @register_grad_rule(Scale)
        def scale(layer: Scale, call: LayerCall) -> dict[str, Factor]:
            return {"factor": Dense(call.by_candidate(call.activations * call.backprops).sum(dim=2))}

    A wrong rule costs speed, not correctness: `rule_check.py` compares every rule with autograd on each target, and
    parameters for which they differ are computed by autograd.
    """

    def register(rule: GradRule) -> GradRule:
        for kind in kinds:
            RULES[kind] = rule
        return rule

    return register
