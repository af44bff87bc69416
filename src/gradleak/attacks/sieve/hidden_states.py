"""The hidden states that enter the first layer's feed-forward network, as a linear function of what a sentence holds.

In every encoder that gradleak loads they are h = LN(y) with y = x(t, p) + W c + b: the token's own x, and its attention
context c, which depends on the whole sentence. They span the row space of the feed-forward map's gradient, which has
more rows than any other map's and hence the least noise. A wrong word shows most at its own position, by its own x, and
a little everywhere else, by c. But for its scale 1 / σ and β, LN is linear: with β among the directions of the row
space, all that counts is whether γ ⊙ (y − mean y) lies in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradleak.leakage.layer_inputs import LayerInputs
from gradleak.leakage.recompute import random_texts
from gradleak.targets import Target
from gradleak.targets.hooks import ModuleCall, captured_calls

WORDS = 4
"""Words of the text on which the linear function is compared with the model."""

AGREES = 1e-4
"""The largest relative difference from the model that rounding leaves."""


@dataclass(frozen=True)
class HiddenStates:
    """γ ⊙ (y − mean y) as a function of a token's x(t, p) and its attention context.

    Attributes:
        inputs: the tables of x(t, p).
        mixing: what a context contributes `[context width, width]`.
        bias: the attention output map's bias `[width]`.
        scale: γ of the norm.
        shift: β of the norm, which is added to all hidden states.
    """

    inputs: LayerInputs
    mixing: Tensor
    bias: Tensor
    scale: Tensor
    shift: Tensor

    @classmethod
    def of(cls, target: Target, inputs: LayerInputs) -> HiddenStates | None:
        """Return the first layer's; None if what enters its feed-forward network is another function."""
        calls = _calls_of_first_layer(target)
        norm = next((call.module for call in reversed(calls) if isinstance(call.module, nn.LayerNorm)), None)
        output = target.layers[0].attention_output
        before = next((call for call in calls if call.path == output.module), None)
        if norm is None or before is None or not inputs.by_position:
            return None
        weight = output.weight_in(target.parameters).detach().double()
        bias = weight.new_zeros(len(weight))
        if output.bias in target.parameters:
            bias = output.bias_in(target.parameters).detach().double()
        scale, shift = norm.weight.detach().double(), norm.bias.detach().double()
        if len(scale) != inputs.width or weight.shape[0] != inputs.width:
            return None
        mixing = scale * (weight.T - weight.T.mean(dim=1, keepdim=True))
        found = cls(inputs, mixing, bias, scale, shift)
        tokens = random_texts(target, 1, WORDS)[0]
        predicted = found.own(tokens, torch.arange(len(tokens), device=tokens.device))
        predicted = predicted + before.inputs[0].double() @ mixing
        seen = calls[-1].inputs[0].double() - shift
        scaled = predicted / (predicted / scale).square().mean(dim=1, keepdim=True).add(norm.eps).sqrt()
        return found if float((scaled - seen).norm()) < AGREES * float(seen.norm()) else None

    def own(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return what tokens at positions contribute themselves `[…, width]`."""
        sums = self.inputs(tokens, positions) + self.bias
        return self.scale * (sums - sums.mean(dim=-1, keepdim=True))


def _calls_of_first_layer(target: Target) -> Sequence[ModuleCall]:
    """Return the calls of norms and of the attention output map before the first feed-forward map, and its own."""
    layer = target.layers[0]
    last = layer.feed_forward_in.module
    watched = [path for path, module in target.model.named_modules() if isinstance(module, nn.LayerNorm)]
    ids = random_texts(target, 1, WORDS)

    def at_last(calls: Sequence[ModuleCall]) -> bool:
        return calls[-1].path == last

    paths = [*watched, layer.attention_output.module, last]
    with captured_calls(target, paths, stop=at_last) as calls, torch.no_grad():
        target.logits(target.embed(ids), torch.ones_like(ids, dtype=torch.bool))
    return calls
