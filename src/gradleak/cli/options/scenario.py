"""The options that commands share, in groups, and the way from them to a target, private text and a scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from gradleak.cli.options import shared as o
from gradleak.cli.options.parse import parse_device, parse_fedavg, parse_whole_numbers
from gradleak.errors import GradleakError, unknown_name

if TYPE_CHECKING:
    from gradleak.audit.scenario import ClientSettings, Scenario
    from gradleak.data import Dataset, LabelMapping
    from gradleak.defenses import Defense
    from gradleak.exchange import Origin
    from gradleak.targets import Target

DEFAULT_MODEL = "tiny"


@dataclass(frozen=True)
class PrivateText:
    """Sentences, and what is known of their classes.

    Attributes:
        texts: the sentences.
        labels: their classes as given; None if a dataset's labels say them, or if they are drawn.
        num_labels: how many classes a new classifier needs for them.
        source: the dataset and which part of it.
        dataset: the labelled part of a dataset, whose labels are to be mapped to the target's classes.
        given: the class of each label, where the user says it.
        mapping: the class of each label, once the target is known.
    """

    texts: tuple[str, ...]
    labels: tuple[int, ...] | None = None
    num_labels: int | None = None
    source: str | None = None
    dataset: Dataset | None = None
    given: Mapping[str, int] | None = None
    mapping: LabelMapping | None = None

    def of(self, target: Target) -> PrivateText:
        """Return the same with the classes of the target in place of the dataset's labels."""
        from gradleak.audit.scenario import labels_for

        mapping = None if self.dataset is None else labels_for(target, self.dataset, self.given)
        if mapping is None or self.dataset is None:
            return self
        return replace(self, labels=mapping(self.dataset), mapping=mapping)

    @property
    def label_words(self) -> str:
        """Where the classes come from, in words."""
        if self.mapping is not None:
            return str(self.mapping)
        return "drawn at random (by --seed, if given): the text has no labels" if self.labels is None else "as given"

    @property
    def label_record(self) -> dict[str, Any]:
        """The same for JSON."""
        if self.mapping is not None:
            return {"from": "dataset", "by": self.mapping.by, "classes": dict(self.mapping.classes)}
        return {"from": "seed" if self.labels is None else "option", "by": None, "classes": None}


@dataclass(frozen=True)
class TextChoice:
    """The options on private text."""

    texts: o.Texts = None
    dataset: o.DatasetName = None
    take: o.Take = None
    batch_size: o.BatchSize = None
    labels: o.Labels = None
    text_column: o.TextColumn = None
    label_column: o.LabelColumn = None

    def read(self) -> PrivateText:
        """Return the sentences: the arguments, or those of the dataset."""
        from gradleak.data import classes_needed, load_dataset, parse_mapping, parse_take

        given = parse_mapping(self.labels) if self.labels and "=" in self.labels else None
        labels = None if given else parse_whole_numbers(self.labels, "--labels")
        if self.dataset is None:
            if given:
                raise GradleakError("--labels a=0,… maps labels of --dataset; for sentences give their classes: 0,1,…")
            for option in ("take", "text_column", "label_column"):
                if getattr(self, option) is not None:
                    raise GradleakError(f"--{option.replace('_', '-')} is for --dataset")
            return PrivateText(_valid(self.texts or ()), labels)
        selection = None if self.take is None else parse_take(self.take)
        dataset = load_dataset(self.dataset, text_column=self.text_column, label_column=self.label_column)
        chosen = dataset if selection is None else dataset.take(selection)
        source = self.dataset if self.take is None else f"{self.dataset} {self.take}"
        if given and dataset.labels is None:
            raise GradleakError(f"{self.dataset} has no labels to map with --labels {self.labels}")
        count = classes_needed(dataset, given)
        return PrivateText(chosen.texts, labels, count, source, None if labels else chosen, given)


@dataclass(frozen=True)
class ModelChoice:
    """The options on the model."""

    model: o.Model = None
    num_labels: o.NumLabels = None
    new_head: o.NewHead = False
    task: o.Task = None
    random_weights: o.RandomWeights = False
    allow_pickle: o.AllowPickle = False
    trust_remote_code: o.TrustRemoteCode = False
    device: o.Device = "auto"
    model_seed: o.ModelSeed = None

    def load(self, seed: int, *, num_labels: int | None = None, origin: Origin | None = None) -> Target:
        """Load the target.

        Args:
            seed: seed of weights that the checkpoint does not have, unless --model-seed gives it. Every file that names
                the target holds it: never a client's own.
            num_labels: how many classes the private text has, for a model without a trained head.
            origin: the model of a captured update, which says all that the options leave open. Without
                --model-seed the head's seed is its own, too: `--seed` is then the attack's.
        """
        from gradleak.audit.scenario import TargetSpec
        from gradleak.targets import trained_classes

        device = parse_device(self.device)
        if origin is not None:
            num_labels, seed = origin.num_labels, origin.seed
        if self.model_seed is not None:
            seed = self.model_seed
        if self.model == "":
            raise GradleakError("--model takes a name, a directory or a hub id, not ''")
        model = (origin.name if origin else DEFAULT_MODEL) if self.model is None else self.model
        task = (origin.task if origin else "classification") if self.task is None else self.task
        told = max(2, num_labels) if num_labels else None
        own = None
        if told and task == "classification" and not self.random_weights:
            own = trained_classes(model, trust_remote_code=self.trust_remote_code)
        new_head = self.new_head
        if origin is not None and origin.trained_head is not None:  # the file knows which head its client had
            new_head = new_head or not origin.trained_head
        elif origin is not None:
            new_head = new_head or own not in (None, told)
        classes = told if new_head or own is None else None
        spec = TargetSpec(
            model,
            classes if self.num_labels is None else self.num_labels,
            task,  # type: ignore[arg-type]  # load_target refuses other names
            self.random_weights,
            new_head or None,
        )
        return spec.load(seed, device, allow_pickle=self.allow_pickle, trust_remote_code=self.trust_remote_code)


@dataclass(frozen=True)
class ClientChoice:
    """The options on the client, and on what is done to its updates."""

    dropout: o.Dropout = False
    embeddings: o.EmbeddingsSent = None
    fedavg: o.FedAvgText = None
    defense: o.DefenseTexts = None

    def read(self) -> DefendedClient:
        """Return the client that the options' texts speak of."""
        from gradleak.audit.scenario import ClientSettings
        from gradleak.defenses import parse_defense
        from gradleak.federation import Embeddings

        if self.embeddings is not None and self.embeddings not in get_args(Embeddings):
            raise unknown_name("embeddings setting", self.embeddings, get_args(Embeddings))
        settings = ClientSettings(
            dropout=self.dropout,
            embeddings=self.embeddings or "frozen",  # type: ignore[arg-type]  # checked above
            fedavg=parse_fedavg(self.fedavg),
        )
        return DefendedClient(settings, tuple(parse_defense(text) for text in self.defense or ()))


@dataclass(frozen=True)
class DefendedClient:
    """How a client trains, and what is done to its updates."""

    settings: ClientSettings
    defenses: tuple[Defense, ...]

    def __str__(self) -> str:
        return str(self.settings)

    def as_dict(self) -> dict[str, Any]:
        """Return the client's part, ready for JSON."""
        return asdict(self.settings)

    def scenario(self, text: PrivateText, batch_size: int | None, facts: Sequence[str], seed: int | None) -> Scenario:
        """Return the threat model: this client on private text, and an attacker who is told these facts."""
        from gradleak.audit.scenario import Scenario

        return Scenario(
            texts=text.texts,
            labels=text.labels,
            batch_size=batch_size,
            client=self.settings,
            defenses=self.defenses,
            facts=tuple(facts),
            seed=seed,
        )


def _valid(texts: Sequence[str]) -> tuple[str, ...]:
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError:  # the shell passed bytes that are no text
            raise GradleakError(f"text {number} is not valid UTF-8") from None
    return tuple(texts)
