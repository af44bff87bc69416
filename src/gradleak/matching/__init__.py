"""Gradient distances, and the engine that scores and differentiates them in batches; see README.md."""

from gradleak.matching.autograd import autograd_gradients
from gradleak.matching.candidates import Candidates
from gradleak.matching.distances import DISTANCES, L1, L2, L2L1, Cosine, Distance, Sign, SquaredL2
from gradleak.matching.matcher import Matcher, select_parameters, vanishing_parameters
from gradleak.matching.memory import free_bytes
from gradleak.matching.per_candidate import candidate_gradients, row_gradients
from gradleak.matching.precision import allow_tf32
from gradleak.matching.rules import Use, rule

__all__ = [
    "DISTANCES",
    "L1",
    "L2",
    "L2L1",
    "Candidates",
    "Cosine",
    "Distance",
    "Matcher",
    "Sign",
    "SquaredL2",
    "Use",
    "allow_tf32",
    "autograd_gradients",
    "candidate_gradients",
    "free_bytes",
    "row_gradients",
    "rule",
    "select_parameters",
    "vanishing_parameters",
]
