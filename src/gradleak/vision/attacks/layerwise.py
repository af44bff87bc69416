"""Layer-wise inversion: the image of an exact gradient, in closed form, from the last layer to the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it

from gradleak.errors import GradleakError
from gradleak.settings import setting
from gradleak.vision.attacks.base import ImageAttack, Search, register_image_attack
from gradleak.vision.sample_gradients import input_gradient, is_chain
from gradleak.vision.target import ImageTarget

CLIENTS_PER_PASS = {"cuda": 32, "cpu": 2}  # a system of equations is 107 MB


@register_image_attack
@dataclass(frozen=True, kw_only=True)
class Layerwise(ImageAttack):
    """Solve for each layer's input in turn; recursive as in R-GAP (Zhu & Blaschko 2021), for sigmoid networks.

    The classifier's gradient is δ ⊗ features, so that both are known. A sigmoid can be inverted, and δ goes through it
    backwards. Then the input of a convolution is the unknown of two linear systems: the convolution gives the known
    output, and the kernel's gradient is Σ δ ⊗ input. Together they have more equations than unknowns. This needs a
    gradient of one image that was sent as it is, and says so otherwise.
    """

    name: ClassVar[str] = "layerwise"
    paper: ClassVar[str] = "R-GAP: Recursive Gradient Attack on Privacy (for sigmoid networks: ours)"

    ridge: float = setting(1e-13, "regularisation, times the mean diagonal of the normal equations", above=0)
    corrections: int = setting(3, "steps of iterative refinement of each solution", least=0)

    def run(self, search: Search) -> tuple[Tensor, tuple[str, ...]]:
        """Solve the layers from the last to the first, in double precision."""
        if search.seen.channel != "exact" or search.images != 1:
            raise GradleakError("layerwise needs the gradient of one image, sent as it is; try lti or ig")
        if not is_chain(search.target.model):
            raise GradleakError(f"layerwise inverts chains of sigmoid convolutions, and {search.target.name} is none")
        found = []
        size = CLIENTS_PER_PASS.get(search.target.device.type, 2)
        for start in range(0, search.seen.count, size):
            found.append(self._solve(search.target, search.seen.sent[start : start + size].double()))
            search.tell(min(start + size, search.seen.count), search.seen.count, torch.zeros(1))
            if search.deadline.passed:
                break
        missing = search.seen.count - sum(map(len, found))
        grey = search.seen.sent.new_full((missing, *search.target.shape), 0.5)
        return torch.cat([*(part.float() for part in found), grey]).nan_to_num(0.5)[:, None], ()

    def _solve(self, target: ImageTarget, sent: Tensor) -> Tensor:
        sizes = [parameter.numel() for parameter in target.parameters.values()]
        parts = dict(zip(target.parameters, torch.split(sent, sizes, dim=1), strict=True))
        children = list(cast(nn.Sequential, target.model).named_children())
        (head, linear), convs = children[-1], [(n, m) for n, m in children if isinstance(m, nn.Conv2d)]
        delta = parts[f"{head}.bias"]  # [clients, classes]
        outer = parts[f"{head}.weight"].view(*delta.shape, -1)
        features = (outer * delta[:, :, None]).sum(dim=1) / delta.square().sum(dim=1, keepdim=True)
        sides = _sides(target, [module for _, module in convs])
        left = features.view(len(sent), convs[-1][1].out_channels, sides[-1], sides[-1])
        back = (delta @ cast(nn.Linear, linear).weight.double()).view_as(left)
        for number in range(len(convs) - 1, -1, -1):
            name, conv = convs[number]
            left = left.clamp(1e-7, 1 - 1e-7)
            back = back * left * (1 - left)
            kernel = parts[f"{name}.weight"].view(-1, *conv.weight.shape)
            left = self._input(conv, left, back, kernel, sides[number])
            if number:
                back = input_gradient(conv, back, sides[number], conv.weight.double())
        return left

    def _input(self, conv: nn.Conv2d, left: Tensor, delta: Tensor, kernel: Tensor, side: int) -> Tensor:
        """Return a convolution's input `[clients, in, side, side]` from its output and the gradient of its kernel."""
        clients, channels = len(left), conv.in_channels
        forward = _forward_matrix(conv, side)  # [out · places, in · pixels]
        gradient = _gradient_matrix(conv, delta, side)  # [clients, out · k · k, pixels]
        known = torch.logit(left) - cast(Tensor, conv.bias).double()[:, None, None]
        wanted = kernel.transpose(1, 2).flatten(2)  # [clients, in, out · k · k]
        # Both systems count alike, however small the gradient of a sure prediction is.
        size = gradient.square().mean(dim=(1, 2), keepdim=True).sqrt().clamp_min(1e-30)
        factor = forward.square().mean().sqrt() / size
        gradient, wanted = gradient * factor, wanted * factor
        normal = (forward.T @ forward).expand(clients, -1, -1).clone()
        gram = gradient.transpose(1, 2) @ gradient
        pixels = side * side
        for channel in range(channels):
            block = slice(channel * pixels, (channel + 1) * pixels)
            normal[:, block, block] += gram
        diagonal = normal.diagonal(dim1=1, dim2=2)
        diagonal += self.ridge * diagonal.mean(dim=1, keepdim=True)
        triangle, _ = torch.linalg.cholesky_ex(normal)  # not a number where it fails
        found = normal.new_zeros(clients, channels * pixels)
        for _ in range(self.corrections + 1):
            missing_output = known.flatten(1) - found @ forward.T
            missing_kernel = wanted - found.view(clients, channels, pixels) @ gradient.transpose(1, 2)
            right = missing_output @ forward + (missing_kernel @ gradient).flatten(1)
            found = found + torch.cholesky_solve(right[:, :, None], triangle)[:, :, 0]
        return found.view(clients, channels, side, side)


def _sides(target: ImageTarget, convs: Sequence[nn.Conv2d]) -> list[int]:
    """Return the height of each convolution's input, and of the last one's output."""
    sides = [target.size]
    for conv in convs:
        sides.append((sides[-1] + 2 * int(conv.padding[0]) - conv.kernel_size[0]) // conv.stride[0] + 1)
    return sides


def _forward_matrix(conv: nn.Conv2d, side: int) -> Tensor:
    """Return the convolution without bias as a matrix `[out · places, in · pixels]`."""
    count = conv.in_channels * side * side
    units = torch.eye(count, dtype=torch.float64, device=conv.weight.device).view(-1, conv.in_channels, side, side)
    return F.conv2d(units, conv.weight.double(), None, conv.stride, conv.padding).flatten(1).T


def _gradient_matrix(conv: nn.Conv2d, delta: Tensor, side: int) -> Tensor:
    """Return the map from one input channel to the kernel's gradient `[clients, out · k · k, pixels]`."""
    units = torch.eye(side * side, dtype=delta.dtype, device=delta.device).view(-1, 1, side, side)
    patches = F.unfold(
        units, conv.kernel_size, padding=int(conv.padding[0]), stride=conv.stride
    )  # [pixels, k · k, places]
    return torch.einsum("nop,hkp->nokh", delta.flatten(2), patches).flatten(1, 2)
