"""Gradients of many images at once, one per image, differentiable in the images.

Chains of convolutions, sigmoids and a linear layer (LeNet) have a closed form: with a layer's input `a` and output
gradient `δ`, dW = Σ δ ⊗ a. All other models go through `torch.func`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it

Gradients = dict[str, Tensor]
"""Gradients by parameter name, `[images, *shape]` each."""


def is_chain(model: nn.Module) -> bool:
    """Return whether the closed form holds: convolutions with a sigmoid after each, then one linear layer."""
    if not isinstance(model, nn.Sequential):
        return False
    layers = list(model)
    convs, tail = layers[:-2], layers[-2:]
    if len(layers) < 4 or not (isinstance(tail[0], nn.Flatten) and isinstance(tail[1], nn.Linear)):
        return False
    pairs = list(zip(convs[::2], convs[1::2], strict=False))
    return len(convs) % 2 == 0 and all(isinstance(c, nn.Conv2d) and isinstance(a, nn.Sigmoid) for c, a in pairs)


def sample_gradients(model: nn.Module, images: Tensor, labels: Tensor) -> Gradients:
    """Return the gradient of each image's own loss.

    Args:
        model: in evaluation mode.
        images: `[images, channels, height, width]`.
        labels: classes `[images]`, or probabilities of the classes `[images, classes]`.
    """
    if is_chain(model):
        return chain_gradients(cast(nn.Sequential, model), images, labels)
    return vmapped_gradients(model, images, labels)


class _ConvolutionPass(NamedTuple):
    name: str
    conv: nn.Conv2d
    entered: Tensor  # [images, in, height, width]
    left: Tensor  # after the sigmoid, [images, out, height, width]


def chain_gradients(model: nn.Sequential, images: Tensor, labels: Tensor) -> Gradients:
    """Return `sample_gradients` of a chain by the closed form."""
    layers: list[_ConvolutionPass] = []
    signal = images
    for name, module in model.named_children():
        if isinstance(module, nn.Conv2d):
            out = torch.sigmoid(F.conv2d(signal, module.weight, module.bias, module.stride, module.padding))
            layers.append(_ConvolutionPass(name, module, signal, out))
            signal = out
    (fc_name, fc), features = list(model.named_children())[-1], signal.flatten(1)
    linear = cast(nn.Linear, fc)
    logits = F.linear(features, linear.weight, linear.bias)
    delta = logits.softmax(dim=1) - _probabilities(labels, logits)  # [images, classes]
    found = {f"{fc_name}.weight": delta[:, :, None] * features[:, None, :], f"{fc_name}.bias": delta}
    back = (delta @ linear.weight).view_as(signal)
    for number in range(len(layers) - 1, -1, -1):
        name, conv, entered, left = layers[number]
        back = back * (left * (1 - left))
        found[f"{name}.weight"] = _kernel_gradients(conv, entered, back)
        found[f"{name}.bias"] = back.sum(dim=(2, 3))
        if number:
            back = input_gradient(conv, back, entered.shape[-1], conv.weight)
    return {name: found[name] for name, _ in model.named_parameters()}


def vmapped_gradients(model: nn.Module, images: Tensor, labels: Tensor) -> Gradients:
    """Return `sample_gradients` of any model, by `torch.func`."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(weights: Mapping[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, (dict(weights), buffers), (image[None],))
        return F.cross_entropy(logits, label[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    return cast(Gradients, each(parameters, images, labels))


def flat(gradients: Mapping[str, Tensor], names: Sequence[str] | None = None) -> Tensor:
    """Return all entries of each gradient in a row `[images, entries]`."""
    chosen = gradients.keys() if names is None else names
    return torch.cat([gradients[name].flatten(1) for name in chosen], dim=1)


def _probabilities(labels: Tensor, logits: Tensor) -> Tensor:
    return labels if labels.is_floating_point() else F.one_hot(labels, logits.shape[1]).to(logits)


def _kernel_gradients(conv: nn.Conv2d, entered: Tensor, delta: Tensor) -> Tensor:
    """Return Σ over positions of δ ⊗ patch: `[images, out, in, kernel, kernel]`."""
    product = delta.flatten(2) @ _patches(conv, entered)
    return product.view(len(entered), *conv.weight.shape)


def _patches(conv: nn.Conv2d, entered: Tensor) -> Tensor:
    """Return the inputs of each position `[images, places, in · kernel · kernel]`.

    On a GPU `torch.nn.functional.unfold` launches a kernel for every single image; on a CPU it is the faster way.
    """
    if not entered.is_cuda:
        return F.unfold(entered, conv.kernel_size, 1, int(conv.padding[0]), conv.stride).transpose(1, 2)
    (high, wide), (down, across), padding = conv.kernel_size, conv.stride, int(conv.padding[0])
    views = F.pad(entered, (padding,) * 4).unfold(2, high, down).unfold(3, wide, across)
    return views.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def input_gradient(conv: nn.Conv2d, delta: Tensor, size: int, weight: Tensor) -> Tensor:
    """Return the gradient at a convolution's input of `size` × `size` pixels."""
    stride, kernel, padding = conv.stride[0], conv.kernel_size[0], int(conv.padding[0])
    least = (delta.shape[-1] - 1) * stride - 2 * padding + kernel
    return F.conv_transpose2d(delta, weight, None, conv.stride, padding, output_padding=size - least)


def use_full_precision() -> None:
    """Let a GPU convolve in single precision: the ten bits of TF32 are too few for gradients that are matched."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
