"""Cells: the units of work of a study. A cell is run and recorded as a whole, and identified by a hash.

Made by `Study.cells`, run by a worker, recorded in the store.
"""

from __future__ import annotations

import hashlib
import json
import os.path
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from gradleak.audit.scenario import ClientSettings, TargetSpec
from gradleak.federation import Embeddings, WireFormat
from gradleak.studies.definition.specs import AttackSpec, DataSpec, ImageAttackSpec, ImageModelSpec

Kind = Literal["attack", "utility", "images"]


@dataclass(frozen=True, kw_only=True)
class Cell(ABC):
    """The complete description of a unit of work; cells with equal descriptions are the same cell.

    Attributes:
        target: the model, with its number of classes.
        defenses: applied to the updates, in order.
        seed: seed of all random numbers in the cell.
        hashes: of the contents behind names: the weights, the sentences taken, and folders that settings name. None in
            records made before hashes were part of the description.
    """

    kind: ClassVar[Kind]

    target: TargetSpec | ImageModelSpec
    defenses: tuple[str, ...]
    seed: int
    hashes: Mapping[str, str] | None = None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The description as JSON values."""
        described: dict[str, Any] = json.loads(json.dumps({"kind": self.kind, **self._described()}))
        return described

    def _described(self) -> dict[str, Any]:
        return asdict(self) | {"target": self.target.as_dict()}

    @cached_property
    def id(self) -> str:
        """SHA-256 of the description.

        Values of None are left out, which lets a later version add fields without changing the ids of existing cells.
        """
        return _hash(self.config)

    @cached_property
    def setting(self) -> str:
        """SHA-256 of the description without the hashes: equal for other weights or sentences of the same names."""
        return setting_of(self.config)

    @property
    def pace(self) -> tuple[str, str]:
        """Kind and attack: cells that share them take about equally long."""
        return self.kind, ""

    @property
    @abstractmethod
    def title(self) -> str:
        """A short description for people."""

    def _title(self, *parts: str) -> str:
        return ", ".join([*parts, *self.defenses, f"seed {self.seed}"])


@dataclass(frozen=True, kw_only=True)
class AttackCell(Cell):
    """Some batches of one client, attacked by one attack.

    Attributes:
        dataset: the dataset, with start and stop of the attacked sentences.
        batch_size: sentences per batch.
        client: how the client trains.
        knowledge: names of the facts that the attacker knows.
        attack: the attack with preset and settings.
    """

    kind: ClassVar[Kind] = "attack"

    target: TargetSpec
    dataset: DataSpec
    batch_size: int
    client: ClientSettings
    knowledge: tuple[str, ...]
    attack: AttackSpec

    def _described(self) -> dict[str, Any]:
        return super()._described() | {"client": self.client.as_dict()}

    @property
    def pace(self) -> tuple[str, str]:
        """Kind and attack."""
        return self.kind, self.attack.name

    @property
    def title(self) -> str:
        """A short description for people."""
        data = f"{_short(self.dataset.name)} {self.dataset.take}"
        return self._title(f"{self.attack.name} on {_short(self.target.name)}", data, f"batches of {self.batch_size}")


@dataclass(frozen=True, kw_only=True)
class UtilityCell(Cell):
    """A model fine-tuned under defenses.

    Attributes:
        train: the training sentences.
        test: the test sentences.
        epochs: passes over the training set.
        batch_size: sentences per step.
        lr: learning rate.
        embeddings: which embeddings are trained; None for all, or none of a model with adapters.
        send: number format in which gradients are sent; None for float32.
    """

    kind: ClassVar[Kind] = "utility"

    target: TargetSpec
    train: DataSpec
    test: DataSpec
    epochs: int
    batch_size: int
    lr: float
    embeddings: Embeddings | None = None
    send: WireFormat | None = None

    @property
    def title(self) -> str:
        """A short description for people."""
        return self._title(f"utility of {_short(self.target.name)}", f"{_short(self.train.name)} {self.train.take}")


@dataclass(frozen=True, kw_only=True)
class ImageCell(Cell):
    """Some clients with images, attacked side by side by one attack.

    Attributes:
        dataset: the images, with start and stop of the attacked ones.
        batch_size: images per client.
        knowledge: names of the facts that the attacker knows.
        attack: the attack with preset and settings.
    """

    kind: ClassVar[Kind] = "images"

    target: ImageModelSpec
    dataset: DataSpec
    batch_size: int
    knowledge: tuple[str, ...]
    attack: ImageAttackSpec

    @property
    def pace(self) -> tuple[str, str]:
        """Kind and attack."""
        return self.kind, self.attack.name

    @property
    def title(self) -> str:
        """A short description for people."""
        data = f"images {_short(self.dataset.name)} {self.dataset.take}"
        batches = () if self.batch_size == 1 else (f"batches of {self.batch_size}",)
        return self._title(f"{self.attack.name} on {self.target.name}", data, *batches)


def setting_of(config: Mapping[str, Any]) -> str:
    """Return the `Cell.setting` of a recorded description."""
    return _hash({key: value for key, value in config.items() if key != "hashes"})


def _hash(config: Mapping[str, Any]) -> str:
    canonical = json.dumps(_without_none(config), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _short(name: str) -> str:
    """Return the last part of a path, or a hub id unchanged."""
    return os.path.basename(os.path.normpath(name)) if name.startswith(("/", ".", "~")) else name


def _without_none(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
