"""EDR: the attack (`attack.py`), and the parts of it that follow the sections of its paper."""

from gradleak.attacks.edr.attack import Edr

__all__ = ["Edr"]
