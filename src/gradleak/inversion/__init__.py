"""Training of inverters, LTI's networks that map gradients to text.

    text or marginal distribution ──Stream──▶ private batches ──Examples──▶ gradients
        ──defenses──▶ what clients would send ──Reduction──▶ features ──Learner──▶ Inverter

Gradients are made on the fly, in batches on the target's device, and forgotten: none is ever stored. `train_inverter`
runs the loop with held-out accuracy, checkpoints and resumption; in a `Course` several learners (one for each defense,
say) share the gradients of one stream. The network and its files are in `gradleak.inverters.network`, for the attack.
"""

from gradleak.inversion.examples import Examples
from gradleak.inversion.learner import PAPER, RATES, Learner, Recipe
from gradleak.inversion.probe import choose_rows, informativeness
from gradleak.inversion.streams import AuxiliaryText, PseudoText, Shape, Stream, cut_texts, mixed
from gradleak.inversion.training import Course, Report, checkpoint_rate, choose_rate, train_inverter

__all__ = [
    "PAPER",
    "RATES",
    "AuxiliaryText",
    "Course",
    "Examples",
    "Learner",
    "PseudoText",
    "Recipe",
    "Report",
    "Shape",
    "Stream",
    "checkpoint_rate",
    "choose_rate",
    "choose_rows",
    "cut_texts",
    "informativeness",
    "mixed",
    "train_inverter",
]
