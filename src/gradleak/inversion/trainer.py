"""The trainer of one inverter: defends gradients, reduces them to features, and takes steps of the optimiser."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.defenses import defend_each
from gradleak.errors import GradleakError
from gradleak.exchange import Origin
from gradleak.inversion.gradients import Chunk, GradientSource
from gradleak.inversion.probe import choose_rows, informativeness
from gradleak.inversion.recipe import Recipe
from gradleak.inversion.sentence_order import best_orders, matched_loss, take_order
from gradleak.inversion.streams import Stream, training_stream
from gradleak.inverters.card import Card
from gradleak.inverters.features import HashedGradient, Reduction
from gradleak.inverters.network import Inverter
from gradleak.targets import Target


class InverterTrainer:
    """An inverter under training, with its optimiser.

    Args:
        target: the model.
        recipe: the settings.
        inverter: the network that is trained.
        steps: the number of steps in all, for the decay of the learning rate.
    """

    def __init__(self, target: Target, recipe: Recipe, inverter: Inverter, steps: int) -> None:
        self.target, self.recipe, self.inverter, self.steps, self.steps_done = target, recipe, inverter, steps, 0
        on_gpu = target.device.type == "cuda"
        self.optimizer = torch.optim.Adam(inverter.parameters(), lr=recipe.lr, fused=on_gpu)

    @classmethod
    def fresh(cls, target: Target, recipe: Recipe, stream: Stream, steps: int) -> InverterTrainer:
        """Return the trainer of a new inverter, whose features are chosen and calibrated on the stream.

        Args:
            target: the model.
            recipe: the settings.
            stream: the text it will be trained on.
            steps: the number of steps in all.
        """
        probe = recipe.gradient_source(target, stream, recipe.sent(target))
        reduction = _choose_reduction(target, recipe, probe)
        card = Card(
            **recipe.network_settings(),
            origin=Origin.of(target),
            parameters=reduction.names,
            defenses=tuple(map(str, recipe.defenses)),
            pseudo=stream.pseudo,
            data=stream.description,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            trainer = cls(target, recipe, Inverter(card, reduction, target), steps)
        trainer.inverter.calibrate(trainer.features(probe.make(-1, recipe.chunk), -1))
        return trainer

    @property
    def names(self) -> list[str]:
        """The parameters whose gradients it needs: those it reads; all, if a defense looks at several at once."""
        if all(defense.by_tensor for defense in self.recipe.defenses):
            return list(self.inverter.reduction.names)
        return self.recipe.sent(self.target)

    def features(self, chunk: Chunk, number: int) -> Tensor:
        """Return the features of a chunk `[examples, features]`; its number seeds the defenses."""
        wanted = set(self.names)
        gradients = {name: gradient for name, gradient in chunk.gradients.items() if name in wanted}
        if self.recipe.defenses:
            gradients = _defended(self.target, self.recipe, gradients, number)
        return self.inverter.reduction(gradients)

    def train(self, features: Tensor, ids: Tensor) -> Tensor:
        """Take steps through a chunk and return their mean loss, without waiting for the device."""
        losses = []
        for start in range(0, len(features), self.recipe.batch):
            part = slice(start, start + self.recipe.batch)
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate()
            with bfloat16_on_gpu(self.target.device):
                loss = matched_loss(self.inverter(features[part]), ids[part])
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            self.optimizer.step()
            self.steps_done += 1
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    @torch.no_grad()
    def accuracy(self, features: Tensor, ids: Tensor, counted: Tensor) -> float:
        """Return the percentage of counted tokens `[examples, sequences, tokens]` that the inverter gets right."""
        right = total = 0
        for start in range(0, len(features), self.recipe.chunk):
            part = slice(start, start + self.recipe.chunk)
            with bfloat16_on_gpu(self.target.device):
                logits = self.inverter(features[part])
            order = best_orders(logits, ids[part])
            found = take_order(logits.argmax(dim=-1), order)
            right += int(((found == ids[part]) & counted[part]).sum())
            total += int(counted[part].sum())
        return 100.0 * right / max(1, total)

    def record_result(self, samples: int, accuracy: float) -> None:
        """Write on the card how many examples the inverter was trained on, and its held-out accuracy."""
        self.inverter.card = replace(self.inverter.card, samples=samples, accuracy=accuracy)

    def _rate(self) -> float:
        # The paper's learning rate is constant.
        return self.recipe.lr * max(0.0, 1 - self.steps_done / self.steps) if self.recipe.decay else self.recipe.lr


@contextmanager
def bfloat16_on_gpu(device: torch.device) -> Iterator[None]:
    """Compute matrix products in bfloat16 on a GPU: several times faster, with no loss of accuracy seen."""
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        yield


def _choose_reduction(target: Target, recipe: Recipe, probe: GradientSource) -> Reduction:
    """Return the hash, or the rows that a probe on defended gradients chooses."""
    sizes = {name: target.parameters[name].numel() for name in probe.names}
    if recipe.reduction == "hash":
        return HashedGradient(sizes, recipe.share, recipe.seed)
    found = informativeness(target, _probe_chunks(target, recipe, probe))
    kept = choose_rows(found, int(recipe.share * sum(sizes.values())))
    if kept is None:
        raise GradleakError(
            f"a share of {recipe.share:g} of the gradient is not one row of any parameter; give a larger one"
        )
    return kept


def _probe_chunks(target: Target, recipe: Recipe, probe: GradientSource) -> Iterator[tuple[Chunk, dict[str, Tensor]]]:
    """Yield the chunks of the probe, numbered backwards from -1, with their gradients after the defenses."""
    for number in range(-1, -1 - max(2, math.ceil(recipe.probe / recipe.chunk)), -1):
        chunk = probe.make(number, recipe.chunk)
        yield chunk, _defended(target, recipe, chunk.gradients, number)


def _defended(target: Target, recipe: Recipe, gradients: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """Return the gradients of chunk `number` after the defenses."""
    return defend_each(gradients, recipe.defenses, training_stream(target.device, recipe.seed, "defenses", number))
