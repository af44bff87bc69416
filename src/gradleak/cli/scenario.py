"""The options that commands share, in groups, and the way from them to a target, private text and a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, get_args

from gradleak.cli import options as o
from gradleak.cli.parsing import parse_device, parse_fedavg, parse_whole_numbers
from gradleak.errors import GradleakError, unknown_name

if TYPE_CHECKING:
    from gradleak.defenses import Defense
    from gradleak.exchange import Origin
    from gradleak.studies.scenario import ClientSettings, Scenario
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

    texts: o.Texts = None
    dataset: o.DatasetName = None
    take: o.Take = None
    batch_size: o.BatchSize = None
    labels: o.Labels = None
    text_column: o.TextColumn = None
    label_column: o.LabelColumn = None

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

    model: o.Model = None
    num_labels: o.NumLabels = None
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
            num_labels: how many classes the private text has.
            origin: the model of a captured update, which says all that the options leave open. Without
                --model-seed the head's seed is its own, too: `--seed` is then the attack's.
        """
        from gradleak.studies.scenario import TargetSpec

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
        classes = told if self.num_labels is None else self.num_labels
        spec = TargetSpec(
            model,
            classes,
            task,  # type: ignore[arg-type]  # load_target refuses other names
            self.random_weights,
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
        from gradleak.defenses import parse_defense
        from gradleak.federation import Embeddings
        from gradleak.studies.scenario import ClientSettings

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
        from gradleak.studies.scenario import Scenario

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
