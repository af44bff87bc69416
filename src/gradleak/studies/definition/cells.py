"""Cells: the smallest parts of a study that are run, recorded and never run again."""

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
from gradleak.studies.definition.schema import AttackSpec, DataSpec

Kind = Literal["attack", "utility"]


@dataclass(frozen=True, kw_only=True)
class Cell(ABC):
    """What one cell does, complete: two cells of the same description are the same cell.

    Attributes:
        target: the model, with its number of classes.
        defenses: what is done to the updates, in order.
        seed: seed of everything random in it.
        hashes: of what the names stand for: the weights, the sentences taken, and the folders that settings name. None
            in records made before they were part of it.
    """

    kind: ClassVar[Kind]

    target: TargetSpec
    defenses: tuple[str, ...]
    seed: int
    hashes: Mapping[str, str] | None = None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The description, ready for JSON."""
        described: dict[str, Any] = json.loads(json.dumps({"kind": self.kind, **asdict(self)}))
        return described

    @cached_property
    def id(self) -> str:
        """SHA-256 of the description.

        What is None does not count: a description that learns to say more keeps its id as long as it says nothing new.
        """
        return _hash(self.config)

    @cached_property
    def setting(self) -> str:
        """SHA-256 of the description without the hashes: the same for other weights or sentences of the same names."""
        return setting_of(self.config)

    @property
    def pace(self) -> tuple[str, str]:
        """Cells that take about as long as each other have this in common: kind and attack."""
        return self.kind, ""

    @property
    @abstractmethod
    def title(self) -> str:
        """The cell in a few words."""

    def _title(self, *parts: str) -> str:
        return ", ".join([*parts, *self.defenses, f"seed {self.seed}"])


@dataclass(frozen=True, kw_only=True)
class AttackCell(Cell):
    """Some batches of one client, attacked by one attack.

    Attributes:
        dataset: exactly the sentences that are attacked.
        batch_size: sentences per batch.
        client: how the client trains.
        knowledge: names of the facts that the attacker is told.
        attack: the attack with preset and settings.
    """

    kind: ClassVar[Kind] = "attack"

    dataset: DataSpec
    batch_size: int
    client: ClientSettings
    knowledge: tuple[str, ...]
    attack: AttackSpec

    @property
    def pace(self) -> tuple[str, str]:
        """Kind and attack."""
        return self.kind, self.attack.name

    @property
    def title(self) -> str:
        """The cell in a few words."""
        data = f"{_short(self.dataset.name)} {self.dataset.take}"
        return self._title(f"{self.attack.name} on {_short(self.target.name)}", data, f"batches of {self.batch_size}")


@dataclass(frozen=True, kw_only=True)
class UtilityCell(Cell):
    """A model fine-tuned under defenses.

    Attributes:
        train: the sentences that it is trained on.
        test: those that it is tested on.
        epochs: passes over the training set.
        batch_size: sentences per step.
        lr: learning rate.
    """

    kind: ClassVar[Kind] = "utility"

    train: DataSpec
    test: DataSpec
    epochs: int
    batch_size: int
    lr: float

    @property
    def title(self) -> str:
        """The cell in a few words."""
        return self._title(f"utility of {_short(self.target.name)}", f"{_short(self.train.name)} {self.train.take}")


def setting_of(config: Mapping[str, Any]) -> str:
    """Return the `setting` of a cell from its recorded description."""
    return _hash({key: value for key, value in config.items() if key != "hashes"})


def _hash(config: Mapping[str, Any]) -> str:
    canonical = json.dumps(_said(config), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _short(name: str) -> str:
    """Return the last part of a path; a hub id stays whole."""
    return os.path.basename(os.path.normpath(name)) if name.startswith(("/", ".", "~")) else name


def _said(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _said(item) for key, item in value.items() if item is not None}
    return value
