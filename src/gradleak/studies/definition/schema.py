"""The schema of a study file: its keys, and the reader that validates each.

Attacks and their settings are validated by the attack's own declaration (`gradleak.settings`), defenses and facts by
their own parsers: a study file is refused with the same words as the command line, after the place in the file.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, get_args

from gradleak.attacks import ATTACKS
from gradleak.audit.scenario import ClientSettings, TargetSpec
from gradleak.bounds import LARGEST_SEED, LARGEST_WHOLE, MOST_CLASSES, MOST_CLIENTS
from gradleak.data import parse_take
from gradleak.defenses import examples_needed, parse_defense
from gradleak.errors import unknown_name
from gradleak.exchange import FACTS, fact_field
from gradleak.federation import Embeddings, FedAvg, Precision, WireFormat
from gradleak.settings import Setting, settings_of
from gradleak.studies.definition.reading import (
    REQUIRED,
    Key,
    Place,
    flag,
    listed,
    number,
    one_of,
    positive,
    read_table,
    shown,
    text,
    whole,
)
from gradleak.studies.definition.specs import AttackSpec, DataSpec, ImageAttackSpec, ImageModelSpec, is_known_defense
from gradleak.targets import MODELS, Lora, Task
from gradleak.targets.adapters.folder import adapter_classes
from gradleak.vision.runs import TOLD

BATCHES_PER_CELL = 8
CLIENTS_PER_CELL = 128
MOST_PIXELS = 1_024
PAPER = "paper"


def target(value: object, place: Place) -> TargetSpec:
    """Read a model: its name, or a table."""
    spec = TargetSpec(**read_table({"name": value} if isinstance(value, str) else value, TARGET, place))
    # An unknown name is refused here, or it would fail once in every cell.
    if "/" not in spec.name and spec.name not in MODELS and not os.path.isdir(spec.name):
        raise place.error(unknown_name("model", spec.name, MODELS))
    if spec.lora is not None and spec.adapter is not None:
        raise place.error("lora and adapter exclude each other: give one of them")
    return spec


def dataset(value: object, place: Place) -> DataSpec:
    """Read a dataset: its name, or a table."""
    return DataSpec(**read_table({"name": value} if isinstance(value, str) else value, DATASET, place))


def labels(value: object, place: Place) -> dict[str, int]:
    """Read the class of each label of a dataset."""
    if not isinstance(value, Mapping) or not value:
        raise place.error(
            f"takes a table of labels and their classes such as {{ bad = 0, good = 1 }}, not {shown(value)}"
        )
    return {str(label): whole(0)(number, place.inside(str(label))) for label, number in value.items()}


def new_head(value: object, place: Place) -> bool | None:
    """Read whether the model gets a new head; `false` is read as None, which does not enter a cell's id."""
    return flag(value, place) or None


def take(value: object, place: Place) -> str:
    """Read the range of examples, as `A:B`."""
    place.check(parse_take, text(value, place))
    return str(value)


def client(value: object, place: Place) -> ClientSettings:
    """Read a client's table."""
    return ClientSettings(**read_table(value, CLIENT, place))


def dropout(value: object, place: Place) -> bool | float:
    """Read the client's dropout: true for the model's rate, false for none, or another rate."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise place.error(f"takes true, false or a rate between 0 and 1, not {shown(value)}")
    return float(value)


def fedavg(value: object, place: Place) -> FedAvg:
    """Read the table of local training."""
    values = read_table(value, FEDAVG, place)
    if values["steps"] is None and values["epochs"] is None:
        raise place.error("lacks steps")
    return place.check(lambda: FedAvg(**values))


def lora(value: object, place: Place) -> Lora:
    """Read the table of a fresh adapter, or its text as on the command line."""
    if isinstance(value, str):
        return place.check(Lora.parse, value)
    values = read_table(value, LORA, place)
    return place.check(lambda: Lora(**values))


def adapter(value: object, place: Place) -> str:
    """Read the directory of an adapter; it is refused here if there is none in it."""
    place.check(adapter_classes, text(value, place))
    return str(value)


def setting_key(setting: Setting) -> Key:
    """Return the key of a declared setting: the reader of its values, and its default."""
    default = REQUIRED if setting.default is MISSING else setting.default
    if setting.choices:
        return Key(one_of(setting.name, setting.choices).read, default)
    if setting.kind is bool:
        return Key(flag, default)
    if setting.kind is int:
        return Key(whole(int(setting.least or 0), LARGEST_WHOLE if setting.most is None else setting.most), default)
    if setting.kind is str:
        return Key(text, default)
    return Key(positive if setting.above == 0 else number, default)


def attack(value: object, place: Place) -> AttackSpec:
    """Read an attack: its name, or a table. A ready study may name attacks that this version does not have."""
    spec = AttackSpec(**read_table({"name": value} if isinstance(value, str) else value, ATTACK, place))
    if spec.available or not place.ready:
        place.check(spec.build)
    place.inside("settings").check(lambda: spec.budget)
    return spec


def preset(value: object, place: Place) -> str:
    """Read the preset of the grid's attacks that name none: one that some attack has."""
    known = {name for kind in ATTACKS.values() for name in kind.presets}
    if text(value, place) not in known:
        raise place.error(unknown_name("preset", str(value), known))
    return str(value)


def settings(value: object, place: Place) -> dict[str, Any]:
    """Read a table of scalars; `attack` checks them against the attack's declared settings."""
    if not isinstance(value, Mapping):
        raise place.error(f"takes a table of hyperparameters, not {shown(value)}")
    for key, item in value.items():
        if not isinstance(item, str | int | float):
            raise place.inside(key).error(f"takes text, a number, true or false, not {shown(item)}")
    return dict(value)


def defense(value: object, place: Place) -> tuple[str, ...]:
    """Read defenses that are applied together; a single one needs no list."""
    items = value if isinstance(value, list) else [value]
    words = tuple(text(item, place) for item in items)
    if place.ready and not all(map(is_known_defense, words)):
        return words
    together = [place.check(parse_defense, each) for each in words]
    place.check(examples_needed, together)  # refuses an impossible order
    return tuple(map(str, together))


def defenses(value: object, place: Place) -> tuple[tuple[str, ...], ...]:
    """Read a list of alternatives; an empty list is one alternative without defenses."""
    return ((),) if value == [] else tuple(listed(defense)(value, place))


def knowledge(value: object, place: Place) -> tuple[str | tuple[str, ...], ...]:
    """Read a list of alternatives: `paper`, or facts that the attacker knows."""
    items: list[Any] = value if isinstance(value, list) else [value]
    for item in items:
        if item != PAPER and not isinstance(item, list):
            raise place.error(
                f'takes "paper", or lists of facts in a list such as [["labels", "lengths"]], not {shown(item)}'
            )
    return ((),) if not items else tuple(item if item == PAPER else facts(item, place) for item in items)


def facts(names: list[object], place: Place) -> tuple[str, ...]:
    """Read facts, and return them in a fixed order."""
    for name in names:
        place.check(fact_field, text(name, place))
    return tuple(fact for fact in FACTS if fact in names)


def image_model(value: object, place: Place) -> ImageModelSpec:
    """Read an image model: its name, or a table."""
    return ImageModelSpec(**read_table({"name": value} if isinstance(value, str) else value, IMAGE_MODEL, place))


def image_dataset(value: object, place: Place) -> DataSpec:
    """Read a set of images: its name, or a table."""
    return DataSpec(**read_table({"name": value} if isinstance(value, str) else value, IMAGE_DATASET, place))


def image_attack(value: object, place: Place) -> ImageAttackSpec:
    """Read an attack on images: its name, or a table."""
    spec = ImageAttackSpec(**read_table({"name": value} if isinstance(value, str) else value, ATTACK, place))
    if spec.available or not place.ready:
        place.check(spec.build)
    place.inside("settings").check(lambda: spec.budget)
    return spec


def image_knowledge(value: object, place: Place) -> tuple[str | tuple[str, ...], ...]:
    """Read a list of alternatives: `paper`, or facts that the attacker knows besides the batch size."""
    items: list[Any] = value if isinstance(value, list) else [value]
    for item in items:
        if item != PAPER and not isinstance(item, list):
            raise place.error(f'takes "paper", or lists of facts in a list such as [["labels"]], not {shown(item)}')
        for fact in () if item == PAPER else item:
            if text(fact, place) not in TOLD:
                raise place.error(unknown_name("knowledge of an attack on images", str(fact), TOLD))
    return tuple(item if item == PAPER else tuple(item) for item in items)


LORA = {name: setting_key(setting) for name, setting in settings_of(Lora).items()}
TARGET = {
    "name": Key(text),
    "num_labels": Key(whole(2, MOST_CLASSES), None),
    "task": one_of("task", get_args(Task)),
    "random_weights": Key(flag, False),
    "new_head": Key(new_head, None),
    "lora": Key(lora, None),
    "adapter": Key(adapter, None),
}
DATASET = {
    "name": Key(text),
    "take": Key(take, None),
    "text_column": Key(text, None),
    "label_column": Key(text, None),
    "labels": Key(labels, None),
}
FEDAVG = {name: setting_key(setting) for name, setting in settings_of(FedAvg).items()}
CLIENT = {
    "dropout": Key(dropout, False),
    "embeddings": one_of("embeddings setting", get_args(Embeddings)),
    "fedavg": Key(fedavg, None),
    "precision": one_of("precision", get_args(Precision)),
    "send": one_of("number format to send", get_args(WireFormat)),
    "clients": Key(whole(1, MOST_CLIENTS), 1),
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
IMAGE_MODEL = {
    "name": Key(text),
    "num_labels": Key(whole(2, MOST_CLASSES), 10),
    "size": Key(whole(8, MOST_PIXELS), 32),
    "seed": Key(whole(0, LARGEST_SEED), None),
}
IMAGE_DATASET = {"name": Key(text), "take": Key(take, None)}
IMAGES = {
    "target": Key(listed(image_model)),
    "dataset": Key(listed(image_dataset)),
    "batch_size": Key(listed(whole(1)), (1,)),
    "defense": Key(defenses, ((),)),
    "knowledge": Key(image_knowledge, (PAPER,)),
    "attack": Key(listed(image_attack)),
    "seed": SEEDS,
    "clients_per_cell": Key(whole(1), CLIENTS_PER_CELL),
}
