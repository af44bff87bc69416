"""Specifications: what one entry of a study file describes. Read by `schema`, expanded into cells by `study`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from gradleak.attacks import ATTACKS, Attack, find_attack
from gradleak.audit.scenario import ClientSettings, TargetSpec
from gradleak.defenses import DEFENSES
from gradleak.settings import Setting
from gradleak.targets import resolve_device
from gradleak.vision.attacks import IMAGE_ATTACKS, ImageAttack, find_image_attack
from gradleak.vision.target import ImageTarget, load_image_target

BUDGET = Setting(name="budget", kind=float, above=0.0, meaning="time for each update", unit="seconds")
"""The setting that a study file may give to any attack, whether or not the attack declares it."""


@dataclass(frozen=True)
class DataSpec:
    """A dataset and the range of its examples that is used."""

    name: str
    take: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    labels: Mapping[str, int] | None = None


@dataclass(frozen=True)
class AttackSpec:
    """An attack with its preset and settings.

    Attributes:
        name: of the attack.
        preset: None for the grid's preset, or the attack's default.
        settings: hyperparameters, as the study file gives them.
    """

    name: str
    preset: str | None
    settings: Mapping[str, Any]

    @property
    def available(self) -> bool:
        """Whether this version of the package has the attack."""
        return self.name in ATTACKS

    @property
    def texts(self) -> dict[str, str]:
        """The settings that the attack itself declares, as text, as `--set` gives them."""
        return {key: str(value) for key, value in self.settings.items() if key != BUDGET.name or self._has_budget}

    @property
    def budget(self) -> float | None:
        """Seconds for each update; None if there is no limit, or if the attack has a budget setting itself."""
        return None if self._has_budget else budget_of(self.settings)

    @property
    def _has_budget(self) -> bool:
        return self.available and find_attack(self.name).has_setting(BUDGET.name)

    def build(self) -> Attack:
        """Build the attack.

        Raises:
            GradleakError: if there is no such attack, preset or setting, or a value is out of bounds, with the same
                messages as `--attack`, `--preset` and `--set`.
        """
        return find_attack(self.name).with_settings(self.preset, self.texts)

    def with_preset(self, usual: str | None) -> AttackSpec:
        """Return the attack with its own preset, else the usual one if it has that, else its default."""
        kind = find_attack(self.name)
        return replace(self, preset=self.preset or (usual if usual in kind.presets else kind.default_preset()))


@dataclass(frozen=True)
class ImageModelSpec:
    """An image model with random weights (see `load_image_target`); `seed` is the weights', None for the usual one."""

    name: str
    num_labels: int = 10
    size: int = 32
    seed: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)

    def load(self, device: str | torch.device = "cpu") -> ImageTarget:
        """Build the model."""
        return load_image_target(
            self.name, num_labels=self.num_labels, size=self.size, seed=self.seed, device=resolve_device(device)
        )


@dataclass(frozen=True)
class ImageAttackSpec:
    """An attack on images with its preset and settings, as `AttackSpec` has them."""

    name: str
    preset: str | None
    settings: Mapping[str, Any]

    @property
    def available(self) -> bool:
        """Whether this version of the package has the attack."""
        return self.name in IMAGE_ATTACKS

    @property
    def texts(self) -> dict[str, str]:
        """The settings that the attack itself declares, as text."""
        return {key: str(value) for key, value in self.settings.items() if key != BUDGET.name}

    @property
    def budget(self) -> float | None:
        """Seconds for each update; None for no limit."""
        return budget_of(self.settings)

    def build(self) -> ImageAttack:
        """Build the attack, with the messages of `--attack`, `--preset` and `--set` if that fails."""
        return find_image_attack(self.name).with_settings(self.preset, self.texts)

    def with_preset(self) -> ImageAttackSpec:
        """Return the attack with its own preset, else its default."""
        return replace(self, preset=self.preset or find_image_attack(self.name).default_preset())


def budget_of(settings: Mapping[str, Any]) -> float | None:
    """Return the seconds for each update that a study file gives; None if it gives none."""
    if BUDGET.name not in settings:
        return None
    seconds: float = BUDGET.parse(str(settings[BUDGET.name]))
    BUDGET.check(seconds)
    return seconds


@dataclass(frozen=True, kw_only=True)
class AttackGrid:
    """A `[[grid]]` of a study file: attacks on the full product of its lists."""

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
        """The attacks and defenses that it names and this version of the package does not have."""
        return [a.name for a in self.attack if not a.available] + missing_defenses(self.defense)

    def available(self) -> AttackGrid:
        """Return the part of the grid that this version can run, each attack with its preset."""
        kept = tuple(a.with_preset(self.preset) for a in self.attack if a.available)
        return replace(self, attack=kept, defense=with_known_defenses(self.defense))


@dataclass(frozen=True, kw_only=True)
class UtilityGrid:
    """A `[[utility]]` of a study file: fine-tuning under defenses, on the full product of its lists."""

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
        """The defenses that it names and this version of the package does not have."""
        return missing_defenses(self.defense)

    def available(self) -> UtilityGrid:
        """Return the part of the grid that this version can run."""
        return replace(self, defense=with_known_defenses(self.defense))


@dataclass(frozen=True, kw_only=True)
class ImageGrid:
    """An `[[images]]` of a study file: attacks on image models, on the full product of its lists."""

    target: tuple[ImageModelSpec, ...]
    dataset: tuple[DataSpec, ...]
    batch_size: tuple[int, ...]
    defense: tuple[tuple[str, ...], ...]
    knowledge: tuple[str | tuple[str, ...], ...]
    attack: tuple[ImageAttackSpec, ...]
    seed: tuple[int, ...]
    clients_per_cell: int

    @property
    def unavailable(self) -> list[str]:
        """The attacks and defenses that it names and this version of the package does not have."""
        return [a.name for a in self.attack if not a.available] + missing_defenses(self.defense)

    def available(self) -> ImageGrid:
        """Return the part of the grid that this version can run, each attack with its preset."""
        kept = tuple(attack.with_preset() for attack in self.attack if attack.available)
        return replace(self, attack=kept, defense=with_known_defenses(self.defense))


def missing_defenses(alternatives: tuple[tuple[str, ...], ...]) -> list[str]:
    """Return the names of defenses that this version of the package does not have."""
    return [_defense_name(words) for together in alternatives for words in together if not is_known_defense(words)]


def with_known_defenses(alternatives: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """Return the alternatives whose defenses this version of the package has."""
    return tuple(together for together in alternatives if all(map(is_known_defense, together)))


def is_known_defense(words: str) -> bool:
    """Return whether this version of the package has the defense of `NAME:VALUE`."""
    return _defense_name(words) in DEFENSES


def _defense_name(words: str) -> str:
    return words.partition(":")[0].strip()
