"""What a defense costs: a model is fine-tuned on gradients that passed through it, then tested.

Defenses do to the gradient of every training step what they do to an update that a client sends, so that leakage and
utility are measured under the same thing.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradleak.defenses import (
    DPSGD,
    Defense,
    Memory,
    defend,
    defend_examples,
    defense_stream,
    epsilon,
    examples_needed,
)
from gradleak.errors import GradleakError
from gradleak.exchange import Listener, Reporter, Update
from gradleak.federation import Client, Embeddings
from gradleak.metrics import accuracy, matthews_correlation
from gradleak.targets import Target, Tokens

WARMUP = 0.1  # share of the steps in which the learning rate rises; then it falls to zero, as in BERT's fine-tuning
EXAMPLE_VALUES = 2**25  # gradient entries that are held at once when each example has its own


class Labelled(Protocol):
    """Texts with a class each, such as a `gradleak.data.Dataset`."""

    @property
    def texts(self) -> Sequence[str]:
        """The texts."""

    @property
    def labels(self) -> Sequence[int] | None:
        """One class number per text."""


@dataclass(frozen=True, kw_only=True)
class Utility:
    """How well a model does that was trained under defenses.

    Attributes:
        mcc: Matthews' correlation on the test set, from -1 to 1.
        accuracy: share of right answers, from 0 to 1.
        loss: mean cross-entropy.
        epsilon: privacy loss of the training at δ = 1e-5; None without DP-SGD.
        steps: training steps.
        examples: training examples.
        seconds: how long training and test took.
    """

    mcc: float
    accuracy: float
    loss: float
    epsilon: float | None
    steps: int
    examples: int
    seconds: float


def measure_utility(
    target: Target,
    train: Labelled,
    test: Labelled,
    *,
    defenses: Sequence[Defense] = (),
    epochs: int = 2,
    batch_size: int = 32,
    lr: float = 5e-5,
    dropout: bool = True,
    embeddings: Embeddings = "trained",
    max_examples: int | None = None,
    seed: int = 0,
    listener: Listener | None = None,
) -> Utility:
    """Fine-tune a copy of a classifier with AdamW on defended gradients, and test it.

    Every batch is full, as the accounting of DP-SGD wants it: what is left over when an epoch's shuffled examples are
    dealt out waits for the next epoch.

    Args:
        target: the classifier before training; it stays as it is.
        train: what to train on.
        test: what to test on.
        defenses: what every step's gradient passes through, in order; error feedback remembers from step to step.
        epochs: how often to go through the training examples.
        batch_size: examples per step.
        lr: the highest learning rate; it rises over the first tenth of the steps and then falls to zero.
        dropout: train with the model's dropout.
        embeddings: which embeddings are trained and sent, as for a client.
        max_examples: train on so many examples only, drawn by the seed.
        seed: of the order of examples, dropout, and the defenses.
        listener: told the training loss of steps.
    """
    started = time.monotonic()
    training, testing = _Examples.of(target, train, "train"), _Examples.of(target, test, "test")
    order = _stream(seed, "order")
    if max_examples is not None:
        training = training.rows(torch.randperm(len(training), generator=order)[: max(0, max_examples)])
    if epochs < 1 or batch_size < 1 or not lr > 0 or not len(training):
        raise GradleakError("training needs epochs, batch size and examples of at least 1, and lr above 0")
    size = min(batch_size, len(training))
    steps = epochs * (len(training) // size)
    spent = _privacy_loss(defenses, size, len(training), steps)  # first: it may lack a package
    model = _copied(target)
    with _training(model, dropout, seed):
        trainer = _Trainer(model, embeddings, defenses, lr, steps, defense_stream(seed))
        reporter = Reporter(listener)
        for number, batch in enumerate(_batches(training, epochs, size, order), start=1):
            trainer.step(batch)
            reporter(number, steps, trainer.look)
    losses, predictions = _tested(model, testing, size)
    labels: list[int] = testing.labels.tolist()
    return Utility(
        mcc=matthews_correlation(predictions, labels),
        accuracy=accuracy(predictions, labels),
        loss=sum(losses) / len(losses),
        epsilon=spent,
        steps=steps,
        examples=len(training),
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True)
class _Examples:
    """Tokens and classes of several texts."""

    tokens: Tokens
    labels: Tensor  # [sequences]

    @classmethod
    def of(cls, target: Target, data: Labelled, name: str) -> _Examples:
        if target.task != "classification":
            raise GradleakError(f"utility is measured on classifiers; {target.name} is a {target.task} model")
        if data.labels is None:
            raise GradleakError(f"utility needs labels: the {name} texts have none")
        if len(data.labels) != len(data.texts):
            raise GradleakError(f"there are {len(data.texts)} {name} texts and {len(data.labels)} labels")
        wrong = next((label for label in data.labels if not 0 <= label < target.num_labels), None)
        if wrong is not None:
            raise GradleakError(f"{name} label {wrong} is not one of {target.num_labels} (0 to num_labels − 1)")
        tokens = target.encode(data.texts)
        return cls(tokens, torch.tensor(list(data.labels), device=target.device))

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, rows: Tensor) -> _Examples:
        """Return some of the examples, padded to the longest of them."""
        chosen = rows.to(self.labels.device)
        mask = self.tokens.mask[chosen]
        longest = int(mask.sum(dim=1).max()) if len(chosen) else 0
        return _Examples(Tokens(self.tokens.ids[chosen, :longest], mask[:, :longest]), self.labels[chosen])

    def parts(self, size: int) -> Iterator[_Examples]:
        """Yield all of them in order, so many at a time."""
        for start in range(0, len(self), size):
            yield self.rows(torch.arange(start, min(start + size, len(self))))


class _Trainer:
    """The running training: weights, optimizer, and what the defenses remember."""

    def __init__(
        self,
        model: Target,
        embeddings: Embeddings,
        defenses: Sequence[Defense],
        lr: float,
        steps: int,
        stream: torch.Generator,
    ) -> None:
        self._model = model
        self._defenses = defenses
        self._stream = stream
        self._memory: Memory = {}
        self._losses: list[Tensor] = []
        self._by_example = examples_needed(defenses)
        sent = Client(model, embeddings=embeddings).sent_parameters
        self._trained = {name: model.parameters[name].requires_grad_() for name in sent}
        self._optimizer = torch.optim.AdamW(self._trained.values(), lr=lr)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: _warm_up_and_decay(step, steps)
        )

    def step(self, batch: _Examples) -> None:
        """Train on one batch."""
        self._losses = []
        if self._by_example:
            sent = defend_examples(self._example_updates(batch), self._defenses, self._stream, self._memory)
        else:
            sent = defend(self._batch_update(batch), self._defenses, self._stream, self._memory)
        for name, parameter in self._trained.items():
            parameter.grad = sent.tensors[name]
        self._optimizer.step()
        self._schedule.step()

    def look(self) -> tuple[float, tuple[str, ...]]:
        """Return the loss of the last batch, for a report."""
        return float(torch.stack(self._losses).mean()), ()

    def _batch_update(self, batch: _Examples) -> Update:
        loss = self._model.loss_with({}, batch.tokens.ids, batch.tokens.mask, batch.labels)
        gradients = torch.autograd.grad(loss, list(self._trained.values()), allow_unused=True, materialize_grads=True)
        self._losses.append(loss.detach())
        return Update(dict(zip(self._trained, gradients, strict=True)))

    def _example_updates(self, batch: _Examples) -> Iterator[Update]:
        """Yield the update of each example, computed for as many at once as memory allows."""
        weights = {name: parameter.detach() for name, parameter in self._trained.items()}
        together = max(1, EXAMPLE_VALUES // sum(weight.numel() for weight in weights.values()))

        def loss_of_one(weights: dict[str, Tensor], ids: Tensor, mask: Tensor, label: Tensor) -> Tensor:
            return self._model.loss_with(weights, ids[None], mask[None], label[None])

        of_each = torch.func.vmap(
            torch.func.grad_and_value(loss_of_one), in_dims=(None, 0, 0, 0), randomness="different"
        )
        for part in batch.parts(together):
            gradients, losses = of_each(weights, part.tokens.ids, part.tokens.mask, part.labels)
            self._losses += losses.detach().unbind()
            for index in range(len(part)):
                yield Update({name: gradient[index] for name, gradient in gradients.items()})


def _warm_up_and_decay(step: int, steps: int) -> float:
    """Return the factor of the learning rate at a step counted from 0."""
    warmup = int(WARMUP * steps)
    return (step + 1) / (warmup + 1) if step < warmup else (steps - step) / (steps - warmup)


def _batches(examples: _Examples, epochs: int, size: int, order: torch.Generator) -> Iterator[_Examples]:
    """Deal the examples out, shuffled anew in each epoch, in batches that are all full."""
    for _ in range(epochs):
        shuffled = torch.randperm(len(examples), generator=order)
        for start in range(0, len(examples) - size + 1, size):
            yield examples.rows(shuffled[start : start + size])


def _privacy_loss(defenses: Sequence[Defense], batch_size: int, examples: int, steps: int) -> float | None:
    """Return ε; what other defenses do after DP-SGD cannot raise it."""
    examples_needed(defenses)  # their order is checked before anything runs
    first = next(iter(defenses), None)
    if not isinstance(first, DPSGD):
        return None
    return epsilon(first.noise_multiplier(batch_size), batch_size / examples, steps)


def _copied(target: Target) -> Target:
    model = copy.deepcopy(target.model)
    return Target(model, target.tokenizer, target.family, name=target.name, task=target.task, seed=target.seed)


@contextmanager
def _training(model: Target, dropout: bool, seed: int) -> Iterator[None]:
    """Switch dropout on or off, with masks from a random stream of its own."""
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(_stream(seed, "dropout").initial_seed())
        model.model.train(dropout)
        yield
    model.model.eval()


@torch.no_grad()
def _tested(model: Target, examples: _Examples, size: int) -> tuple[list[float], list[int]]:
    """Return the loss and the predicted class of each example."""
    losses: list[float] = []
    predictions: list[int] = []
    for part in examples.parts(size):
        logits = model.family.logits(model.model, model.embed(part.tokens.ids), part.tokens.mask, model.task)
        losses += torch.nn.functional.cross_entropy(logits, part.labels, reduction="none").tolist()
        predictions += logits.argmax(dim=1).tolist()
    return losses, predictions


def _stream(seed: int, purpose: str) -> torch.Generator:
    digest = hashlib.sha256(f"utility {purpose} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
