"""The training loop: chunks of gradients, held-out accuracy, checkpoints, resumption."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from gradleak.inversion.checkpoint import TrainingState
from gradleak.inversion.joint_training import JointTraining
from gradleak.inversion.model_card import write_card
from gradleak.inversion.recipe import RATES, Recipe
from gradleak.inversion.streams import Stream
from gradleak.inversion.trainer import InverterTrainer
from gradleak.inverters.network import Inverter
from gradleak.inverters.storage import load_inverter, save_inverter
from gradleak.targets import Target

CHECKPOINT_SECONDS = 60.0
PILOT_CHUNKS = 24


@dataclass(frozen=True)
class TrainingReport:
    """How far training is.

    Attributes:
        samples: examples trained on.
        total: the most there will be.
        loss: mean cross-entropy of the last chunk.
        accuracy: percentage of held-out tokens found at the end of the last epoch; None before the end of the first.
        seconds: since this run began.
        seconds_left: estimate by the pace of this run.
    """

    samples: int
    total: int
    loss: float
    accuracy: float | None
    seconds: float
    seconds_left: float


ReportCallback = Callable[[TrainingReport], None]


def train_inverter(
    target: Target,
    recipe: Recipe,
    stream: Stream,
    held_out: Stream,
    folder: str | Path,
    report: ReportCallback | None = None,
) -> Inverter:
    """Train an inverter into a folder, and return the best one; an unfinished training in the folder is resumed.

    It takes at most `recipe.epochs` epochs, and stops when held-out accuracy has not risen for `recipe.patience` of
    them.

    Args:
        target: the model.
        recipe: the settings.
        stream: the text to train on.
        held_out: the text to test on at the end of each epoch.
        folder: for the inverter, its card and the checkpoint.
        report: called after every chunk.
    """
    place = Path(folder)
    length = _TrainingLength.of(recipe, stream)
    state = TrainingState.load(place, target, recipe, stream, length.steps) or TrainingState(
        InverterTrainer.fresh(target, recipe, stream, length.steps)
    )
    training = JointTraining(target, [state.trainer], stream, held_out)
    began = saved = time.monotonic()
    first = state.chunks
    while state.chunks < length.chunks and not state.is_stalled(recipe.patience):
        (loss,) = training.train(state.chunks)
        state.chunks += 1
        ends_epoch = state.chunks % length.chunks_per_epoch == 0 or state.chunks == length.chunks
        if ends_epoch and state.end_epoch(training.accuracies()[0], state.chunks * recipe.chunk):
            save_inverter(state.trainer.inverter, place)
            write_card(place, state.trainer.inverter.card, recipe)
        if ends_epoch or time.monotonic() - saved > CHECKPOINT_SECONDS:
            state.save(place, recipe, stream)
            saved = time.monotonic()
        if report is not None:
            seconds = time.monotonic() - began
            left = seconds / (state.chunks - first) * (length.chunks - state.chunks)
            samples, total = state.chunks * recipe.chunk, length.chunks * recipe.chunk
            report(TrainingReport(samples, total, float(loss), state.last_accuracy, seconds, left))
    return load_inverter(place, target)


def choose_rate(target: Target, recipe: Recipe, stream: Stream, held_out: Stream) -> float:
    """Return the learning rate of the paper's three that has the lowest loss after a short trial on equal gradients."""
    steps = _TrainingLength.of(recipe, stream).steps
    trainers = [InverterTrainer.fresh(target, replace(recipe, lr=rate), stream, steps) for rate in RATES]
    training = JointTraining(target, trainers, stream, held_out)
    losses: list[Tensor] = []
    for number in range(PILOT_CHUNKS):
        losses = training.train(number)
    return min(zip(map(float, losses), RATES, strict=True))[1]


@dataclass(frozen=True)
class _TrainingLength:
    """The number of chunks, of chunks in an epoch, and of steps of the optimiser."""

    chunks: int
    chunks_per_epoch: int
    steps: int

    @classmethod
    def of(cls, recipe: Recipe, stream: Stream) -> _TrainingLength:
        per_epoch = max(1, round(stream.size / recipe.sequences / recipe.chunk))
        chunks = per_epoch * recipe.epochs
        return cls(chunks, per_epoch, chunks * math.ceil(recipe.chunk / recipe.batch))
