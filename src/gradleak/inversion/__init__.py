"""Training of inverters, LTI's networks that map gradients to text; used by `gradleak invert train`.

    text or marginal distribution ──Stream──▶ private batches ──GradientSource──▶ gradients
        ──defenses──▶ what clients would send ──Reduction──▶ features ──InverterTrainer──▶ Inverter

Gradients are computed on the fly, many at once on the target's device, and never stored. `train_inverter` runs the loop
with held-out accuracy, checkpoints and resumption; in a `JointTraining` several inverters (one for each defense, say)
share the gradients of one stream. The network and its files are in `gradleak.inverters`, where the attack finds them.

    recipe          Recipe: all settings of a training
    streams         sentences to train on: auxiliary text, or pseudo-data
    gradients       batches of them, and the gradients that clients would send
    probe           which gradients tell most about the text
    trainer         one inverter under training
    sentence_order  the loss of a batch whose order is not known
    joint_training  several trainers on the gradients of one stream
    training        the loop
    checkpoint      an unfinished training, as a file
    model_card      CARD.md
"""

from gradleak.inversion.checkpoint import checkpoint_rate
from gradleak.inversion.gradients import GradientSource
from gradleak.inversion.joint_training import JointTraining
from gradleak.inversion.probe import choose_rows, informativeness
from gradleak.inversion.recipe import PAPER, RATES, Recipe
from gradleak.inversion.streams import AuxiliaryText, PseudoText, Shape, Stream, cut_texts, mixed
from gradleak.inversion.trainer import InverterTrainer
from gradleak.inversion.training import TrainingReport, choose_rate, train_inverter

__all__ = [
    "PAPER",
    "RATES",
    "AuxiliaryText",
    "GradientSource",
    "InverterTrainer",
    "JointTraining",
    "PseudoText",
    "Recipe",
    "Shape",
    "Stream",
    "TrainingReport",
    "checkpoint_rate",
    "choose_rate",
    "choose_rows",
    "cut_texts",
    "informativeness",
    "mixed",
    "train_inverter",
]
