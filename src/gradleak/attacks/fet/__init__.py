"""FET: the paper's attack (`attack.py`), and gradleak's own search in place of its phases (`surrogate.py`)."""

from gradleak.attacks.fet.attack import Fet

__all__ = ["Fet"]
