"""`RmsNorm`: the root-mean-square norm of all decoders that have one, in place of Hugging Face's class per model.

Hugging Face's classes round float64 to float32, which spoils proofs and second derivatives in float64, and each model
has a class of its own; `use_rms_norms` replaces them. Names and values of the weights stay the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RmsNorm(nn.Module):
    """Compute x / √(mean x² + ε) ⊙ (offset + weight) in float32 or better (Zhang and Sennrich 2019).

    Args:
        weight: the learned scale `[width]`.
        eps: ε.
        offset: what is added to the weight: 0 for Llama, 1 for Gemma.
    """

    def __init__(self, weight: nn.Parameter, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps
        self.offset = offset

    def normalise(self, inputs: Tensor) -> Tensor:
        """Return the input divided by its root mean square, in float32 or better."""
        wide = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        return wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scaled norm; half precision is rounded where Hugging Face's class of the model rounds it."""
        normalised = self.normalise(inputs)
        if not self.offset:
            return self.weight * normalised.to(inputs.dtype)
        return ((self.offset + self.weight.to(normalised.dtype)) * normalised).to(inputs.dtype)


def use_rms_norms(model: nn.Module, offset: float = 0.0) -> None:
    """Replace every RMSNorm module of Hugging Face's by an `RmsNorm` with the same weight, in place."""
    found = [name for name, module in model.named_modules() if type(module).__name__.endswith("RMSNorm")]
    for name in found:
        module = model.get_submodule(name)
        eps = getattr(module, "variance_epsilon", None) or module.eps
        model.set_submodule(name, RmsNorm(module.weight, float(eps), offset))  # type: ignore[arg-type]
