"""The training loop: chunks of gradients, one or several learners, held-out accuracy, checkpoints, resumption."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.inversion.card import write_card
from gradleak.inversion.examples import Examples
from gradleak.inversion.learner import RATES, Learner, Recipe, countable
from gradleak.inversion.streams import Stream
from gradleak.inverters.network import Card, Inverter, build_reduction, load_inverter, write_tensors
from gradleak.targets import Target

CHECKPOINT = "checkpoint.safetensors"
CHECKPOINT_SECONDS = 60.0
HELD_OUT = 512
PILOT_CHUNKS = 24


@dataclass(frozen=True)
class Report:
    """Where training is.

    Attributes:
        samples: examples learnt from.
        total: how many there will be at most.
        loss: mean cross-entropy of the last chunk.
        accuracy: per cent of held-out tokens found at the end of the last epoch; None before the first one's end.
        seconds: since this run began.
        seconds_left: estimate by the pace of this run.
    """

    samples: int
    total: int
    loss: float
    accuracy: float | None
    seconds: float
    seconds_left: float


Watcher = Callable[[Report], None]


class Course:
    """Learners that share the gradients of one stream, and text that none of them learns from.

    Args:
        target: the model.
        learners: they must agree on the clients and on the sizes of chunks.
        stream: what they learn from.
        held_out: what they are tested on.
        examples: how many examples they are tested on.
    """

    def __init__(
        self, target: Target, learners: Sequence[Learner], stream: Stream, held_out: Stream, examples: int = HELD_OUT
    ) -> None:
        self.learners = list(learners)
        recipe = self.learners[0].recipe
        wanted = {name for learner in learners for name in learner.names}
        names = [name for name in recipe.sent(target) if name in wanted]
        self.chunk = recipe.chunk
        self.examples = Examples(target, stream, names, **recipe.client_options())
        self.tests = self._prepare(Examples(target, held_out, names, **recipe.client_options()), examples)

    def learn(self, number: int) -> list[Tensor]:
        """Let all learners learn from chunk `number`, and return their losses."""
        chunk = self.examples.make(number, self.chunk)
        return [learner.learn(learner.features(chunk, number), chunk.ids) for learner in self.learners]

    def accuracies(self) -> list[float]:
        """Return the per cent of held-out tokens that each learner finds."""
        return [learner.accuracy(*test) for learner, test in zip(self.learners, self.tests, strict=True)]

    def _prepare(self, held_out: Examples, examples: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return for each learner the features, tokens and which tokens count; gradients are forgotten."""
        chunk = held_out.make(0, examples)
        counted = countable(held_out.target, chunk.ids, chunk.mask)
        return [(learner.features(chunk, -1_000), chunk.ids, counted) for learner in self.learners]


def train_inverter(
    target: Target,
    recipe: Recipe,
    stream: Stream,
    held_out: Stream,
    folder: str | Path,
    watch: Watcher | None = None,
) -> Inverter:
    """Train an inverter into a folder, and return the best one; a folder with an unfinished one is taken up again.

    At most `recipe.epochs` epochs; it stops when held-out accuracy has not risen for `recipe.patience` of them.

    Args:
        target: the model.
        recipe: how.
        stream: what to learn from.
        held_out: what to test on at the end of each epoch.
        folder: for the inverter, its card and the checkpoint.
        watch: told about every chunk.
    """
    place = Path(folder)
    plan = _Plan.of(recipe, stream)
    state = _State.load(place, target, recipe, stream) or _State(Learner.fresh(target, recipe, stream, plan.steps))
    state.learner.steps = plan.steps
    course = Course(target, [state.learner], stream, held_out)
    began = saved = time.monotonic()
    first = state.chunks
    while state.chunks < plan.chunks and not state.is_stuck(recipe.patience):
        (loss,) = course.learn(state.chunks)
        state.chunks += 1
        ends_epoch = state.chunks % plan.chunks_per_epoch == 0 or state.chunks == plan.chunks
        if ends_epoch and state.note(course.accuracies()[0], state.chunks * recipe.chunk):
            state.learner.inverter.save(place)
            write_card(place, state.learner.inverter.card, recipe)
        if ends_epoch or time.monotonic() - saved > CHECKPOINT_SECONDS:
            state.save(place, recipe, stream)
            saved = time.monotonic()
        if watch is not None:
            seconds = time.monotonic() - began
            left = seconds / (state.chunks - first) * (plan.chunks - state.chunks)
            samples, total = state.chunks * recipe.chunk, plan.chunks * recipe.chunk
            watch(Report(samples, total, float(loss), state.last, seconds, left))
    return load_inverter(place, target)


def choose_rate(target: Target, recipe: Recipe, stream: Stream, held_out: Stream) -> float:
    """Return which of the paper's learning rates gets farthest in a short trial, all three on the same gradients."""
    recipes = [replace(recipe, lr=rate) for rate in RATES]
    steps = _Plan.of(recipe, stream).steps
    course = Course(target, [Learner.fresh(target, one, stream, steps) for one in recipes], stream, held_out)
    losses: list[Tensor] = []
    for number in range(PILOT_CHUNKS):
        losses = course.learn(number)
    return min(zip(map(float, losses), RATES, strict=True))[1]


@dataclass(frozen=True)
class _Plan:
    """How long training is."""

    chunks: int
    chunks_per_epoch: int
    steps: int

    @classmethod
    def of(cls, recipe: Recipe, stream: Stream) -> _Plan:
        per_epoch = max(1, round(stream.size / recipe.sequences / recipe.chunk))
        chunks = per_epoch * recipe.epochs
        return cls(chunks, per_epoch, chunks * math.ceil(recipe.chunk / recipe.batch))


@dataclass
class _State:
    """All that training needs to go on: the learner, where it is, and how well it did so far."""

    learner: Learner
    chunks: int = 0
    accuracies: tuple[float, ...] = ()

    @property
    def last(self) -> float | None:
        """The accuracy of the last epoch."""
        return self.accuracies[-1] if self.accuracies else None

    def is_stuck(self, patience: int) -> bool:
        """Tell whether the best epoch lies `patience` epochs back."""
        best = max(self.accuracies, default=0.0)
        return bool(patience) and bool(self.accuracies) and best not in self.accuracies[-patience:]

    def note(self, accuracy: float, samples: int) -> bool:
        """Take note of an epoch, and tell whether it was the best so far."""
        best = accuracy > max(self.accuracies, default=-1.0)
        self.accuracies = (*self.accuracies, accuracy)
        if best:
            self.learner.finished(samples, accuracy)
        return best

    def save(self, folder: Path, recipe: Recipe, stream: Stream) -> None:
        """Write the checkpoint."""
        inverter, optimizer = self.learner.inverter, self.learner.optimizer
        tensors = {f"weight.{name}": tensor for name, tensor in inverter.state_dict().items()}
        tensors |= inverter.reduction.tensors()
        for name, parameter in inverter.named_parameters():
            tensors |= {f"adam.{key}.{name}": value for key, value in optimizer.state[parameter].items()}
        metadata = {
            "card": inverter.card.as_json(),
            "training": _described(recipe, stream),
            "chunks": str(self.chunks),
            "steps": str(self.learner.done),
            "accuracies": json.dumps(self.accuracies),
        }
        write_tensors(folder / CHECKPOINT, tensors, metadata)

    @classmethod
    def load(cls, folder: Path, target: Target, recipe: Recipe, stream: Stream) -> _State | None:
        """Read the checkpoint, if there is one; one of another training is refused."""
        if not (folder / CHECKPOINT).is_file():
            return None
        metadata, tensors = _read_checkpoint(folder)
        card = Card.from_json(metadata["card"])
        if card.origin.fingerprint != target.fingerprint or metadata["training"] != _described(recipe, stream):
            raise GradleakError(f"{folder} holds an inverter of another training; choose another folder")
        with torch.random.fork_rng(devices=[]):  # building a network draws weights; the caller's random state stays
            inverter = Inverter(card, build_reduction(card, target, tensors), target)
        inverter.load_state_dict(_part(tensors, "weight."))
        learner = Learner(target, recipe, inverter, steps=1)
        learner.done = int(metadata["steps"])
        for name, parameter in inverter.named_parameters():
            learner.optimizer.state[parameter] = {
                key: tensors[f"adam.{key}.{name}"].to(
                    "cpu" if key == "step" and not parameter.is_cuda else parameter.device
                )
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
        return cls(learner, int(metadata["chunks"]), tuple(json.loads(metadata["accuracies"])))


def checkpoint_rate(folder: str | Path) -> float | None:
    """Return the learning rate of the unfinished training in a folder, if there is one."""
    if not (Path(folder) / CHECKPOINT).is_file():
        return None
    return float(json.loads(_read_checkpoint(Path(folder))[0]["training"])["lr"])


def _read_checkpoint(folder: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    path = folder / CHECKPOINT
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise GradleakError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not {"card", "training", "chunks", "steps", "accuracies"} <= metadata.keys():
        raise GradleakError(f"{path} cannot be read: it is no checkpoint of an inverter")
    return metadata, tensors


def _described(recipe: Recipe, stream: Stream) -> str:
    """Return a training in words, to tell whether a checkpoint belongs to it."""
    settings: dict[str, Any] = asdict(recipe) | {"defenses": [str(defense) for defense in recipe.defenses]}
    return json.dumps(settings | {"data": stream.words, "size": stream.size}, sort_keys=True)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
