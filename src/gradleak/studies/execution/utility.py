"""Utility of a model under defenses: fine-tune it on defended gradients, then test it.

Defenses change the gradient of every training step as they change the update that a client sends: leakage and utility
are measured under the same defense. Used by the utility cells of studies.
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
from gradleak.federation import Client, Embeddings, WireFormat
from gradleak.metrics import accuracy, matthews_correlation
from gradleak.simulation.transmission import as_received
from gradleak.targets import Target, Tokens

WARMUP = 0.1  # fraction of the steps in which the learning rate rises; then it falls to zero, as in BERT's fine-tuning
EXAMPLE_VALUES = 2**25  # gradient entries held at once when gradients are computed for each example


class Labelled(Protocol):
    """Texts with one class each, such as a `gradleak.data.Dataset`."""

    @property
    def texts(self) -> Sequence[str]:
        """The texts."""

    @property
    def labels(self) -> Sequence[int] | None:
        """One class number per text."""


@dataclass(frozen=True, kw_only=True)
class Utility:
    """Test results of a model that was trained under defenses.

    Attributes:
        mcc: Matthews' correlation on the test set, from -1 to 1; None for a language model.
        accuracy: fraction of correct predictions, from 0 to 1; None for a language model.
        loss: mean cross-entropy of an example, or of a predicted token: exp(loss) is then the perplexity.
        epsilon: privacy loss of the training at δ = 1e-5; None without DP-SGD.
        steps: training steps.
        examples: training examples.
        seconds: duration of training and test.
    """

    mcc: float | None
    accuracy: float | None
    loss: float
    epsilon: float | None
    steps: int
    examples: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """How a model is fine-tuned.

    Attributes:
        epochs: passes over the training examples.
        batch_size: examples per step.
        lr: the highest learning rate.
        dropout: whether the model's dropout is on.
        embeddings: which embeddings are trained.
        send: number format in which the gradient of a step is sent, after all defenses.
        seed: seed of shuffling, dropout and the defenses.
    """

    epochs: int = 2
    batch_size: int = 32
    lr: float = 5e-5
    dropout: bool = True
    embeddings: Embeddings = "trained"
    send: WireFormat = "fp32"
    seed: int = 0


def measure_utility(
    target: Target,
    train: Labelled,
    test: Labelled,
    *,
    defenses: Sequence[Defense] = (),
    training: FineTuning | None = None,
    listener: Listener | None = None,
) -> Utility:
    """Fine-tune a copy of a model with AdamW on defended gradients, and test it.

    Every batch is full, as the accounting of DP-SGD assumes: examples that are left over at the end of an epoch are
    not used before the next shuffle.

    Args:
        target: the classifier or language model before training; it is not changed.
        train: training examples.
        test: test examples.
        defenses: applied to the gradient of every step, in order; error feedback is kept from step to step.
        training: how to train; the defaults of `FineTuning` if None.
        listener: called with a `Progress` now and then.

    Raises:
        GradleakError: if labels of a classifier are missing or out of range, or nothing can be trained.
    """
    how = training or FineTuning()
    started = time.monotonic()
    examples, testing = _LabelledTokens.of(target, train, "train"), _LabelledTokens.of(target, test, "test")
    if how.epochs < 1 or how.batch_size < 1 or not how.lr > 0:
        raise GradleakError("training needs epochs and a batch size of at least 1, and lr above 0")
    size = min(how.batch_size, len(examples))
    steps = how.epochs * (len(examples) // size)
    spent = _privacy_loss(defenses, size, len(examples), steps)  # before training: its package may be missing
    model = _copied(target)
    with _training(model, how.dropout, how.seed):
        trainer = _Trainer(model, how, defenses, steps)
        reporter = Reporter(listener)
        for number, batch in enumerate(_batches(examples, how.epochs, size, _stream(how.seed, "order")), start=1):
            trainer.step(batch)
            reporter(number, steps, trainer.look)
    loss, predictions = _tested(model, testing, size)
    labels: list[int] = testing.labels.tolist() if predictions else []
    return Utility(
        mcc=matthews_correlation(predictions, labels) if predictions else None,
        accuracy=accuracy(predictions, labels) if predictions else None,
        loss=loss,
        epsilon=spent,
        steps=steps,
        examples=len(examples),
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True)
class _LabelledTokens:
    """Tokens and classes of several texts."""

    tokens: Tokens
    labels: Tensor  # [sequences]; token ids [sequences, tokens] for a language model

    @classmethod
    def of(cls, target: Target, data: Labelled, name: str) -> _LabelledTokens:
        if target.task != "classification":
            tokens = target.encode(data.texts)
            return cls(tokens, tokens.ids)
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

    def select(self, indices: Tensor) -> _LabelledTokens:
        """Return some of the examples, padded to the longest of them."""
        chosen = indices.to(self.labels.device)
        mask = self.tokens.mask[chosen]
        longest = int(mask.sum(dim=1).max()) if len(chosen) else 0
        labels = self.labels[chosen] if self.labels.ndim == 1 else self.labels[chosen, :longest]
        return _LabelledTokens(Tokens(self.tokens.ids[chosen, :longest], mask[:, :longest]), labels)

    def parts(self, size: int) -> Iterator[_LabelledTokens]:
        """Yield all examples in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.select(torch.arange(start, min(start + size, len(self))))


class _Trainer:
    """The state of a training: weights, optimizer, and the memory of the defenses."""

    def __init__(self, model: Target, how: FineTuning, defenses: Sequence[Defense], steps: int) -> None:
        self._model = model
        self._defenses = defenses
        self._stream = defense_stream(how.seed)
        self._memory: Memory = {}
        self._losses: list[Tensor] = []
        self._by_example = examples_needed(defenses)
        self._wire = how.send
        sent = Client(model, embeddings=how.embeddings).sent_parameters
        self._trained = {name: model.parameters[name].requires_grad_() for name in sent}
        self._optimizer = torch.optim.AdamW(self._trained.values(), lr=how.lr)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: _warm_up_and_decay(step, steps)
        )

    def step(self, batch: _LabelledTokens) -> None:
        """Train on one batch."""
        self._losses = []
        if self._by_example:
            sent = defend_examples(self._example_updates(batch), self._defenses, self._stream, self._memory)
        else:
            sent = defend(self._batch_update(batch), self._defenses, self._stream, self._memory)
        for name, parameter in self._trained.items():
            parameter.grad = as_received(sent.tensors[name], self._wire)
        self._optimizer.step()
        self._schedule.step()

    def look(self) -> tuple[float, tuple[str, ...]]:
        """Return the loss of the last batch, for a report."""
        return float(torch.stack(self._losses).mean()), ()

    def _batch_update(self, batch: _LabelledTokens) -> Update:
        loss = self._model.loss_with({}, batch.tokens.ids, batch.tokens.mask, batch.labels)
        gradients = torch.autograd.grad(loss, list(self._trained.values()), allow_unused=True, materialize_grads=True)
        self._losses.append(loss.detach())
        return Update(dict(zip(self._trained, gradients, strict=True)))

    def _example_updates(self, batch: _LabelledTokens) -> Iterator[Update]:
        """Yield the update of each example, computed for as many examples at once as EXAMPLE_VALUES allows."""
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
    """Return the factor of the learning rate at a step, counted from 0."""
    warmup = int(WARMUP * steps)
    return (step + 1) / (warmup + 1) if step < warmup else (steps - step) / (steps - warmup)


def _batches(examples: _LabelledTokens, epochs: int, size: int, order: torch.Generator) -> Iterator[_LabelledTokens]:
    """Yield full batches of the examples, shuffled again in every epoch."""
    for _ in range(epochs):
        shuffled = torch.randperm(len(examples), generator=order)
        for start in range(0, len(examples) - size + 1, size):
            yield examples.select(shuffled[start : start + size])


def _privacy_loss(defenses: Sequence[Defense], batch_size: int, examples: int, steps: int) -> float | None:
    """Return ε at δ = 1e-5, None without DP-SGD; defenses after DP-SGD cannot raise it."""
    examples_needed(defenses)  # raises if their order is impossible
    first = next(iter(defenses), None)
    if not isinstance(first, DPSGD):
        return None
    return epsilon(first.noise_multiplier(batch_size), batch_size / examples, steps)


def _copied(target: Target) -> Target:
    return target.with_model(copy.deepcopy(target.model), target.adapter)


@contextmanager
def _training(model: Target, dropout: bool, seed: int) -> Iterator[None]:
    """Switch dropout on or off, with masks drawn from the seed instead of the global random state."""
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(_stream(seed, "dropout").initial_seed())
        model.model.train(dropout)
        yield
    model.model.eval()


@torch.no_grad()
def _tested(model: Target, examples: _LabelledTokens, size: int) -> tuple[float, list[int]]:
    """Return the mean loss, and the predicted class of each example; a language model's loss is a mean over tokens."""
    total, weight = 0.0, 0
    predictions: list[int] = []
    for part in examples.parts(size):
        ids, mask = part.tokens.ids, part.tokens.mask
        logits = model.family.logits(model.model, model.embed(ids), mask, model.task)
        if model.task == "classification":
            losses = torch.nn.functional.cross_entropy(logits, part.labels, reduction="none")
            predictions += logits.argmax(dim=1).tolist()
        else:
            predicted = mask[:, 1:]
            losses = torch.nn.functional.cross_entropy(
                logits[:, :-1][predicted], ids[:, 1:][predicted], reduction="none"
            )
        total, weight = total + float(losses.double().sum()), weight + len(losses)
    return total / weight, predictions


def _stream(seed: int, purpose: str) -> torch.Generator:
    digest = hashlib.sha256(f"utility {purpose} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
