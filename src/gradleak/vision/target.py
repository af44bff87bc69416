"""Image models under audit, by name: those built here, and torchvision's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from gradleak.errors import GradleakError, missing_extra, unknown_name
from gradleak.exchange import Origin
from gradleak.vision.networks import LeNet, ResNet20
from gradleak.vision.sample_gradients import Gradients, sample_gradients

CHANNELS = 3
LENET_SEED = 1234  # the paper's
BUILT_HERE: dict[str, Callable[[int], nn.Module]] = {"lenet": LeNet, "resnet20": ResNet20}


@dataclass(frozen=True, eq=False)
class ImageTarget:
    """An image classifier under audit: its weights, and the size of its images.

    Attributes:
        name: as users give it.
        model: in evaluation mode.
        num_labels: number of classes.
        size: height and width of an image in pixels.
        seed: seed of the weights.
    """

    name: str
    model: nn.Module
    num_labels: int
    size: int
    seed: int

    task = "image-classification"
    trained_head = None
    adapter = None
    adapter_fingerprint = ""

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.model.parameters()).device

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """Weights by name."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the names, shapes and values of all weights."""
        digest = hashlib.sha256()
        for name in sorted(self.parameters):
            tensor = self.parameters[name]
            digest.update(f"{name}{tuple(tensor.shape)}".encode())
            digest.update(tensor.to("cpu", torch.float32).contiguous().numpy().data)
        return digest.hexdigest()

    @property
    def origin(self) -> Origin:
        """The identity that updates and inverters carry."""
        return Origin(self.name, self.task, self.num_labels, self.seed, self.fingerprint)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return CHANNELS, self.size, self.size

    @property
    def head(self) -> tuple[str, str]:
        """Names of weight and bias of the last linear layer."""
        linear = [name for name, module in self.model.named_modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise GradleakError(f"{self.name} has no linear layer at its end; labels cannot be read from its gradient")
        return f"{linear[-1]}.weight", f"{linear[-1]}.bias"

    def gradients(self, images: Tensor, labels: Tensor) -> Gradients:
        """Return the gradient of each batch of images: the mean over the images of its own.

        Args:
            images: `[batches, images, channels, height, width]`.
            labels: `[batches, images]`, or probabilities of the classes `[batches, images, classes]`.
        """
        count = images.shape[1]
        each = sample_gradients(self.model, images.flatten(0, 1), labels.flatten(0, 1))
        if count == 1:
            return each
        return {name: tensor.view(-1, count, *tensor.shape[1:]).mean(dim=1) for name, tensor in each.items()}


def load_image_target(
    name: str,
    *,
    num_labels: int = 10,
    size: int = 32,
    seed: int | None = None,
    device: torch.device | str = "cpu",
) -> ImageTarget:
    """Return an image model with random weights: an untrained model is what the papers attack.

    Args:
        name: `lenet`, `resnet20`, or a model of torchvision.
        num_labels: number of classes.
        size: height and width of the images in pixels.
        seed: seed of the weights; for LeNet the paper's 1234 by default, otherwise 0.
        device: for the weights.

    Raises:
        GradleakError: if there is no such model, or it does not take images of this size.
    """
    chosen = (LENET_SEED if name == "lenet" else 0) if seed is None else seed
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(chosen)
        model = _build(name, num_labels, size)
    model.requires_grad_(False).eval().to(device)
    try:
        with torch.no_grad():
            model(torch.zeros(1, CHANNELS, size, size, device=device))
    except RuntimeError:
        raise GradleakError(f"{name} does not take images of {size} × {size} pixels") from None
    return ImageTarget(name, model, num_labels, size, chosen)


def _build(name: str, num_labels: int, size: int) -> nn.Module:
    if name == "lenet":
        return LeNet(num_labels, size)
    if name in BUILT_HERE:
        return BUILT_HERE[name](num_labels)
    try:
        from torchvision import models
    except ImportError:
        if _is_torchvision_like(name):
            raise missing_extra("torchvision", "vision", f"model {name}") from None
        raise unknown_name("image model", name, BUILT_HERE) from None
    known = models.list_models(module=models)
    if name not in known:
        raise unknown_name("image model", name, [*BUILT_HERE, *known])
    return models.get_model(name, weights=None, num_classes=num_labels)


def _is_torchvision_like(name: str) -> bool:
    """Return whether a name looks like one of torchvision's, which cannot be asked where it is not installed."""
    families = ("resnet1", "resnet3", "resnet5", "vgg", "densenet", "mobilenet", "efficientnet", "convnext", "vit_")
    return name.startswith((*families, "alexnet", "squeezenet", "shufflenet", "googlenet", "regnet", "swin"))
