"""The simulated client with images: private batch in, Update out, by FedSGD."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

import torch
from torch import Tensor

from gradleak.defenses import Defense, defend, defend_examples, defense_stream, examples_needed
from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import Update, WireFormat
from gradleak.simulation.transmission import transmitted
from gradleak.vision.data import check_labels
from gradleak.vision.target import ImageTarget


class ImageClient:
    """A client of federated learning that trains an image model by FedSGD: one gradient of its batch's mean loss.

    Args:
        target: the global model, in evaluation mode: batch normalisation uses its running statistics.
        defenses: what changes the update before it is sent, in order.
        send: number format in which the update leaves the client; the server converts it back.
        seed: seed of the defenses; None to draw their noise from the system's entropy.
    """

    def __init__(
        self,
        target: ImageTarget,
        *,
        defenses: Sequence[Defense] = (),
        send: WireFormat = "fp32",
        seed: int | None = 0,
    ) -> None:
        if send not in get_args(WireFormat):
            raise unknown_name("number format to send", send, get_args(WireFormat))
        self.target, self.defenses = target, tuple(defenses)
        self.wire: WireFormat = send
        self._stream = defense_stream(seed)

    def update(self, images: Tensor, labels: Sequence[int]) -> Update:
        """Return the update that the server receives for a private batch.

        Args:
            images: between 0 and 1 `[images, 3, height, width]`.
            labels: their classes.

        Raises:
            GradleakError: if images or labels do not fit the model.
        """
        if examples_needed(self.defenses):
            sent = defend_examples(self._alone(images, labels), self.defenses, self._stream)
        else:
            sent = defend(self.train(images, labels), self.defenses, self._stream)
        return transmitted(sent, self.wire)

    def train(self, images: Tensor, labels: Sequence[int]) -> Update:
        """Return the update of a private batch before defenses, in full precision."""
        if images.ndim != 4 or tuple(images.shape[1:]) != self.target.shape:
            expected = " × ".join(map(str, self.target.shape))
            found = " × ".join(map(str, images.shape[1:]))
            raise GradleakError(f"{self.target.name} takes images of {expected}, not {found}")
        if len(labels) != len(images):
            raise GradleakError(f"there are {len(images)} images and {len(labels)} labels")
        check_labels(labels, self.target.num_labels)
        device = self.target.device
        with torch.no_grad():
            classes = torch.as_tensor(labels, device=device)[None]
            gradients = self.target.gradients(images.float().to(device)[None], classes)
        return Update({name: tensor[0] for name, tensor in gradients.items()}, origin=self.target.origin)

    def _alone(self, images: Tensor, labels: Sequence[int]) -> Iterator[Update]:
        for number in range(len(images)):
            yield self.train(images[number : number + 1], labels[number : number + 1])
