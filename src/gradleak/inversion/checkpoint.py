"""The state of a training, saved as a checkpoint from which `train_inverter` resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.files import refused_as
from gradleak.inversion.recipe import Recipe
from gradleak.inversion.streams import Stream
from gradleak.inversion.trainer import InverterTrainer
from gradleak.inverters.card import Card
from gradleak.inverters.storage import rebuild_inverter, write_tensors
from gradleak.targets import Target

CHECKPOINT = "checkpoint.safetensors"


@dataclass
class TrainingState:
    """All that a training needs to resume.

    Attributes:
        trainer: the inverter and its optimiser.
        chunks: number of chunks trained on.
        accuracies: held-out accuracy at the end of each epoch, in per cent.
    """

    trainer: InverterTrainer
    chunks: int = 0
    accuracies: tuple[float, ...] = ()

    @property
    def last_accuracy(self) -> float | None:
        """The accuracy of the last epoch."""
        return self.accuracies[-1] if self.accuracies else None

    def is_stalled(self, patience: int) -> bool:
        """Return whether the best epoch is not among the last `patience` ones; never if that is 0."""
        best = max(self.accuracies, default=0.0)
        return bool(patience) and bool(self.accuracies) and best not in self.accuracies[-patience:]

    def end_epoch(self, accuracy: float, samples: int) -> bool:
        """Record the accuracy of an epoch, and return whether it is the best so far."""
        best = accuracy > max(self.accuracies, default=-1.0)
        self.accuracies = (*self.accuracies, accuracy)
        if best:
            self.trainer.record_result(samples, accuracy)
        return best

    def save(self, folder: Path, recipe: Recipe, stream: Stream) -> None:
        """Write the checkpoint: weights, optimiser state, and the settings that a resumed training must have."""
        inverter, optimizer = self.trainer.inverter, self.trainer.optimizer
        tensors = {f"weight.{name}": tensor for name, tensor in inverter.state_dict().items()}
        tensors |= inverter.reduction.tensors()
        for name, parameter in inverter.named_parameters():
            tensors |= {f"adam.{key}.{name}": value for key, value in optimizer.state[parameter].items()}
        metadata = {
            "card": inverter.card.as_json(),
            "training": _described(recipe, stream),
            "chunks": str(self.chunks),
            "steps": str(self.trainer.steps_done),
            "accuracies": json.dumps(self.accuracies),
        }
        write_tensors(folder / CHECKPOINT, tensors, metadata)

    @classmethod
    def load(cls, folder: Path, target: Target, recipe: Recipe, stream: Stream, steps: int) -> TrainingState | None:
        """Read the checkpoint; None if there is none.

        Raises:
            GradleakError: if it cannot be read, or is that of a training for another target or with other settings.
        """
        if not (folder / CHECKPOINT).is_file():
            return None
        metadata, tensors = _read_checkpoint(folder)
        with refused_as(f"{folder / CHECKPOINT} is damaged"):
            return cls._resumed(metadata, tensors, folder, (target, recipe, stream, steps))

    @classmethod
    def _resumed(
        cls,
        metadata: Mapping[str, str],
        tensors: Mapping[str, Tensor],
        folder: Path,
        training: tuple[Target, Recipe, Stream, int],
    ) -> TrainingState:
        target, recipe, stream, steps = training
        card = Card.from_json(metadata["card"])
        if card.origin.fingerprint != target.fingerprint or metadata["training"] != _described(recipe, stream):
            raise GradleakError(f"{folder} holds an inverter of another training; choose another folder")
        trainer = InverterTrainer(target, recipe, rebuild_inverter(card, target, tensors), steps)
        trainer.steps_done = int(metadata["steps"])
        for name, parameter in trainer.inverter.named_parameters():
            trainer.optimizer.state[parameter] = {
                key: tensors[f"adam.{key}.{name}"].to(
                    "cpu" if key == "step" and not parameter.is_cuda else parameter.device
                )
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
        return cls(trainer, int(metadata["chunks"]), tuple(json.loads(metadata["accuracies"])))


def checkpoint_rate(folder: str | Path) -> float | None:
    """Return the learning rate of the unfinished training in a folder; None if there is none."""
    if not (Path(folder) / CHECKPOINT).is_file():
        return None
    with refused_as(f"{Path(folder) / CHECKPOINT} is damaged"):
        return float(json.loads(_read_checkpoint(Path(folder))[0]["training"])["lr"])


def _read_checkpoint(folder: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    path = folder / CHECKPOINT
    with (
        refused_as(f"{path} cannot be read", SafetensorError),
        safe_open(str(path), framework="pt") as file,
    ):
        metadata: dict[str, str] = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    if not {"card", "training", "chunks", "steps", "accuracies"} <= metadata.keys():
        raise GradleakError(f"{path} cannot be read: it is no checkpoint of an inverter")
    return metadata, tensors


def _described(recipe: Recipe, stream: Stream) -> str:
    """Return the settings of a training as JSON; a checkpoint belongs to a training if theirs are equal."""
    settings: dict[str, Any] = asdict(recipe) | {"defenses": [str(defense) for defense in recipe.defenses]}
    return json.dumps(settings | {"data": stream.description, "size": stream.size}, sort_keys=True)
