"""What an audit covers, and the identity that tells its folder from that of another audit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradleak.audit.scenario import ClientSettings, TargetSpec
from gradleak.studies.definition.specs import DataSpec

LINE = 20.0
LONG = 4


@dataclass(frozen=True, kw_only=True)
class SafetyLine:
    """Where a setting counts as safe.

    Attributes:
        rouge_l: the mean ROUGE-L has to stay below this.
        words: no sentence of more words than this may be read word for word.
    """

    rouge_l: float = LINE
    words: int = LONG


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """What the user asked for.

    Attributes:
        target: the model; its number of classes may be left open.
        data: the texts; `take` selects those that are attacked.
        client: how clients train and what they send.
        defenses: the user's own defenses, in order.
        batch_size: sentences of a client's batch.
        facts: what the attacker is told about the own setup.
        attack: name of the attack.
        settings: its settings, besides the time for each update.
        seed: seed of everything random.
        budget: seconds for the whole audit.
        truncate: cut texts that are longer than the model takes.
        device: `auto`, `cpu` or `cuda`.
        line: where a setting counts as safe.
    """

    target: TargetSpec
    data: DataSpec
    client: ClientSettings = field(default_factory=ClientSettings)
    defenses: tuple[str, ...] = ()
    batch_size: int = 1
    facts: tuple[str, ...] = ()
    attack: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    budget: float = 600.0
    truncate: bool = False
    device: str = "auto"
    line: SafetyLine = field(default_factory=SafetyLine)

    @property
    def unit(self) -> int:
        """Sentences behind one update that the attacker sees."""
        return self.batch_size * self.client.clients

    def identity(self) -> dict[str, str]:
        """Return what makes this audit, in words by name; another value of any of them is another audit."""
        values: dict[str, Any] = {
            "model": self.target.as_dict(),
            "data": {"name": self.data.name, "take": self.data.take, "labels": self.data.labels},
            "columns": [self.data.text_column, self.data.label_column],
            "client": self.client.as_dict(),
            "defenses": list(self.defenses),
            "batch size": self.batch_size,
            "knowledge": list(self.facts),
            "attack": [self.attack, dict(self.settings)],
            "seed": self.seed,
            "budget": self.budget,
            "truncation": self.truncate,
        }
        return {name: json.dumps(value, sort_keys=True) for name, value in values.items()}
