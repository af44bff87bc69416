"""Defenses: changes to the update that a client sends, one file each, applied in order.

A defense has a name, its numbers and a method `apply`, which returns a new Update and does not change the old one. On
the command line it is written `NAME:VALUE`, or `NAME` alone if it takes no value. To add one, subclass `Defense` in a
file of this folder, add `@register`, and import the file here (docs/defenses.md has an example). `entries` has base
classes for defenses that change many updates in one pass.

A client applies all of its defenses with `defend`. Where `examples_needed` says so (DP-SGD clips the update of each
example), it computes one update per example and calls `defend_examples`. `epsilon` accounts for the privacy loss.
"""

from gradleak.defenses.base import DEFENSES, Defense, Memory, parse_defense, register
from gradleak.defenses.clip import Clip
from gradleak.defenses.compose import defend, defend_each, defend_examples, defense_stream, examples_needed
from gradleak.defenses.dpsgd import DPSGD
from gradleak.defenses.entries import BatchedDefense
from gradleak.defenses.laplace import Laplace
from gradleak.defenses.mask import Mask
from gradleak.defenses.noise import Noise
from gradleak.defenses.privacy import DELTA, epsilon
from gradleak.defenses.prune import Prune, PruneGlobal
from gradleak.defenses.sign import Sign
from gradleak.defenses.topk import TopK

__all__ = [
    "DEFENSES",
    "DELTA",
    "DPSGD",
    "BatchedDefense",
    "Clip",
    "Defense",
    "Laplace",
    "Mask",
    "Memory",
    "Noise",
    "Prune",
    "PruneGlobal",
    "Sign",
    "TopK",
    "defend",
    "defend_each",
    "defend_examples",
    "defense_stream",
    "epsilon",
    "examples_needed",
    "parse_defense",
    "register",
]
