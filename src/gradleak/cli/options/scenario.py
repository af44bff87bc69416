"""Groups of options on private text, the model and the client, and what they select: texts, a target, a scenario."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from gradleak.bounds import LARGEST_TEXT_FILE
from gradleak.cli.options.parse import parse_device, parse_fedavg, parse_lora, parse_whole_numbers
from gradleak.cli.options.shared import (
    AdapterFolder,
    AllowPickle,
    BatchSize,
    Clients,
    DatasetName,
    DefenseTexts,
    Device,
    Dropout,
    EmbeddingsSent,
    FedAvgText,
    LabelColumn,
    Labels,
    LoraText,
    Model,
    ModelSeed,
    NewHead,
    NumLabels,
    PrecisionName,
    RandomWeights,
    SendName,
    Take,
    Task,
    TextColumn,
    Texts,
    TrustRemoteCode,
)
from gradleak.errors import GradleakError, unknown_name
from gradleak.files import STDOUT
from gradleak.printable import quoted

if TYPE_CHECKING:
    from gradleak.audit.scenario import ClientSettings, Scenario, TargetSpec
    from gradleak.data import Dataset, LabelMapping
    from gradleak.defenses import Defense
    from gradleak.exchange import Origin
    from gradleak.targets import Lora, Target

DEFAULT_MODEL = "tiny"


@dataclass(frozen=True)
class PrivateText:
    """Private sentences and their labels.

    Attributes:
        texts: the sentences.
        labels: their classes; None if they come from the dataset's labels, or are drawn.
        num_labels: number of classes that a new classifier needs for them.
        source: the dataset and the part taken of it.
        dataset: the labelled part of a dataset, whose labels are mapped to the target's classes.
        given: the class of each label, if the user has chosen it.
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
        """Return the text with the dataset's labels mapped to classes of the target."""
        from gradleak.audit.scenario import labels_for

        mapping = None if self.dataset is None else labels_for(target, self.dataset, self.given)
        if mapping is None or self.dataset is None:
            return self
        return replace(self, labels=mapping(self.dataset), mapping=mapping)

    @property
    def label_words(self) -> str:
        """The origin of the classes, in words."""
        if self.mapping is not None:
            return str(self.mapping)
        return "drawn at random (by --seed, if given): the text has no labels" if self.labels is None else "as given"

    @property
    def label_record(self) -> dict[str, Any]:
        """The origin of the classes, for JSON."""
        if self.mapping is not None:
            return {"from": "dataset", "by": self.mapping.by, "classes": dict(self.mapping.classes)}
        return {"from": "seed" if self.labels is None else "option", "by": None, "classes": None}


@dataclass(frozen=True)
class TextChoice:
    """The options on private text."""

    texts: Texts = None
    dataset: DatasetName = None
    take: Take = None
    batch_size: BatchSize = None
    labels: Labels = None
    text_column: TextColumn = None
    label_column: LabelColumn = None

    def read(self) -> PrivateText:
        """Return the sentences given as arguments, or those of the dataset."""
        from gradleak.data import classes_needed, load_dataset, parse_mapping, parse_take

        given = parse_mapping(self.labels) if self.labels and "=" in self.labels else None
        labels = None if given else parse_whole_numbers(self.labels, "--labels")
        if self.dataset is None:
            if given:
                raise GradleakError("--labels a=0,… maps labels of --dataset; for sentences give their classes: 0,1,…")
            for option in ("take", "text_column", "label_column"):
                if getattr(self, option) is not None:
                    raise GradleakError(f"--{option.replace('_', '-')} is for --dataset")
            return PrivateText(_valid(_given(self.texts or ())), labels)
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

    model: Model = None
    num_labels: NumLabels = None
    new_head: NewHead = False
    task: Task = None
    random_weights: RandomWeights = False
    lora: LoraText = None
    adapter: AdapterFolder = None
    allow_pickle: AllowPickle = False
    trust_remote_code: TrustRemoteCode = False
    device: Device = "auto"
    model_seed: ModelSeed = None

    def load(self, seed: int, *, num_labels: int | None = None, origin: Origin | None = None) -> Target:
        """Load the target.

        Args:
            seed: seed of weights that the checkpoint does not have, unless --model-seed gives it. It is public, because
                every file that names the target contains it: never pass a client's private seed.
            num_labels: number of classes of the private text, for a model without a trained head.
            origin: the model of a captured update, which decides what the options leave open. Without --model-seed it
                also gives the head's seed; `--seed` is then the attack's.
        """
        device = parse_device(self.device)
        if origin is not None:
            num_labels, seed = origin.num_labels, origin.seed
        if self.model_seed is not None:
            seed = self.model_seed
        spec = self.spec(origin)
        classes, new_head = self._head(spec.name, spec.task, max(2, num_labels) if num_labels else None, origin)
        spec = replace(
            spec, num_labels=classes if self.num_labels is None else self.num_labels, new_head=new_head or None
        )
        return spec.load(seed, device, allow_pickle=self.allow_pickle, trust_remote_code=self.trust_remote_code)

    def spec(self, origin: Origin | None = None) -> TargetSpec:
        """Return the model that the options name, with the number of classes left open if they do.

        Args:
            origin: the model of a captured update, which decides what the options leave open.
        """
        from gradleak.audit.scenario import TargetSpec

        if self.model == "":
            raise GradleakError("--model takes a name, a directory, a GGUF file or a hub id, not ''")
        if self.model is None and origin is not None:
            _refuse_fetching(origin)
        return TargetSpec(
            (origin.name if origin else DEFAULT_MODEL) if self.model is None else self.model,
            self.num_labels,
            (origin.task if origin else "classification") if self.task is None else self.task,  # type: ignore[arg-type]
            self.random_weights,
            self.new_head or None,
            self._lora(origin),
            None if self.adapter is None else str(self.adapter),
        )

    def _lora(self, origin: Origin | None) -> Lora | None:
        """Return the settings of a fresh adapter: those of --lora, else those of the captured update.

        Raises:
            GradleakError: if the update was computed on an adapter that must be given.
        """
        if self.lora is not None and self.adapter is not None:
            raise GradleakError("--lora and --adapter exclude each other: a fresh adapter, or one from a directory")
        if origin is not None and origin.adapter is not None and self.adapter is None:
            raise GradleakError(
                f"the update was computed on an adapter of {origin.name} with the fingerprint {origin.adapter[:12]}, "
                "which its file does not hold: give --adapter DIR, the adapter before training"
            )
        if self.lora is None and self.adapter is None and origin is not None:
            return origin.lora
        return parse_lora(self.lora)

    def _head(self, model: str, task: str, needed: int | None, origin: Origin | None) -> tuple[int | None, bool]:
        """Return the number of classes of a new classifier, and whether it replaces a trained one.

        Args:
            model: the model's name.
            task: its task.
            needed: number of classes that the private text or the captured update needs, if known.
            origin: the model of a captured update.
        """
        from gradleak.targets import trained_classes
        from gradleak.targets.adapters.folder import adapter_classes

        own = None
        if needed and task == "classification" and not self.random_weights:
            own = trained_classes(model, trust_remote_code=self.trust_remote_code)
        if self.adapter is not None and task == "classification":
            own = adapter_classes(self.adapter, allow_pickle=self.allow_pickle) or own
        new_head = self.new_head
        if origin is not None and origin.trained_head is not None:  # the file says which head the client had
            new_head = new_head or not origin.trained_head
        elif origin is not None:
            new_head = new_head or own not in (None, needed)
        return needed if new_head or own is None else None, new_head


@dataclass(frozen=True)
class ClientChoice:
    """The options on the client and on the defenses of its updates."""

    dropout: Dropout = False
    embeddings: EmbeddingsSent = None
    fedavg: FedAvgText = None
    precision: PrecisionName = "fp32"
    send: SendName = "fp32"
    clients: Clients = 1
    defense: DefenseTexts = None

    def read(self) -> DefendedClient:
        """Parse the options to a client with defenses."""
        from gradleak.audit.scenario import ClientSettings
        from gradleak.defenses import parse_defense
        from gradleak.federation import Embeddings, Precision, WireFormat

        if self.embeddings is not None and self.embeddings not in get_args(Embeddings):
            raise unknown_name("embeddings setting", self.embeddings, get_args(Embeddings))
        if self.precision not in get_args(Precision):
            raise unknown_name("precision", self.precision, get_args(Precision))
        if self.send not in get_args(WireFormat):
            raise unknown_name("number format to send", self.send, get_args(WireFormat))
        settings = ClientSettings(
            dropout=self.dropout,
            embeddings=self.embeddings or "frozen",  # type: ignore[arg-type]  # checked above
            fedavg=parse_fedavg(self.fedavg),
            precision=self.precision,  # type: ignore[arg-type]  # checked above
            send=self.send,  # type: ignore[arg-type]  # checked above
            clients=self.clients,
        )
        return DefendedClient(settings, tuple(parse_defense(text) for text in self.defense or ()))


@dataclass(frozen=True)
class DefendedClient:
    """A client's settings and the defenses of its updates."""

    settings: ClientSettings
    defenses: tuple[Defense, ...]

    def __str__(self) -> str:
        return str(self.settings)

    def as_dict(self) -> dict[str, Any]:
        """Return the client's settings for JSON."""
        return self.settings.as_dict()

    def scenario(self, text: PrivateText, batch_size: int | None, facts: Sequence[str], seed: int | None) -> Scenario:
        """Return the threat model of this client on private text, and an attacker who knows these facts."""
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


def _refuse_fetching(origin: Origin) -> None:
    """Raise a GradleakError if the model that an update names is not here: a file must not make gradleak call a hub."""
    from gradleak.targets.loading import is_here

    if not is_here(origin.name):
        raise GradleakError(
            f"the update was computed on '{quoted(origin.name)}', which is not on this machine and is not fetched "
            "because a file says so: give --model with its folder, or with that id to fetch it"
        )


def _given(texts: Sequence[str]) -> Sequence[str]:
    """Return the texts of the command line; `-` alone stands for the lines of standard input."""
    if list(texts) != [str(STDOUT)]:
        return texts
    try:
        lines = sys.stdin.buffer.read(LARGEST_TEXT_FILE).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise GradleakError("standard input is not UTF-8 text") from None
    given = [line.strip() for line in lines if line.strip()]
    if not given:
        raise GradleakError("there is no text on standard input: one line for each sentence")
    return given


def _valid(texts: Sequence[str]) -> tuple[str, ...]:
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError:  # bytes from the shell that are not UTF-8
            raise GradleakError(f"text {number} is not valid UTF-8") from None
    return tuple(texts)
