"""The image models that are built here: the sigmoid LeNet of the gradient-inversion papers, and ResNet-20."""

from __future__ import annotations

from collections import OrderedDict
from typing import cast

import torch
from torch import Tensor, nn

HALF_WIDTH = 0.5  # weights and biases of LeNet are uniform in (−0.5, 0.5), as in Zhu et al. 2019


class LeNet(nn.Sequential):
    """The sigmoid LeNet of Zhu et al. (2019) for images of 3 × 32 × 32: 15,826 weights for ten classes.

    Strides replace pooling and sigmoids ReLUs, so that its gradient can be differentiated everywhere.
    """

    def __init__(self, num_classes: int = 10, size: int = 32) -> None:
        features = 12 * (-(-size // 4)) ** 2
        layers: list[tuple[str, nn.Module]] = [
            ("conv1", nn.Conv2d(3, 12, 5, stride=2, padding=2)),
            ("act1", nn.Sigmoid()),
            ("conv2", nn.Conv2d(12, 12, 5, stride=2, padding=2)),
            ("act2", nn.Sigmoid()),
            ("conv3", nn.Conv2d(12, 12, 5, stride=1, padding=2)),
            ("act3", nn.Sigmoid()),
            ("flatten", nn.Flatten()),
            ("fc", nn.Linear(features, num_classes)),
        ]
        super().__init__(OrderedDict(layers))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -HALF_WIDTH, HALF_WIDTH)


class _Block(nn.Module):
    """Two convolutions with batch normalisation, and a shortcut without parameters (option A of He et al. 2016)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.stride, self.added = stride, outside - inside

    def forward(self, images: Tensor) -> Tensor:
        out = torch.relu(self.norm1(self.conv1(images)))
        short = nn.functional.pad(images[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return torch.relu(self.norm2(self.conv2(out)) + short)


class ResNet20(nn.Module):
    """ResNet-20 for images of 3 × 32 × 32 (He et al. 2016, section 4.2): 269,722 weights for ten classes.

    Batch normalisation uses its running statistics, as FedSGD on a model in evaluation mode does.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        widths, blocks, inside = (16, 32, 64), [], 16
        for width in widths:
            for number in range(3):
                blocks.append(_Block(inside, width, 2 if number == 0 and width != 16 else 1))
                inside = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits `[images, classes]`."""
        out = self.blocks(torch.relu(self.norm(self.conv(images))))
        return cast(Tensor, self.fc(out.mean(dim=(2, 3))))
