"""EDR: the attack, and the parts that it alone uses."""

from gradleak.attacks.edr.attack import Edr

__all__ = ["Edr"]
