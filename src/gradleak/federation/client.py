"""The simulated client: trains on a private batch and returns the Update that it would send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import FedAvg, Origin, Precision, Update, WireFormat
from gradleak.randomness import random_stream, start_torch
from gradleak.simulation.training import Batch, check_batch, check_precision, gradient, local_difference
from gradleak.simulation.transmission import transmitted
from gradleak.targets import Target, Tokens

Embeddings = Literal["frozen", "words-frozen", "trained"]
"""Which embedding gradients are sent.

`frozen`: none of word, position and type embeddings and of their LayerNorm; `words-frozen`: all but those of the word
embeddings; `trained`: all.
"""


class Client:
    """A client of federated learning.

    Args:
        target: the global model. If it has adapters, the client trains and sends these, and with a classifier its head.
        dropout: whether to train with the model's dropout, as fine-tuning does; that of adapters included.
        embeddings: which embedding gradients are sent, see `Embeddings`.
        fedavg: local training; None for FedSGD, one gradient of the mean loss over the batch.
        precision: number format of forward and backward passes; fp16 scales the loss, as Hugging Face's Trainer does.
        send: number format in which the update leaves the client; the server converts it back.
        seed: seed of the dropout masks, of the order of the texts, and of labels that are not given; None to draw them
            from the system's entropy, which nobody can repeat. It is private: no update holds it.
    """

    def __init__(
        self,
        target: Target,
        *,
        dropout: bool = False,
        embeddings: Embeddings = "frozen",
        fedavg: FedAvg | None = None,
        precision: Precision = "fp32",
        send: WireFormat = "fp32",
        seed: int | None = 0,
    ) -> None:
        check_precision(precision, target.device)
        if send not in get_args(WireFormat):
            raise unknown_name("number format to send", send, get_args(WireFormat))
        self.target = target
        self.dropout = dropout
        self.embeddings = embeddings
        self.fedavg = fedavg
        self.precision: Precision = precision
        self.wire: WireFormat = send
        self.sent_parameters = sent_parameters(target, embeddings)
        self._generator = random_stream(seed)

    def update(self, texts: Sequence[str], labels: Sequence[int] | None = None) -> Update:
        """Train on a private batch and return the update that the server receives.

        Args:
            texts: the private sentences.
            labels: their classes; drawn from the client's seed if not given. A language model needs none.

        Raises:
            GradleakError: if a mini-batch of local training is larger than the batch, or a text or label is refused.
        """
        if self.fedavg is not None:
            check_batch(self.fedavg, len(texts))
        return self.send(self.train(texts, labels))

    def train(self, texts: Sequence[str], labels: Sequence[int] | None = None) -> Update:
        """Train on a private batch and return the update in full precision, before defenses and `send`.

        Fewer texts than a mini-batch has are repeated in it; with epochs they are the whole of it.
        """
        tokens = self.target.encode(texts)
        batch = Batch(tokens, self._labels(tokens, labels))
        origin, names = Origin.of(self.target), self.sent_parameters
        with self._training():
            if self.fedavg is None:
                slopes = gradient(self.target, batch, names, self.precision)
                return Update(slopes, origin=origin, precision=self.precision)
            change = local_difference(self.target, batch, names, self.fedavg, self._generator, self.precision)
        return Update(change, "difference", origin=origin, training=self.fedavg, precision=self.precision)

    def train_alone(self, texts: Sequence[str], labels: Sequence[int] | None = None) -> Iterator[Update]:
        """Yield the update of each text as if it were the client's only one, before defenses and `send`."""
        for number, text in enumerate(texts):
            yield self.train([text], None if labels is None else [labels[number]])

    def send(self, update: Update) -> Update:
        """Return an update as the server has it after it was sent in the client's number format."""
        return transmitted(update, self.wire)

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
        GradleakError: if it is none of them, or the embeddings of a model with adapters are to be trained.
    """
    if embeddings not in get_args(Embeddings):
        raise unknown_name("embeddings setting", embeddings, get_args(Embeddings))
    if target.adapter is not None:
        if embeddings != "frozen":
            raise GradleakError(
                f"embeddings {embeddings}: a client with adapters trains those alone; leave it at frozen"
            )
        return target.trained_parameters
    hidden: frozenset[str] = {
        "frozen": target.embedding_parameters,
        "words-frozen": target.word_parameters,
        "trained": frozenset(),
    }[embeddings]
    return [name for name in target.parameters if name not in hidden]
