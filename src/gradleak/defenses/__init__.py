"""Changes to what a client sends, one file each; they are applied to Updates, one after the other.

A defense has a name, one value and a method `apply`, which returns a new Update and leaves the old one alone. On the
command line it is written `NAME:VALUE`, or `NAME` alone where it takes no value. To add one, subclass `Defense` in a
file of this folder, add `@register`, and import the file here.
"""

from gradleak.defenses.base import DEFENSES, Defense, defend, defense_stream, parse_defense, register
from gradleak.defenses.clip import Clip
from gradleak.defenses.noise import Noise
from gradleak.defenses.prune import Prune
from gradleak.defenses.sign import Sign

__all__ = [
    "DEFENSES",
    "Clip",
    "Defense",
    "Noise",
    "Prune",
    "Sign",
    "defend",
    "defense_stream",
    "parse_defense",
    "register",
]
