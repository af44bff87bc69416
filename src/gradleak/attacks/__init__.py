"""One file per published attack, each a short composition of the other rooms.

To add one, subclass `Attack`, give its hyperparameters as fields, write `run`, and add `@register`.
"""

from gradleak.attacks.base import ATTACKS, Attack, Finding, Victim, find_attack, register
from gradleak.attacks.dlg import Dlg
from gradleak.attacks.lamp import Lamp, LampL2L1
from gradleak.attacks.tag import Tag

DEFAULT_ATTACK = "lamp"

__all__ = [
    "ATTACKS",
    "DEFAULT_ATTACK",
    "Attack",
    "Dlg",
    "Finding",
    "Lamp",
    "LampL2L1",
    "Tag",
    "Victim",
    "find_attack",
    "register",
]
