"""The card of an inverter: what it is for, and how it was trained; stored in its file as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from gradleak.bounds import MOST_UNITS
from gradleak.exchange import Origin
from gradleak.inverters.settings import InverterSettings
from gradleak.settings import settings_of
from gradleak.targets import Lora


@dataclass(frozen=True, kw_only=True)
class Card(InverterSettings):
    """What an inverter was trained for, and how: its settings, and the facts below.

    Attributes:
        origin: the target.
        parameters: names of the parameters whose gradients it reads.
        defenses: the defenses of the clients, in order, as the command line writes them.
        pseudo: whether it saw nothing but pseudo-data (LTI-P).
        data: the text it was trained on, in words.
        samples: number of examples it was trained on.
        accuracy: share of the tokens of held-out text that it gets right, in per cent.
    """

    origin: Origin
    parameters: tuple[str, ...]
    defenses: tuple[str, ...] = ()
    pseudo: bool = False
    data: str = ""
    samples: int = 0
    accuracy: float = 0.0

    def as_json(self) -> str:
        """Return the card as text for the inverter's file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Card:
        """Read a card from the text in an inverter's file.

        Raises:
            ValueError: if it makes no sense; other exceptions of Python where the JSON is of another kind.
        """
        values: dict[str, Any] = json.loads(text)
        declared = {name: one for name, one in settings_of(InverterSettings).items() if name != "hidden"}
        wrong = [name for name, one in declared.items() if not one.fits(values[name])]
        wrong += [] if all(type(width) is int and 0 < width <= MOST_UNITS for width in values["hidden"]) else ["hidden"]
        texts = {name: list(values[name]) for name in ("parameters", "defenses")} | {"data": [values["data"]]}
        wrong += [name for name, found in texts.items() if not all(isinstance(text, str) for text in found)]
        numbers = {"pseudo": bool, "samples": int, "accuracy": int | float}
        wrong += [name for name, kind in numbers.items() if not isinstance(values[name], kind)]
        if wrong:
            raise ValueError(f"{wrong[0]} of the card is {values[wrong[0]]!r}")
        origin = values["origin"]
        lora = None if origin.get("lora") is None else Lora(**origin["lora"])
        values["origin"] = Origin(**origin | {"lora": lora})
        if not all(isinstance(origin[name], str) for name in ("name", "fingerprint")):
            raise ValueError("the card names no model")
        for name in ("parameters", "defenses", "hidden"):
            values[name] = tuple(values[name])
        return cls(**{field.name: values[field.name] for field in fields(cls)})
