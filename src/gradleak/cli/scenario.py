"""From options to a target, private batches, a client and its updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gradleak.cli.parsing import parse_device, parse_fedavg, parse_whole_numbers
from gradleak.errors import GradleakError

if TYPE_CHECKING:
    from gradleak.defenses import Defense
    from gradleak.exchange import Knowledge, Origin, Update
    from gradleak.federation import FedAvg
    from gradleak.targets import Target

DEFAULT_MODEL = "tiny"


@dataclass(frozen=True)
class PrivateText:
    """Sentences, and what is known of their classes."""

    texts: tuple[str, ...]
    labels: tuple[int, ...] | None = None
    num_labels: int | None = None
    source: str | None = None  # the dataset and which part of it


@dataclass(frozen=True)
class TextChoice:
    """The options on private text."""

    texts: Sequence[str] | None = None
    dataset: str | None = None
    take: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    labels: str | None = None

    def read(self) -> PrivateText:
        """Return the sentences: the arguments, or those of the dataset."""
        labels = parse_whole_numbers(self.labels, "--labels")
        if self.dataset is None:
            for option in ("take", "text_column", "label_column"):
                if getattr(self, option) is not None:
                    raise GradleakError(f"--{option.replace('_', '-')} is for --dataset")
            return PrivateText(_valid(self.texts or ()), labels)
        from gradleak.data import load_dataset, parse_take

        selection = None if self.take is None else parse_take(self.take)
        dataset = load_dataset(self.dataset, text_column=self.text_column, label_column=self.label_column)
        chosen = dataset if selection is None else dataset.take(selection)
        source = self.dataset if self.take is None else f"{self.dataset} {self.take}"
        return PrivateText(chosen.texts, labels or chosen.labels, dataset.num_labels, source)


@dataclass(frozen=True)
class ModelChoice:
    """The options on the model."""

    model: str | None = None
    num_labels: int | None = None
    task: str | None = None
    random_weights: bool = False
    allow_pickle: bool = False
    trust_remote_code: bool = False
    device: str = "auto"

    def load(self, seed: int, *, num_labels: int | None = None, origin: Origin | None = None) -> Target:
        """Load the target.

        Args:
            seed: seed of weights that the checkpoint does not have.
            num_labels: how many classes the private text has.
            origin: the model of a captured update, which says all that the options leave open. The seed of the head
                is always the origin's: `--seed` is then the attack's.
        """
        from gradleak.targets import load_target

        device = parse_device(self.device)
        if origin is not None:
            num_labels, seed = origin.num_labels, origin.seed
        task = self.task or (origin.task if origin else "classification")
        classes = self.num_labels or (max(2, num_labels) if num_labels else None)
        with _hushed():
            return load_target(
                self.model or (origin.name if origin else DEFAULT_MODEL),
                classes if task == "classification" else None,
                seed,
                task=task,  # type: ignore[arg-type]  # load_target refuses other names
                device=device,
                random_weights=self.random_weights,
                allow_pickle=self.allow_pickle,
                trust_remote_code=self.trust_remote_code,
            )


@dataclass(frozen=True, kw_only=True)
class ClientChoice:
    """The options on the client, and what is done to its updates."""

    dropout: bool
    embeddings: str
    fedavg: FedAvg | None
    defenses: tuple[Defense, ...]

    @classmethod
    def read(
        cls, dropout: bool, embeddings: str | None, fedavg: str | None, defenses: Sequence[str] | None
    ) -> ClientChoice:
        """Read the options' texts."""
        from typing import get_args

        from gradleak.defenses import parse_defense
        from gradleak.errors import unknown_name
        from gradleak.federation import Embeddings

        if embeddings is not None and embeddings not in get_args(Embeddings):
            raise unknown_name("embeddings setting", embeddings, get_args(Embeddings))
        return cls(
            dropout=dropout,
            embeddings=embeddings or "frozen",
            fedavg=parse_fedavg(fedavg),
            defenses=tuple(parse_defense(text) for text in defenses or ()),
        )

    def __str__(self) -> str:
        local = f"FedAvg ({self.fedavg.steps} steps, lr {self.fedavg.lr:g})" if self.fedavg else "FedSGD"
        return f"{local}, {'dropout' if self.dropout else 'no dropout'}, embeddings {self.embeddings}"

    def as_dict(self) -> dict[str, Any]:
        """Return the client's part, ready for JSON."""
        return {
            "dropout": self.dropout,
            "embeddings": self.embeddings,
            "fedavg": None if self.fedavg is None else asdict(self.fedavg),
        }


@dataclass(frozen=True)
class Batch:
    """What one update is computed on."""

    texts: tuple[str, ...]
    labels: tuple[int, ...] | None


class Simulation:
    """A client on this machine: batches of private text in, updates out, in order.

    Args:
        target: the model.
        text: the private sentences.
        choice: the client's options.
        batch_size: sentences per batch; None for all of them in one.
        seed: seed of labels that are not given, of dropout and of the defenses.
    """

    def __init__(
        self, target: Target, text: PrivateText, choice: ClientChoice, batch_size: int | None, seed: int
    ) -> None:
        from gradleak.federation import Client

        self.target = target
        self.choice = choice
        self.client = Client(
            target,
            dropout=choice.dropout,
            embeddings=choice.embeddings,  # type: ignore[arg-type]  # Client refuses other names
            fedavg=choice.fedavg,
            seed=seed,
        )
        self._seed = seed
        target.encode(text.texts)  # the last text's fault must show before the first batch is attacked
        labels = self._labels(text)
        size = batch_size or len(text.texts)
        self.batches = [
            Batch(text.texts[start : start + size], None if labels is None else labels[start : start + size])
            for start in range(0, len(text.texts), size)
        ]

    def updates(self) -> Iterator[Update]:
        """Yield each batch's update, as it arrives at the server."""
        from gradleak.defenses import defend, defend_examples, defense_stream, examples_needed

        stream = defense_stream(self._seed)
        defenses = self.choice.defenses
        for batch in self.batches:
            if examples_needed(defenses):
                yield defend_examples(self._example_updates(batch), defenses, stream)
            else:
                yield defend(self.client.update(batch.texts, batch.labels), defenses, stream)

    def _example_updates(self, batch: Batch) -> Iterator[Update]:
        for number, text in enumerate(batch.texts):
            yield self.client.update([text], None if batch.labels is None else [batch.labels[number]])

    def knowledge(self, batch: Batch, facts: Sequence[str]) -> Knowledge:
        """Return what an attacker is told who is told these facts."""
        from gradleak.exchange import Knowledge

        lengths = self.target.encode(batch.texts).lengths
        rates = self.target.dropouts.values() if self.choice.dropout else ()
        everything = Knowledge(
            labels=batch.labels,
            lengths=lengths,
            longest=max(lengths),
            batch_size=len(batch.texts),
            dropout=max(rates, default=0.0),
            defenses=tuple(str(defense) for defense in self.choice.defenses),
        )
        return everything.only(facts)

    def _labels(self, text: PrivateText) -> tuple[int, ...] | None:
        if self.target.task != "classification":
            return None
        if text.labels is None:
            return tuple(self.client.draw_labels(len(text.texts)))
        if len(text.labels) != len(text.texts):
            raise GradleakError(f"there are {len(text.texts)} texts and {len(text.labels)} labels")
        largest = max(text.labels)
        if largest >= self.target.num_labels:
            raise GradleakError(
                f"label {largest} is not one of {self.target.num_labels}; give --num-labels {largest + 1} or more"
            )
        return text.labels


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep stderr for errors: Hugging Face draws a bar there for every file, and a line for every failed attempt."""
    import logging

    from transformers.utils import logging as bars

    hub = logging.getLogger("huggingface_hub")
    level, shown = hub.level, bars.is_progress_bar_enabled()
    hub.setLevel(logging.CRITICAL)
    bars.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        hub.setLevel(level)
        if shown:
            bars.enable_progress_bar()  # type: ignore[no-untyped-call]


def _valid(texts: Sequence[str]) -> tuple[str, ...]:
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError:  # the shell passed bytes that are no text
            raise GradleakError(f"text {number} is not valid UTF-8") from None
    return tuple(texts)
