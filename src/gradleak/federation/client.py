"""The simulated client: trains on a private batch and returns the Update that it would send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import Origin, Update
from gradleak.randomness import random_stream, start_torch
from gradleak.targets import Target, Tokens

Embeddings = Literal["frozen", "words-frozen", "trained"]
"""Which embedding gradients are sent.

`frozen`: none of word, position and type embeddings and of their LayerNorm; `words-frozen`: all but those of the word
embeddings; `trained`: all.
"""


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Local SGD whose change of the weights is sent (McMahan et al. 2017).

    Attributes:
        steps: number of local SGD steps.
        lr: their learning rate.
        batch: sequences in each step, taken in order and cyclically; None for all of them.
    """

    steps: int
    lr: float
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.lr > 0 or (self.batch is not None and self.batch < 1):
            raise GradleakError("FedAvg needs steps of at least 1, lr above 0 and batch of at least 1")


class Client:
    """A client of federated learning.

    Args:
        target: the global model.
        dropout: whether to train with the model's dropout, as fine-tuning does.
        embeddings: which embedding gradients are sent, see `Embeddings`.
        fedavg: local training; None for FedSGD, one gradient of the mean loss over the batch.
        seed: seed of the dropout masks, and of labels that are not given; None to draw them from the system's entropy,
            which nobody can repeat. It is private: no update holds it.
    """

    def __init__(
        self,
        target: Target,
        *,
        dropout: bool = False,
        embeddings: Embeddings = "frozen",
        fedavg: FedAvg | None = None,
        seed: int | None = 0,
    ) -> None:
        self.target = target
        self.dropout = dropout
        self.embeddings = embeddings
        self.fedavg = fedavg
        self.sent_parameters = sent_parameters(target, embeddings)
        self._generator = random_stream(seed)

    def update(self, texts: Sequence[str], labels: Sequence[int] | None = None) -> Update:
        """Train on a private batch and return the update that is sent.

        Args:
            texts: the private sentences.
            labels: their classes; drawn from the client's seed if not given. A language model needs none.
        """
        tokens = self.target.encode(texts)
        classes = self._labels(tokens, labels)
        origin = Origin.of(self.target)
        with self._training():
            if self.fedavg is None:
                return Update(self._gradients(self._weights(), tokens, classes), origin=origin)
            difference = self._train(self.fedavg, tokens, classes)
        return Update(difference, "difference", self.fedavg.lr, self.fedavg.steps, origin)

    def draw_labels(self, count: int) -> list[int]:
        """Draw uniform classes from the client's random stream."""
        return torch.randint(self.target.num_labels, (count,), generator=self._generator).tolist()

    def _labels(self, tokens: Tokens, labels: Sequence[int] | None) -> Tensor:
        if self.target.task == "causal-lm":
            return tokens.ids
        chosen = self.draw_labels(len(tokens.ids)) if labels is None else list(labels)
        if len(chosen) != len(tokens.ids):
            raise GradleakError(f"there are {len(tokens.ids)} texts and {len(chosen)} labels")
        wrong = next((label for label in chosen if not 0 <= label < self.target.num_labels), None)
        if wrong is not None:
            raise GradleakError(f"label {wrong} is not one of {self.target.num_labels} (0 to num_labels − 1)")
        return torch.tensor(chosen, device=self.target.device)

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.target.parameters.items()}

    def _gradients(self, weights: dict[str, Tensor], tokens: Tokens, labels: Tensor) -> dict[str, Tensor]:
        sent = self.sent_parameters
        leaves = {name: weights[name].clone().requires_grad_() for name in sent}
        loss = self.target.loss_with(weights | leaves, tokens.ids, tokens.mask, labels)
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(leaves[name]) if gradient is None else gradient
            for name, gradient in zip(sent, gradients, strict=True)
        }

    def _train(self, fedavg: FedAvg, tokens: Tokens, labels: Tensor) -> dict[str, Tensor]:
        before = self._weights()
        weights = dict(before)
        count = len(tokens.ids)
        size = fedavg.batch or count
        for step in range(fedavg.steps):
            rows = torch.arange(step * size, (step + 1) * size, device=tokens.ids.device) % count
            chosen = Tokens(tokens.ids[rows], tokens.mask[rows])
            gradients = self._gradients(weights, chosen, labels[rows])
            weights |= {name: weights[name] - fedavg.lr * gradient for name, gradient in gradients.items()}
        return {name: weights[name] - before[name] for name in self.sent_parameters}

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Enable dropout if the client uses it, with masks from the client's random stream."""
        model = self.target.model
        devices = [self.target.device] if self.target.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            start_torch(self._generator)
            model.train(self.dropout)
            try:
                yield
            finally:
                model.eval()


def sent_parameters(target: Target, embeddings: str) -> list[str]:
    """Return the names of the parameters whose gradients clients send.

    Args:
        target: the global model.
        embeddings: one of `Embeddings`.

    Raises:
        GradleakError: if it is none of them.
    """
    if embeddings not in get_args(Embeddings):
        raise unknown_name("embeddings setting", embeddings, get_args(Embeddings))
    hidden: frozenset[str] = {
        "frozen": target.embedding_parameters,
        "words-frozen": target.word_parameters,
        "trained": frozenset(),
    }[embeddings]
    return [name for name in target.parameters if name not in hidden]
