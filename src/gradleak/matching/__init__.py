"""The matching engine: batched distances of candidates' gradients from observed ones, and their gradients.

Every attack uses it; see README.md in this folder.
"""

from gradleak.matching.autograd import autograd_gradients
from gradleak.matching.candidates import Candidates
from gradleak.matching.classifier_matcher import ClassifierMatcher
from gradleak.matching.distances import DISTANCES, L1, L2, L2L1, Cosine, Distance, SquaredL2, WrongSign
from gradleak.matching.matcher import Matcher, select_parameters, vanishing_parameters
from gradleak.matching.memory import free_bytes
from gradleak.matching.per_candidate import candidate_gradients, row_gradients
from gradleak.matching.precision import allow_tf32
from gradleak.matching.rules import LayerCall, register_grad_rule

__all__ = [
    "DISTANCES",
    "L1",
    "L2",
    "L2L1",
    "Candidates",
    "ClassifierMatcher",
    "Cosine",
    "Distance",
    "LayerCall",
    "Matcher",
    "SquaredL2",
    "WrongSign",
    "allow_tf32",
    "autograd_gradients",
    "candidate_gradients",
    "free_bytes",
    "register_grad_rule",
    "row_gradients",
    "select_parameters",
    "vanishing_parameters",
]
