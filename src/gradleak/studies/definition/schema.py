"""What a study file may say, key by key."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from gradleak.attacks import ATTACKS, find_attack
from gradleak.audit.scenario import ClientSettings, TargetSpec
from gradleak.data import parse_take
from gradleak.defenses import DEFENSES, examples_needed, parse_defense
from gradleak.errors import unknown_name
from gradleak.exchange import FACTS, fact_field
from gradleak.federation import Embeddings, FedAvg
from gradleak.studies.definition.reading import Key, Place, flag, listed, positive, read_table, text, whole
from gradleak.targets import MODELS, Task

LARGEST_SEED = 2**32 - 1
BATCHES_PER_CELL = 8
PAPER = "paper"
BUDGET = "budget"


@dataclass(frozen=True)
class DataSpec:
    """A dataset, and which of its examples."""

    name: str
    take: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    labels: Mapping[str, int] | None = None


@dataclass(frozen=True)
class AttackSpec:
    """An attack and its hyperparameters; a preset of None is the grid's, or the attack's default."""

    name: str
    preset: str | None
    settings: Mapping[str, Any]

    @property
    def available(self) -> bool:
        """Whether this version of the package has the attack."""
        return self.name in ATTACKS

    @property
    def texts(self) -> dict[str, str]:
        """The settings as text, as the attacks read them."""
        return {key: str(value) for key, value in self.settings.items() if key != BUDGET or self._keeps_budget}

    @property
    def budget(self) -> float | None:
        """Seconds for each update, where the attack does not see to that itself."""
        return None if self._keeps_budget else self.settings.get(BUDGET)

    @property
    def _keeps_budget(self) -> bool:
        return self.available and find_attack(self.name).has_setting(BUDGET)

    def with_preset(self, usual: str | None) -> AttackSpec:
        """Return the attack with a preset: its own, else the usual one if it has that, else its default."""
        kind = find_attack(self.name)
        return replace(self, preset=self.preset or (usual if usual in kind.presets else kind.default_preset()))


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Attacks: the full product of its lists."""

    target: tuple[TargetSpec, ...]
    dataset: tuple[DataSpec, ...]
    batch_size: tuple[int, ...]
    client: tuple[ClientSettings, ...]
    defense: tuple[tuple[str, ...], ...]
    knowledge: tuple[str | tuple[str, ...], ...]
    attack: tuple[AttackSpec, ...]
    seed: tuple[int, ...]
    batches_per_cell: int
    preset: str | None = None

    @property
    def unavailable(self) -> list[str]:
        """What it names that this version of the package does not have."""
        return [a.name for a in self.attack if not a.available] + missing_defenses(self.defense)

    def available(self) -> Grid:
        """Return what can be run of it, each attack with its preset."""
        kept = tuple(a.with_preset(self.preset) for a in self.attack if a.available)
        return replace(self, attack=kept, defense=with_known_defenses(self.defense))


@dataclass(frozen=True, kw_only=True)
class UtilityGrid:
    """Fine-tuning under defenses: the full product of its lists."""

    target: tuple[TargetSpec, ...]
    train: tuple[DataSpec, ...]
    test: tuple[DataSpec, ...]
    defense: tuple[tuple[str, ...], ...]
    seed: tuple[int, ...]
    epochs: int
    batch_size: int
    lr: float

    @property
    def unavailable(self) -> list[str]:
        """What it names that this version of the package does not have."""
        return missing_defenses(self.defense)

    def available(self) -> UtilityGrid:
        """Return what can be run of it."""
        return replace(self, defense=with_known_defenses(self.defense))


def missing_defenses(alternatives: tuple[tuple[str, ...], ...]) -> list[str]:
    """Return the defenses that this version of the package does not have."""
    return [_defense_name(words) for together in alternatives for words in together if not _known_defense(words)]


def with_known_defenses(alternatives: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """Return the alternatives that this version of the package can apply."""
    return tuple(together for together in alternatives if all(map(_known_defense, together)))


def _known_defense(words: str) -> bool:
    return _defense_name(words) in DEFENSES


def _defense_name(words: str) -> str:
    return words.partition(":")[0].strip()


def target(value: object, place: Place) -> TargetSpec:
    """Read a model: its name, or a table."""
    spec = TargetSpec(**read_table({"name": value} if isinstance(value, str) else value, TARGET, place))
    # A name that is none is refused here, before it fails once in every cell.
    if "/" not in spec.name and spec.name not in MODELS and not os.path.isdir(spec.name):
        raise place.error(unknown_name("model", spec.name, MODELS))
    return spec


def dataset(value: object, place: Place) -> DataSpec:
    """Read a dataset: its name, or a table."""
    return DataSpec(**read_table({"name": value} if isinstance(value, str) else value, DATASET, place))


def labels(value: object, place: Place) -> dict[str, int]:
    """Read which class each label of a dataset stands for."""
    if not isinstance(value, Mapping) or not value:
        raise place.error(f"takes a table of labels and their classes such as {{ bad = 0, good = 1 }}, not {value!r}")
    return {str(label): whole(0)(number, place.inside(str(label))) for label, number in value.items()}


def new_head(value: object, place: Place) -> bool | None:
    """Read whether a new head is wanted; not wanting one says nothing, so that a cell keeps its id."""
    return flag(value, place) or None


def take(value: object, place: Place) -> str:
    """Read which examples to take."""
    place.check(parse_take, text(value, place))
    return str(value)


def one_of(kind: str, names: tuple[str, ...]) -> Key:
    """Return a key that takes one of some names; the first is the default."""

    def read(value: object, place: Place) -> str:
        if text(value, place) not in names:
            raise place.error(unknown_name(kind, str(value), names))
        return str(value)

    return Key(read, names[0])


def client(value: object, place: Place) -> ClientSettings:
    """Read a client's table."""
    return ClientSettings(**read_table(value, CLIENT, place))


def dropout(value: object, place: Place) -> bool | float:
    """Read whether a client uses dropout: the model's own, none, or a rate in place of the model's."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise place.error(f"takes true, false or a rate between 0 and 1, not {value!r}")
    return float(value)


def fedavg(value: object, place: Place) -> FedAvg:
    """Read the table of local training."""
    return FedAvg(**read_table(value, FEDAVG, place))


def attack(value: object, place: Place) -> AttackSpec:
    """Read an attack: its name, or a table."""
    spec = AttackSpec(**read_table({"name": value} if isinstance(value, str) else value, ATTACK, place))
    if spec.available or not place.ready:
        kind = place.check(find_attack, spec.name)
        place.check(kind.with_settings, spec.preset, spec.texts)
    if spec.budget is not None:
        positive(spec.budget, place.inside("settings").inside(BUDGET))
    return spec


def preset(value: object, place: Place) -> str:
    """Read the preset of a grid's attacks that name none; one that some attack has."""
    known = {name for kind in ATTACKS.values() for name in kind.presets}
    if text(value, place) not in known:
        raise place.error(unknown_name("preset", str(value), known))
    return str(value)


def settings(value: object, place: Place) -> dict[str, Any]:
    """Read hyperparameters; the attack knows which ones there are."""
    if not isinstance(value, Mapping):
        raise place.error(f"takes a table of hyperparameters, not {value!r}")
    for key, item in value.items():
        if not isinstance(item, str | int | float):
            raise place.inside(key).error(f"takes text, a number, true or false, not {item!r}")
    return dict(value)


def defense(value: object, place: Place) -> tuple[str, ...]:
    """Read defenses that are applied together; a single one needs no list."""
    items = value if isinstance(value, list) else [value]
    words = tuple(text(item, place) for item in items)
    if place.ready and not all(map(_known_defense, words)):
        return words
    together = [place.check(parse_defense, each) for each in words]
    place.check(examples_needed, together)  # refuses an order that cannot be
    return tuple(map(str, together))


def defenses(value: object, place: Place) -> tuple[tuple[str, ...], ...]:
    """Read a list of alternatives; an empty one is the alternative of none."""
    return ((),) if value == [] else tuple(listed(defense)(value, place))


def knowledge(value: object, place: Place) -> tuple[str | tuple[str, ...], ...]:
    """Read a list of alternatives: `paper`, or the facts that the attacker is told."""
    items: list[Any] = value if isinstance(value, list) else [value]
    for item in items:
        if item != PAPER and not isinstance(item, list):
            raise place.error(
                f'takes "paper", or lists of facts in a list such as [["labels", "lengths"]], not {item!r}'
            )
    return ((),) if not items else tuple(item if item == PAPER else facts(item, place) for item in items)


def facts(names: list[object], place: Place) -> tuple[str, ...]:
    """Read facts, and return them in a fixed order."""
    for name in names:
        place.check(fact_field, text(name, place))
    return tuple(fact for fact in FACTS if fact in names)


TARGET = {
    "name": Key(text),
    "num_labels": Key(whole(2), None),
    "task": one_of("task", get_args(Task)),
    "random_weights": Key(flag, False),
    "new_head": Key(new_head, None),
}
DATASET = {
    "name": Key(text),
    "take": Key(take, None),
    "text_column": Key(text, None),
    "label_column": Key(text, None),
    "labels": Key(labels, None),
}
FEDAVG = {"steps": Key(whole(1)), "lr": Key(positive), "batch": Key(whole(1), None)}
CLIENT = {
    "dropout": Key(dropout, False),
    "embeddings": one_of("embeddings setting", get_args(Embeddings)),
    "fedavg": Key(fedavg, None),
}
ATTACK = {"name": Key(text), "preset": Key(text, None), "settings": Key(settings, {})}
SEEDS = Key(listed(whole(0, LARGEST_SEED)), (0,))
GRID = {
    "target": Key(listed(target)),
    "dataset": Key(listed(dataset)),
    "batch_size": Key(listed(whole(1)), (1,)),
    "client": Key(listed(client), (ClientSettings(),)),
    "defense": Key(defenses, ((),)),
    "knowledge": Key(knowledge, (PAPER,)),
    "attack": Key(listed(attack)),
    "preset": Key(preset, None),
    "seed": SEEDS,
    "batches_per_cell": Key(whole(1), BATCHES_PER_CELL),
}
UTILITY = {
    "target": Key(listed(target)),
    "train": Key(listed(dataset)),
    "test": Key(listed(dataset)),
    "defense": Key(defenses, ((),)),
    "seed": SEEDS,
    "epochs": Key(whole(1), 2),
    "batch_size": Key(whole(1), 32),
    "lr": Key(positive, 5e-5),
}
