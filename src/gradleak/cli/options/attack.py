"""The options of `gradleak attack` on the update, the attack and the attacker's knowledge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradleak.cli.options.parse import parse_duration, parse_settings
from gradleak.cli.options.shared import (
    AttackName,
    Budget,
    Know,
    Lengths,
    Preset,
    Settings,
    UpdateFile,
    UpdateKind,
)

if TYPE_CHECKING:
    from gradleak.attacks import Attack


@dataclass(frozen=True)
class ChosenAttack:
    """An attack with its preset's name, seed and budget in seconds for each update."""

    attack: Attack
    preset: str
    seed: int = 0
    budget: float | None = None


@dataclass(frozen=True)
class AttackChoice:
    """The options on the captured update, the attack and its hyperparameters, and the attacker's knowledge."""

    update: UpdateFile = None
    name: AttackName = None
    preset: Preset = None
    settings: Settings = None
    budget: Budget = None
    know: Know = None
    lengths: Lengths = None
    kind: UpdateKind = None

    def build(self, seed: int) -> ChosenAttack:
        """Return the attack with its hyperparameters."""
        from gradleak.attacks import DEFAULT_ATTACK, find_attack

        kind = find_attack(DEFAULT_ATTACK if self.name is None else self.name)
        settings = parse_settings(self.settings)
        seconds = None if self.budget is None else parse_duration(self.budget, "--budget")
        if seconds is not None and kind.has_setting("budget"):
            settings["budget"], seconds = str(seconds), None
        attack = kind.with_settings(self.preset, settings)
        return ChosenAttack(attack, self.preset or attack.default_preset(), seed, seconds)
