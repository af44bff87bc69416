"""Scenario: a threat model, made of private text, a client, defenses and the attacker's knowledge.

Used by the command line and by studies, which attack the batches that a scenario yields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gradleak.data import Dataset, LabelMapping, classes_needed, map_labels
from gradleak.defenses import Defense, defend, defend_examples, defense_stream, examples_needed
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge, Update
from gradleak.federation import Client, Embeddings, FedAvg, Precision, WireFormat, check_batch, sum_updates
from gradleak.targets import Lora, Target, Task, load_target
from gradleak.targets.dropout import own_dropouts


@dataclass(frozen=True)
class TargetSpec:
    """Names a model and how to load it (see `load_target`)."""

    name: str
    num_labels: int | None = None
    task: Task = "classification"
    random_weights: bool = False
    new_head: bool | None = None
    lora: Lora | None = None
    adapter: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; those of adapters, which came later, are left out without one."""
        adapted = {"lora": None if self.lora is None else self.lora.as_dict(), "adapter": self.adapter}
        fields = {name: value for name, value in asdict(self).items() if name not in adapted}
        return fields | {name: value for name, value in adapted.items() if value is not None}

    def load(
        self, seed: int = 0, device: str = "auto", *, allow_pickle: bool = False, trust_remote_code: bool = False
    ) -> Target:
        """Load the model; the seed initialises weights that the checkpoint does not have."""
        return load_target(
            self.name,
            self.num_labels if self.task == "classification" else None,
            seed,
            task=self.task,
            device=device,
            random_weights=self.random_weights,
            new_head=bool(self.new_head),
            lora=self.lora,
            adapter=self.adapter,
            allow_pickle=allow_pickle,
            trust_remote_code=trust_remote_code,
        )


def labels_for(target: Target, dataset: Dataset, given: Mapping[str, int] | None = None) -> LabelMapping | None:
    """Map the labels of a dataset to classes of a target; None if there are no classes or no labels.

    Args:
        target: the model.
        dataset: the data, or a part of it.
        given: the class of each label, if the user has chosen it.
    """
    if target.task != "classification":
        return None
    more = f"--num-labels {classes_needed(dataset)}"
    head = "--new-head for a new classifier" if target.trained_head else more
    remedy = f"give {head}, or --labels a=0,b=1,… (in a study: new_head, num_labels, labels)"
    return map_labels(dataset, target.num_labels, target.class_names, given, remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """How a client trains and what it sends (see `Client`).

    Attributes:
        dropout: whether the client trains with the model's dropout. A number replaces the model's own rate; the target
            must have been set to it before (`set_dropout`).
        embeddings: which embedding gradients the client sends.
        fedavg: local training before the client sends; None for FedSGD.
        precision: number format of the client's forward and backward passes.
        send: number format in which updates leave the client, after all defenses.
        clients: number of such clients whose updates are summed, each with its own batch.
    """

    dropout: bool | float = False
    embeddings: Embeddings = "frozen"
    fedavg: FedAvg | None = None
    precision: Precision = "fp32"
    send: WireFormat = "fp32"
    clients: int = 1

    def __str__(self) -> str:
        local = self.fedavg.in_words if self.fedavg else "FedSGD"
        rate = "" if self.rate is None else f" {self.rate:g}"
        words = [local, f"{'dropout' if self.dropout else 'no dropout'}{rate}", f"embeddings {self.embeddings}"]
        words += [] if self.precision == "fp32" else [f"trains in {self.precision}"]
        words += [] if self.send == "fp32" else [f"sends {self.send}"]
        words += [] if self.clients == 1 else [f"sum over {self.clients} clients"]
        return ", ".join(words)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for JSON; a setting that came later is left out at its default, as in older records."""
        values = asdict(self) | {"fedavg": None if self.fedavg is None else self.fedavg.as_dict()}
        later = {"precision": "fp32", "send": "fp32", "clients": 1}
        return {name: value for name, value in values.items() if name not in later or value != later[name]}

    @property
    def rate(self) -> float | None:
        """The dropout rate that replaces the model's own; None to keep that."""
        return None if isinstance(self.dropout, bool) else self.dropout

    def client(self, target: Target, seed: int | None) -> Client:
        """Return a client with these settings."""
        if self.rate is not None and {self.rate} != {module.p for module in own_dropouts(target)}:
            raise GradleakError(
                f"dropout {self.rate:g} needs a model of that rate: call set_dropout(target, rate) first"
            )
        return Client(
            target,
            dropout=bool(self.dropout),
            embeddings=self.embeddings,
            fedavg=self.fedavg,
            precision=self.precision,
            send=self.send,
            seed=seed,
        )


@dataclass(frozen=True)
class CapturedBatch:
    """One update as the server receives it, the attacker's knowledge of it, and the private batch if it is known.

    Attributes:
        update: the update after all defenses.
        knowledge: the attacker's knowledge.
        texts: the private texts; empty for an update that was captured elsewhere.
        labels: their classes; None if unknown, or for a language model.
    """

    update: Update
    knowledge: Knowledge
    texts: tuple[str, ...] = ()
    labels: tuple[int, ...] | None = None

    @property
    def references(self) -> tuple[str, ...] | None:
        """The private texts to score against; None if they are not known."""
        return self.texts or None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A threat model: batches of private text, the client that trains on them, and what the attacker sees and knows.

    Attributes:
        texts: the private sentences.
        labels: their classes; None to draw them from the seed.
        batch_size: sentences per batch of a client, in the order given; None to share all out among the clients.
        client: how the client trains.
        defenses: defenses applied to its updates, in order.
        facts: names of the facts that the attacker knows, as in `--know`.
        seed: seed of drawn labels, of dropout and of the defenses; None for the system's entropy.
    """

    texts: tuple[str, ...]
    labels: tuple[int, ...] | None = None
    batch_size: int | None = None
    client: ClientSettings = ClientSettings()
    defenses: tuple[Defense, ...] = ()
    facts: tuple[str, ...] = ()
    seed: int | None = 0

    @property
    def count(self) -> int:
        """The number of updates that the attacker sees; a sum over clients counts once."""
        return len(self._parts())

    def batches(self, target: Target) -> Iterator[CapturedBatch]:
        """Yield the captured batches one by one; updates are large, so each is computed when it is needed."""
        client = self.client.client(target, self.seed)
        self._check_data()
        encoded = target.encode(self.texts)  # all at once: an error in the last text is raised before the first attack
        labels = self._labels(target, client)
        stream = defense_stream(self.seed)
        for part in self._parts():
            texts, classes = self.texts[part], None if labels is None else labels[part]
            each = [
                defended_update(client, texts[own], None if classes is None else classes[own], self.defenses, stream)
                for own in _slices(len(texts), self._size)
            ]
            update = sum_updates(each)
            yield CapturedBatch(update, self._knowledge(target, classes, encoded.lengths[part]), texts, classes)

    @property
    def _size(self) -> int:
        """Sentences per client."""
        if self.batch_size is not None:
            return self.batch_size
        size, left = divmod(len(self.texts), self.client.clients)
        if left or not size:
            raise GradleakError(
                f"{_texts(len(self.texts))} cannot be shared out evenly among {self.client.clients} clients"
            )
        return size

    def _parts(self) -> list[slice]:
        return _slices(len(self.texts), self._size * self.client.clients)

    def _check_data(self) -> None:
        """Refuse data too small for the clients, or for the mini-batches of their local training."""
        size, clients = self._size, self.client.clients
        check_sums(len(self.texts), size, clients)
        if self.client.fedavg is not None:  # a last batch may be smaller: its texts are repeated (`Client.train`)
            check_batch(self.client.fedavg, min(size, len(self.texts)))

    def _labels(self, target: Target, client: Client) -> tuple[int, ...] | None:
        if target.task != "classification":
            return None
        if self.labels is None:
            return tuple(client.draw_labels(len(self.texts)))
        if len(self.labels) != len(self.texts):
            raise GradleakError(f"there are {len(self.texts)} texts and {len(self.labels)} labels")
        largest = max(self.labels)
        if largest >= target.num_labels:
            more = "" if target.trained_head else f"; give --num-labels {largest + 1} or more"
            raise GradleakError(f"label {largest} is not one of {target.num_labels}{more or ' (they count from 0)'}")
        return self.labels

    def _knowledge(self, target: Target, labels: tuple[int, ...] | None, lengths: tuple[int, ...]) -> Knowledge:
        rates = target.dropouts.values() if self.client.dropout else ()
        everything = Knowledge(
            labels=labels,
            lengths=lengths,
            longest=max(lengths),
            batch_size=len(lengths),
            dropout=max(rates, default=0.0),
            defenses=tuple(str(defense) for defense in self.defenses),
        )
        return everything.only(self.facts)


def defended_update(
    client: Client,
    texts: Sequence[str],
    labels: Sequence[int] | None,
    defenses: Sequence[Defense],
    stream: torch.Generator,
) -> Update:
    """Return the update that the server receives for a batch, after defenses of the batch or of single examples."""
    if examples_needed(defenses):
        return client.send(defend_examples(client.train_alone(texts, labels), defenses, stream))
    return client.send(defend(client.train(texts, labels), defenses, stream))


def check_sums(texts: int, size: int, clients: int) -> None:
    """Raise a GradleakError unless so many texts make whole sums over clients with batches of this size."""
    if clients > 1 and (texts == 0 or texts % (size * clients)):
        raise GradleakError(
            f"sums over {clients} clients with batches of {size} take {size * clients} texts each, or a multiple; "
            f"there {'is' if texts == 1 else 'are'} {texts}"
        )


def _slices(count: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, count, size)]


def _texts(count: int) -> str:
    return "1 text" if count == 1 else f"{count} texts"
