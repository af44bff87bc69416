"""One file per attack, published or gradleak's own, each a short composition of the other rooms.

To add one, subclass `Attack`, give its hyperparameters as fields, write `run`, and add `@register`.
"""

from gradleak.attacks.auto import Auto
from gradleak.attacks.base import ATTACKS, Attack, find_attack, register
from gradleak.attacks.dlg import Dlg
from gradleak.attacks.edr import Edr
from gradleak.attacks.fet import Fet
from gradleak.attacks.forest import Forest
from gradleak.attacks.grab import Grab
from gradleak.attacks.lamp import Lamp, LampL2L1
from gradleak.attacks.lti import Lti, LtiP
from gradleak.attacks.mosaic import Mosaic
from gradleak.attacks.sieve import Sieve
from gradleak.attacks.tag import Tag
from gradleak.exchange import Finding, Victim

DEFAULT_ATTACK = "auto"

__all__ = [
    "ATTACKS",
    "DEFAULT_ATTACK",
    "Attack",
    "Auto",
    "Dlg",
    "Edr",
    "Fet",
    "Finding",
    "Forest",
    "Grab",
    "Lamp",
    "LampL2L1",
    "Lti",
    "LtiP",
    "Mosaic",
    "Sieve",
    "Tag",
    "Victim",
    "find_attack",
    "register",
]
